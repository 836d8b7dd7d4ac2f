// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/identity"
	"rukpak.io/apiserver/test/integration/harness"
)

const (
	identitySecret = "rukpak-apiserver-pki"
	contentURL     = "/apis/rukpak.io/v1alpha1/namespaces/default/bundles/app/content"
	// rotations is how often the CA is replaced.
	rotations = 10
)

// rotation replaces the CA again and again, while readers through kube-apiserver, and straight to each replica
// with a caBundle that they read a moment ago, go on. None of them may fail, and the API may not be unavailable for a moment.
func (w *world) rotation(t *testing.T) {
	w.start(t, 2, "--serving-cert-validity=20s", "--ca-overlap=2s", "--ca-validity=1h")
	digest := w.upload(t)
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	var reads atomic.Int64
	read := func(what string, once func(context.Context) error) {
		readers.Go(func() {
			for ctx.Err() == nil {
				if err := once(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				reads.Add(1)
			}
		})
	}
	api := w.Kube.CoreV1().RESTClient()
	read("list through kube-apiserver", func(ctx context.Context) error {
		return api.Get().AbsPath(bundlesURL).MaxRetries(0).Do(ctx).Error()
	})
	read("content through kube-apiserver", func(ctx context.Context) error {
		raw, err := api.Get().AbsPath(contentURL).MaxRetries(0).Do(ctx).Raw()
		if err == nil && digestOf(raw) != digest {
			err = fmt.Errorf("digest %s in place of %s", digestOf(raw), digest)
		}
		return err
	})
	// What each replica shows: the certificates, and who signed them.
	var mu sync.Mutex
	leaves, issuers := make([]map[string]bool, len(w.servers)), make([]map[string]bool, len(w.servers))
	for i, r := range w.servers {
		leaves[i], issuers[i] = map[string]bool{}, map[string]bool{}
		admin := w.admin(t, nil)
		read(fmt.Sprintf("content straight from replica %d", i), func(ctx context.Context) error {
			bundle, err := w.caBundle(ctx)
			if err != nil {
				return err
			}
			config := admin.Clone()
			config.RootCAs = pool(bundle)
			shown, err := w.fetch(ctx, r, config, contentURL)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				leaves[i][shown.SerialNumber.String()], issuers[i][shown.Issuer.CommonName] = true, true
			}
			return err
		})
	}
	w.watchAvailability(ctx, t, &readers)
	begin := time.Now()
	for n := range rotations {
		w.rotate(t, fmt.Sprintf("%d", n))
	}
	took := time.Since(begin)
	for i := range w.servers {
		eventually(t, fmt.Sprintf("replica %d followed each time", i), func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if len(issuers[i]) <= rotations {
				return fmt.Errorf("%d authorities and %d certificates", len(issuers[i]), len(leaves[i]))
			}
			return nil
		})
	}
	eventually(t, "old authorities are trusted no more", func(ctx context.Context) error {
		bundle, err := w.caBundle(ctx)
		if n := bytes.Count(bundle, []byte("BEGIN CERTIFICATE")); err == nil && n != 1 {
			err = fmt.Errorf("%d are trusted", n)
		}
		return err
	})
	cancel()
	readers.Wait()
	t.Logf("%d rotations in %v, %d reads; replica 0 showed %d certificates", rotations, took.Round(time.Second), reads.Load(), len(leaves[0]))
	for _, r := range w.servers {
		if !r.Running() {
			t.Errorf("a replica ended: %s", r.Log())
		}
	}
}

// rotate asks for another CA, and returns when it signs.
func (w *world) rotate(t *testing.T, request string) {
	t.Helper()
	secrets := w.Kube.CoreV1().Secrets(harness.SystemNamespace)
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, identity.AnnotationRotate, request)
	before := must(secrets.Patch(t.Context(), identitySecret, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
	eventually(t, "the next authority signs", func(ctx context.Context) error {
		now, err := secrets.Get(ctx, identitySecret, metav1.GetOptions{})
		if err == nil && bytes.Equal(now.Data["ca.crt"], before.Data["ca.crt"]) {
			err = fmt.Errorf("not yet: %s", now.Data["rotation.json"])
		}
		return err
	})
}

// watchAvailability fails the test at each moment at which the APIService is not available.
func (w *world) watchAvailability(ctx context.Context, t *testing.T, group *sync.WaitGroup) {
	t.Helper()
	watcher := must(w.dynamic.Resource(harness.APIServices).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", harness.APIServiceName).String(),
	}))(t)
	group.Go(func() {
		for event := range watcher.ResultChan() {
			if obj, ok := event.Object.(*unstructured.Unstructured); ok {
				if err := unavailable(obj); err != nil {
					t.Error(err)
				}
			}
		}
		if ctx.Err() == nil {
			t.Error("the watch of the APIService ended")
		}
	})
	context.AfterFunc(ctx, watcher.Stop)
}

// upload makes a bundle with content, and returns the digest of that.
func (w *world) upload(t *testing.T) string {
	t.Helper()
	var archive bytes.Buffer
	out := tar.NewWriter(&archive)
	body := bytes.Repeat([]byte("content "), 8<<10)
	if err := out.WriteHeader(&tar.Header{Name: "data", Mode: 0o644, Size: int64(len(body)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	must(out.Write(body))(t)
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	bundles := w.Rukpak.RukpakV1alpha1().Bundles("default")
	must(bundles.Create(t.Context(), &v1alpha1.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec:       v1alpha1.BundleSpec{ProvisionerClassName: "raw", Source: v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}},
	}, metav1.CreateOptions{}))(t)
	return must(bundles.PutContent(t.Context(), "app", &archive, typed.PutContentOptions{}))(t).Status.Content.Digest
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
