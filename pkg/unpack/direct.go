// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content/places"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
	"rukpak.io/apiserver/pkg/panics"
	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/source/image"
	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/traceparent"
	"rukpak.io/apiserver/pkg/unpack/contract"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// direct holds the pulls of this process, at most one a bundle. They run beside the
// workers, which a slow registry must not hold up.
type direct struct {
	slots   *places.Places // one for each pull at a time
	mu      sync.Mutex
	running map[cache.ObjectName]*pull
	all     sync.WaitGroup
}

// pull is one attempt of mode Direct.
type pull struct {
	nonce  string
	cancel context.CancelFunc
	// verdict is valid when done is closed, which it is not after a cancellation. It
	// is nil when the server took the content.
	verdict *verdict
	done    chan struct{}
}

// proceedDirect sees to it that the attempt's pull runs, and draws the conclusion
// when it has ended. A pull that a crash interrupted begins anew.
func (w *work) proceedDirect(ctx context.Context, left time.Duration) (time.Duration, error) {
	u := w.bundle.Status.Unpack
	p := w.direct.get(w.name, u.Nonce)
	if p == nil {
		w.startPull(ctx, left)
		return 0, nil
	}
	select {
	case <-p.done:
	default:
		return 0, nil
	}
	v := p.verdict
	if v == nil {
		v = &verdict{reason: v1alpha1.ReasonContentNotCommitted, message: "the content was sent and the server does not have it"}
	}
	after, err := w.fail(ctx, *v)
	if err == nil {
		w.direct.stop(w.name, "")
	}
	return after, err
}

// startPull runs a pull until it is done, its attempt is over, or the term is.
func (w *work) startPull(ctx context.Context, left time.Duration) {
	ctx, cancel := context.WithTimeout(w.traces.within(ctx, w.bundle), left)
	p := &pull{nonce: w.bundle.Status.Unpack.Nonce, cancel: cancel, done: make(chan struct{})}
	job := &pullJob{
		term: w.term, name: w.name, nonce: p.nonce, reference: w.reference(),
		path: w.bundle.Spec.Source.Image.Path, limits: pod.Limits(w.class),
	}
	// It was checked when the attempt was begun; one that an earlier version began has none.
	job.platform, _ = platform.Parse(w.bundle.Status.Unpack.Platform)
	w.direct.start(w.name, p, func() {
		defer cancel()
		p.verdict = job.guarded(ctx)
		if errors.Is(ctx.Err(), context.Canceled) {
			return // nobody wants to know any more
		}
		close(p.done)
		w.queue.Add(w.name)
	})
}

func (d *direct) start(name cache.ObjectName, p *pull, run func()) {
	d.stop(name, "")
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running == nil {
		d.running = map[cache.ObjectName]*pull{}
	}
	d.running[name] = p
	d.all.Go(run)
}

func (d *direct) get(name cache.ObjectName, nonce string) *pull {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.running[name]; p != nil && p.nonce == nonce {
		return p
	}
	return nil
}

// stop cancels the pull of a bundle, unless it is that of the attempt to keep.
func (d *direct) stop(name cache.ObjectName, keep string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.running[name]; p != nil && (keep == "" || p.nonce != keep) {
		p.cancel()
		delete(d.running, name)
	}
}

// stopAll cancels all pulls and waits for their ends.
func (d *direct) stopAll() {
	d.mu.Lock()
	for _, p := range d.running {
		p.cancel()
	}
	d.mu.Unlock()
	d.all.Wait()
}

// pullJob is what a pull has to do.
type pullJob struct {
	*term
	name            cache.ObjectName
	nonce           string
	reference, path string
	platform        platform.Platform
	limits          tarball.Limits
}

func (j *pullJob) guarded(ctx context.Context) (v *verdict) {
	defer func() {
		if p := recover(); p != nil {
			_ = panicked(ctx, p, "an image", j.name)
			v = failedOverImage()
		}
	}()
	err := j.run(ctx)
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*panics.Error](err); ok {
		return failedOverImage()
	}
	return directFailure(err)
}

// directFailure is what an error of a puller means.
func directFailure(err error) *verdict {
	return &verdict{reason: directReason(err), message: pod.Words(err.Error(), "")}
}

func failedOverImage() *verdict {
	return &verdict{reason: v1alpha1.ReasonInternalError, message: "the server failed over this image; its log says more"}
}

func (j *pullJob) run(ctx context.Context) error {
	release, err := j.direct.slots.Take(ctx, j.name.Namespace)
	if err != nil {
		return err
	}
	defer release()
	resolved, err := j.Direct.Resolve(ctx, j.reference)
	if err != nil {
		return err
	}
	if err := j.record(ctx, resolved); err != nil {
		return err
	}
	return j.send(ctx, resolved)
}

