// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/panics"
	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/source/image"
	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// puller is a registry of one image.
type puller struct {
	mu       sync.Mutex
	resolve  error
	resolved string // testImage if empty
	panics   bool   // Resolve does
	pack     error
	block    chan struct{} // when set, Pack waits for it
	content  string
	packs    int
	looks    int // for what is no digest
	// platform is the one that was last asked for.
	platform platform.Platform
}

func (p *puller) Resolve(_ context.Context, reference string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.panics {
		panic("over " + reference)
	}
	if v1alpha1.Digested(reference) {
		return reference, p.resolve
	}
	p.looks++
	return cmp.Or(p.resolved, testImage), p.resolve
}

func (p *puller) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *puller) Pack(ctx context.Context, _ string, want platform.Platform, _ string, w io.Writer, _ tarball.Limits, _ string) (tarball.Summary, error) {
	p.mu.Lock()
	p.packs++
	p.platform = want
	block, content, failure := p.block, p.content, p.pack
	p.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return tarball.Summary{}, context.Cause(ctx)
		}
	}
	if failure != nil {
		return tarball.Summary{}, failure
	}
	_, err := io.WriteString(w, content)
	return tarball.Summary{}, err
}

// standalone takes the cluster away.
func standalone(w *world, p *puller) {
	w.config.Kube, w.config.Direct, w.config.AllowDirect = nil, p, true
}

func TestDirect(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		p := &puller{content: "the content"}
		standalone(w, p)
		got := ""
		w.put = func(body []byte) error { got = string(body); return nil }
		w.start()
		w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
		u := w.bundle().Status.Unpack
		if got != "the content" || u.Mode != v1alpha1.UnpackModeDirect || u.PodName != "" || u.ResolvedReference != testImage {
			t.Errorf("content %q, attempt %+v", got, u)
		}
	})
}

// One namespace does not have all pulls of the server.
func TestDirectPullsAreSharedOut(t *testing.T) {
	inWorld(t, append(someBundles("team-a", 5), nth("team-b", 9)), func(w *world) {
		p := &puller{block: make(chan struct{})}
		standalone(w, p)
		w.start()
		w.pass(time.Minute)
		if u := w.all("team-b")[0].Status.Unpack; u == nil || u.ResolvedReference == "" || p.packs != w.config.Workers {
			t.Errorf("%d pulls, and that of the other namespace is %+v", p.packs, u)
		}
	})
}

func TestDirectFailures(t *testing.T) {
	for name, test := range map[string]struct {
		resolve error
		put     error
		pack    error
		reason  string
		final   bool
	}{
		"not found":   {resolve: image.ErrNotFound, reason: v1alpha1.ReasonImageNotFound},
		"unreachable": {resolve: image.ErrUnreachable, reason: v1alpha1.ReasonRegistryUnreachable},
		"no access":   {resolve: image.ErrAccess, reason: contract.ReasonInvalidConfiguration},
		"rate limit":  {resolve: image.ErrTooManyRequests, reason: v1alpha1.ReasonRateLimited},
		"not trusted": {resolve: image.ErrNotTrusted, reason: v1alpha1.ReasonRegistryNotTrusted},
		"platform":    {resolve: image.ErrPlatform, reason: v1alpha1.ReasonPlatformNotSupported},
		"empty":       {pack: image.ErrEmpty, reason: contract.ReasonImageEmpty, final: true},
		"artifact":    {resolve: image.ErrNoImage, reason: v1alpha1.ReasonArtifactNotSupported, final: true},
		"invalid":     {resolve: image.ErrInvalidReference, reason: v1alpha1.ReasonInvalidImageReference, final: true},
		"other":       {resolve: errors.New("odd"), reason: v1alpha1.ReasonImagePullFailed},
		"entry":       {pack: &tarball.EntryError{Entry: "dev/null", Reason: "is a device"}, reason: contract.ReasonContentRefused, final: true},
		"limit":       {pack: &tarball.LimitError{Limit: tarball.LimitFiles, Max: 1}, reason: contract.ReasonLimitExceeded, final: true},
		"disk full":   {pack: &os.PathError{Op: "write", Path: "scratch", Err: os.ErrClosed}, reason: v1alpha1.ReasonImagePullFailed},
		"panic":       {pack: &panics.Error{Over: "an image"}, reason: v1alpha1.ReasonInternalError},
		"too large":   {put: tooLarge(), reason: contract.ReasonLimitExceeded, final: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, started(testClass(), testBundle()), func(w *world) {
				p := &puller{resolve: test.resolve, pack: test.pack}
				standalone(w, p)
				w.put = func([]byte) error { return test.put }
				w.start()
				status := metav1.ConditionUnknown
				if test.final {
					status = metav1.ConditionFalse
				}
				w.expect(status, test.reason)
				if w.stalled() != test.final {
					t.Errorf("stalled %v", w.stalled())
				}
				p.mu.Lock()
				p.resolve, p.pack = nil, nil
				p.mu.Unlock()
				w.mu.Lock()
				w.put = nil
				w.mu.Unlock()
				w.edit(func(b *v1alpha1.Bundle) { b.Annotations = map[string]string{v1alpha1.AnnotationRetry: "now"} })
				w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
			})
		})
	}
}

func TestDirectGoesOnAfterARestartAndStopsWhenSuperseded(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		p := &puller{block: make(chan struct{})}
		standalone(w, p)
		w.start()
		nonce := w.bundle().Status.Unpack.Nonce
		w.stop()
		if u := w.bundle().Status.Unpack; !open(u) || u.Failures != 0 {
			t.Fatalf("a shutdown ended the attempt: %+v", u)
		}
		w.start()
		if u := w.bundle().Status.Unpack; u.Nonce != nonce || p.packs != 2 {
			t.Errorf("attempt %+v, %d pulls", u, p.packs)
		}
		w.edit(func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/other" })
		if u := w.bundle().Status.Unpack; u.Nonce == nonce || p.packs != 3 || u.Failures != 0 {
			t.Errorf("attempt %+v, %d pulls", u, p.packs)
		}
		close(p.block)
		w.pass(0)
		w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
	})
}

func TestDirectDeadline(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		standalone(w, &puller{block: make(chan struct{})})
		w.start()
		w.pass(601 * time.Second)
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonDeadlineExceeded, "attempt 1 failed")
	})
}

func TestClusterModesNeedACluster(t *testing.T) {
	inWorld(t, started(testBundle(), changedClass(func(c *v1alpha1.ProvisionerClass) { c.Unpack.Mode = v1alpha1.UnpackModeImageVolume })), func(w *world) {
		standalone(w, &puller{})
		w.start()
		w.expect(metav1.ConditionFalse, v1alpha1.ReasonModeNotAllowed, "ImageVolume")
	})
}

func tooLarge() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: 413, Reason: metav1.StatusReasonRequestEntityTooLarge, Message: "larger than 1 byte"}}
}
