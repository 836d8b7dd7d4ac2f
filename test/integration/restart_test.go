// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
)

// restartBundles is how many bundles a restarted server has. RUKPAK_RESTART_BUNDLES makes it the thousand of the figures.
func restartBundles(t *testing.T) int {
	t.Helper()
	text := os.Getenv("RUKPAK_RESTART_BUNDLES")
	if text == "" {
		return 100
	}
	return must(strconv.Atoi(text))(t)
}

// countedRegistry is a registry that counts what is asked of it.
func countedRegistry(t *testing.T) (host string, requests *atomic.Int64) {
	t.Helper()
	requests = &atomic.Int64{}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		requests.Add(1)
		images.ServeHTTP(w, req)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), requests
}

// TestRestartFetchesNothing kills a server that has unpacked many images. The next one looks at each bundle, and
// fetches none.
func TestRestartFetchesNothing(t *testing.T) {
	t.Parallel()
	n := restartBundles(t)
	host, requests := countedRegistry(t)
	reference := must(name.ParseReference(host + "/app:1"))(t)
	image := must(random.Image(4<<10, 1))(t)
	if err := remote.Write(reference, image); err != nil {
		t.Fatal(err)
	}
	digest := must(image.Digest())(t)
	s, client := standalone(t, "--unpack-workers=4")
	own := client.RukpakV1alpha1()

	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(4)
	for i := range n {
		group.Go(func() error {
			_, err := own.Bundles("default").Create(ctx, &v1alpha1.Bundle{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("app-%04d", i)},
				Spec: v1alpha1.BundleSpec{ProvisionerClassName: "raw", Source: v1alpha1.BundleSource{
					Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ImageSource{Reference: reference.Context().Digest(digest.String()).Name()},
				}},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	before := map[string]string{}
	for len(before) < n {
		eventually(t, "bundles are unpacked", func() string { return unpacked(t, client, before, n) })
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	requests.Store(0)
	begin := time.Now()
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready := time.Now()
	got := must(own.RESTClient().Get().AbsPath(contentPath("default", fmt.Sprintf("app-%04d", n-1))).Do(t.Context()).Raw())(t)
	first := time.Since(ready)
	if digestOf(got) != before[fmt.Sprintf("app-%04d", n-1)] {
		t.Errorf("other content is served: %s", digestOf(got))
	}
	eventually(t, "each bundle was looked at", func() string {
		metrics := string(must(own.RESTClient().Get().AbsPath("/metrics").Do(t.Context()).Raw())(t))
		for line := range strings.Lines(metrics) {
			value, found := strings.CutPrefix(line, `workqueue_work_duration_seconds_count{name="rukpak_unpack"} `)
			if looked, err := strconv.ParseFloat(strings.TrimSpace(value), 64); found && err == nil && int(looked) >= n {
				return ""
			}
		}
		return "not all of them were"
	})
	if asked := requests.Load(); asked > 0 {
		t.Errorf("the registry was asked %d times", asked)
	}
	after := map[string]string{}
	if missing := unpacked(t, client, after, n); missing != "" {
		t.Error(missing)
	}
	t.Logf("%d bundles: %v from the start to ready, %v from then to the first content, %v until all were looked at", n,
		ready.Sub(begin).Round(time.Millisecond), first.Round(time.Millisecond), time.Since(ready).Round(time.Millisecond))
}

// unpacked notes the digest of each bundle that is Unpacked, and says how many are not.
func unpacked(t *testing.T, client clientset.Interface, digests map[string]string, n int) string {
	t.Helper()
	list := must(client.RukpakV1alpha1().Bundles("default").List(t.Context(), metav1.ListOptions{}))(t)
	before := len(digests)
	for _, b := range list.Items {
		if b.Status.Phase == v1alpha1.BundleUnpacked && b.Status.Content != nil {
			digests[b.Name] = b.Status.Content.Digest
		}
	}
	// Whatever their number: as long as it grows, the test has patience.
	if len(digests) == before && before < n {
		return fmt.Sprintf("%d of %d", len(digests), n)
	}
	return ""
}
