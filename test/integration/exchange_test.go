// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apiserver"
	"rukpak.io/apiserver/test/integration/harness"
)

// TestEtcdIsExchanged puts an empty etcd under a server that runs, and then the right one again. At no moment is a bundle said not
// to be there.
func TestEtcdIsExchanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	etcd := must(harness.StartEtcd(t.Context(), shared.Programs, dir))(t)
	t.Cleanup(func() {
		if err := etcd.Kill(); err != nil {
			t.Error(err)
		}
	})
	s, client := standalone(t, "--etcd-servers="+etcd.URL)
	own := client.RukpakV1alpha1()
	must(own.Bundles("default").Create(t.Context(), uploadBundle("app", "raw"), metav1.CreateOptions{}))(t)
	if err := put(t.Context(), own.RESTClient(), contentPath("default", "app"), canonical(t, noise("data", 1, 100))); err != nil {
		t.Fatal(err)
	}
	get := func(path string) error {
		return own.RESTClient().Get().AbsPath(path).MaxRetries(0).Timeout(5 * time.Second).Do(t.Context()).Error()
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			for _, path := range []string{bundlePath("default", "app"), contentPath("default", "app")} {
				if err := get(path); apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
					t.Errorf("%s: %v", path, err)
					return
				}
			}
		}
	}()
	pid := s.PID()
	data := filepath.Join(dir, "etcd")
	exchange := func(from, to string) {
		t.Helper()
		if err := etcd.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(data, to); err != nil {
			t.Fatal(err)
		}
		if from != "" {
			if err := os.Rename(from, data); err != nil {
				t.Fatal(err)
			}
		}
		if err := etcd.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	exchange("", data+".right")
	eventually(t, "requests are refused", func() string {
		err := get(bundlePath("default", "app"))
		if !apierrors.HasStatusCause(err, apiserver.CauseInstanceMismatch) {
			return "answered with " + problem(err)
		}
		return missing(err.Error(), "store \"default\" belongs to instance")
	})
	if err := own.RESTClient().Get().AbsPath("/apis/rukpak.io/v1alpha1").Do(t.Context()).Error(); err != nil {
		t.Errorf("discovery: %v", err)
	}
	metrics := string(must(own.RESTClient().Get().AbsPath("/metrics").Do(t.Context()).Raw())(t))
	if !strings.Contains(metrics, "rukpak_instance_mismatch{place=\"store/default\",reason=\"EtcdUnmarked\"} 1") {
		t.Error("no metric says so")
	}
	exchange(data+".right", data+".empty")
	eventually(t, "content is served again", func() string { return problem(get(contentPath("default", "app"))) })
	stop()
	<-ended
	if !s.Running() || s.PID() != pid {
		t.Error("the server did not live through it")
	}
}