// errSuperseded says that another attempt is running by now.
var errSuperseded = errors.New("another attempt has begun meanwhile")

// record writes which image the content will come from. The server takes it from
// there when it commits the content.
func (j *pullJob) record(ctx context.Context, resolved string) error {
	bundles := j.Bundles.RukpakV1alpha1().Bundles(j.name.Namespace)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		b, err := bundles.Get(ctx, j.name.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if u := b.Status.Unpack; !open(u) || u.Nonce != j.nonce {
			return errSuperseded
		}
		b.Status.Unpack.ResolvedReference = resolved
		_, err = bundles.UpdateStatus(ctx, b, metav1.UpdateOptions{})
		return err
	})
}

// send packs the image as a stream into the body of a PUT.
func (j *pullJob) send(ctx context.Context, resolved string) error {
	body, content := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := errors.New("the image could not be packed")
		// Deferred, so that a panic in there leaves nobody waiting.
		defer func() {
			if p := recover(); p != nil {
				_ = panicked(ctx, p, "an image", j.name)
			}
			// With an error the body breaks off, and is no content.
			content.CloseWithError(err)
			packed <- err
		}()
		_, err = j.Direct.Pack(ctx, resolved, j.platform, j.path, content, j.limits, j.Scratch)
	}()
	// All layers are fetched before the first byte comes, and meanwhile the server would wait in vain.
	first := bufio.NewReader(body)
	_, err := first.Peek(1)
	if err == nil || err == io.EOF {
		err = j.reconciler.put(ctx, j.name.Namespace, j.name.Name, j.nonce, first)
	}
	// Whatever the answer is, nobody reads the rest.
	body.Close()
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) && !isAnswer(err) {
		return packErr
	}
	return err
}

// isAnswer tells whether a PUT was answered by the server.
func isAnswer(err error) bool {
	_, ok := errors.AsType[*apierrors.StatusError](err)
	return err == nil || ok
}

// putThrough sends content with the client for bundles.
func putThrough(bundles versioned.Interface) func(ctx context.Context, namespace, name, nonce string, body io.Reader) error {
	return func(ctx context.Context, namespace, name, nonce string, body io.Reader) error {
		req := bundles.RukpakV1alpha1().RESTClient().Put()
		if parent := traceparent.Of(ctx); parent != "" {
			req.SetHeader(traceparent.Header, parent)
		}
		return req.
			Namespace(namespace).Resource("bundles").Name(name).SubResource("content").
			Param("attempt", nonce).
			SetHeader("Content-Type", tarball.MediaType).
			MaxRetries(0). // a stream cannot be sent twice
			Body(body).
			Do(ctx).Error()
	}
}

// directReason finds the reason of a failed pull.
func directReason(err error) string {
	for _, known := range []struct {
		err    error
		reason string
	}{
		{image.ErrInvalidReference, v1alpha1.ReasonInvalidImageReference},
		{image.ErrNotFound, v1alpha1.ReasonImageNotFound},
		{image.ErrUnauthorized, v1alpha1.ReasonImagePullUnauthorized},
		{image.ErrTooManyRequests, v1alpha1.ReasonRateLimited},
		{image.ErrNotTrusted, v1alpha1.ReasonRegistryNotTrusted},
		{image.ErrUnreachable, v1alpha1.ReasonRegistryUnreachable},
		{image.ErrPlatform, v1alpha1.ReasonPlatformNotSupported},
		{image.ErrNoImage, v1alpha1.ReasonArtifactNotSupported},
		{image.ErrEmpty, contract.ReasonImageEmpty},
		{image.ErrInvalidImage, v1alpha1.ReasonImagePullFailed},
		{image.ErrAccess, contract.ReasonInvalidConfiguration},
		{context.DeadlineExceeded, v1alpha1.ReasonDeadlineExceeded},
	} {
		if errors.Is(err, known.err) {
			return known.reason
		}
	}
	if reason := contract.PackReason(err); reason != "" {
		return reason
	}
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		switch status.Status().Code {
		case http.StatusRequestEntityTooLarge:
			return contract.ReasonLimitExceeded
		case http.StatusBadRequest, http.StatusUnprocessableEntity:
			return contract.ReasonContentRefused
		case http.StatusForbidden:
			if apierrors.HasStatusCause(status, contract.ReasonContentQuotaExceeded) {
				return contract.ReasonContentQuotaExceeded
			}
		}
		return contract.ReasonUploadFailed
	}
	return v1alpha1.ReasonImagePullFailed
}
