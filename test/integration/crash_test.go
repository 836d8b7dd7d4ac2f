// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
	"rukpak.io/apiserver/test/integration/harness"
)

// crashes is how often the server is killed.
const crashes = 6

// standalone starts a server without a cluster, that ends with the test.
func standalone(t *testing.T, args ...string) (*harness.Server, clientset.Interface) {
	t.Helper()
	s, client := startStandalone(t, args...)
	eventually(t, "default classes", func() string {
		_, err := client.RukpakV1alpha1().ProvisionerClasses().Get(t.Context(), "raw", metav1.GetOptions{})
		return problem(err)
	})
	return s, client
}

// startStandalone starts a server that is ready when it returns.
func startStandalone(t *testing.T, args ...string) (*harness.Server, clientset.Interface) {
	t.Helper()
	return tended(t, must(harness.StartStandalone(t.Context(), shared.Programs, t.TempDir(), args...))(t))
}

// tended is a server that ends with the test, and its client.
func tended(t *testing.T, s *harness.Server) (*harness.Server, clientset.Interface) {
	t.Helper()
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(s.Log())
		}
	})
	return s, must(s.Client())(t)
}

// TestKilledServerHasOldContentOrNew kills the server while it takes an upload, at a random moment.
func TestKilledServerHasOldContentOrNew(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s, client := standalone(t, "--content-gc-grace=2s")
	api := client.RukpakV1alpha1().RESTClient()
	path := contentPath("default", "app")
	must(client.RukpakV1alpha1().Bundles("default").Create(t.Context(), uploadBundle("app", "raw"), metav1.CreateOptions{}))(t)

	old := canonical(t, noise("data", 0, 4<<20))
	begin := time.Now()
	if err := put(t.Context(), api, path, old); err != nil {
		t.Fatal(err)
	}
	whole := time.Since(begin)
	both := map[string]int{}
	for i := range crashes {
		next := canonical(t, noise("data", uint64(i)+1, 4<<20))
		ended := make(chan error, 1)
		go func() { ended <- put(t.Context(), api, path, next) }()
		moment := time.Duration(random.Int64N(int64(whole + whole/2)))
		select {
		case <-time.After(moment):
		case <-t.Context().Done():
		}
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		answer := <-ended
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := must(client.RukpakV1alpha1().Bundles("default").Get(t.Context(), "app", metav1.GetOptions{}))(t)
		got := must(api.Get().AbsPath(path).Do(t.Context()).Raw())(t)
		switch {
		case bytes.Equal(got, next):
			both["new"]++
			old = next
		case answer == nil:
			t.Fatalf("killed after %v: the upload was acknowledged, and is not served", moment)
		case bytes.Equal(got, old):
			both["old"]++
		default:
			t.Fatalf("killed after %v: %d bytes with digest %s are served", moment, len(got), digestOf(got))
		}
		if b.Status.Content.Digest != digestOf(got) || b.Status.Phase != v1alpha1.BundleUnpacked {
			t.Fatalf("killed after %v: status is %s, served is %s", moment, encode(t, b.Status), digestOf(got))
		}
	}
	t.Logf("after %d crashes: %v", crashes, both)
	eventually(t, "no debris after the crashes", func() string {
		list := must(client.RukpakV1alpha1().Bundles(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{}))(t)
		return debris(s.Dir, list, nil)
	})
}

func put(ctx context.Context, api rest.Interface, path string, body []byte) error {
	return api.Put().AbsPath(path).Body(body).SetHeader("Content-Type", "application/gzip").Do(ctx).Error()
}

// TestEtcdIsAway takes an etcd away from a server and gives it back.
func TestEtcdIsAway(t *testing.T) {
	t.Parallel()
	etcd := must(harness.StartEtcd(t.Context(), shared.Programs, t.TempDir()))(t)
	t.Cleanup(func() {
		if err := etcd.Kill(); err != nil {
			t.Error(err)
		}
	})
	s, client := standalone(t, "--etcd-servers="+etcd.URL)
	own := client.RukpakV1alpha1()
	must(own.Bundles("default").Create(t.Context(), uploadBundle("app", "raw"), metav1.CreateOptions{}))(t)
	content := canonical(t, noise("data", 1, 100))
	if err := put(t.Context(), own.RESTClient(), contentPath("default", "app"), content); err != nil {
		t.Fatal(err)
	}
	pid := s.PID()
	if err := etcd.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "health says so", func() string {
		if own.RESTClient().Get().AbsPath("/healthz").Do(t.Context()).Error() == nil {
			return "healthy"
		}
		return ""
	})
	// One that is restarted, or gets no requests, because of it would take discovery down too.
	for _, path := range []string{"/livez", "/readyz", "/apis", "/apis/rukpak.io/v1alpha1", "/openapi/v3"} {
		if err := own.RESTClient().Get().AbsPath(path).Do(t.Context()).Error(); err != nil {
			t.Errorf("without etcd %s is answered with %v", path, err)
		}
	}
	metricsWithoutEtcd(t, own.RESTClient())
	t.Run("calls fail", func(t *testing.T) { callsSayThatEtcdIsAway(t, client, content) })
	if err := etcd.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all heals", func() string {
		return problem(own.RESTClient().Get().AbsPath("/healthz").Do(t.Context()).Error())
	})
	eventually(t, "content is served", func() string {
		return problem(own.RESTClient().Get().AbsPath(contentPath("default", "app")).MaxRetries(0).Timeout(5 * time.Second).Do(t.Context()).Error())
	})
	if got := must(own.RESTClient().Get().AbsPath(contentPath("default", "app")).Do(t.Context()).Raw())(t); !bytes.Equal(got, content) {
		t.Errorf("other content is served: %s", digestOf(got))
	}
	must(own.Bundles("default").Create(t.Context(), uploadBundle("two", "raw"), metav1.CreateOptions{}))(t)
	if !s.Running() || s.PID() != pid {
		t.Error("the server did not live through it")
	}
}

// TestEtcdIsAwayAtTheStart starts a server before its etcd.
func TestEtcdIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	etcd := must(harness.StartEtcd(t.Context(), shared.Programs, t.TempDir()))(t)
	t.Cleanup(func() {
		if err := etcd.Kill(); err != nil {
			t.Error(err)
		}
	})
	if err := etcd.Kill(); err != nil {
		t.Fatal(err)
	}
	s, client := tended(t, must(harness.StartStandaloneAlive(t.Context(), shared.Programs, t.TempDir(), "--etcd-servers="+etcd.URL))(t))
	own := client.RukpakV1alpha1()
	for _, path := range []string{"/livez", "/apis", "/apis/rukpak.io/v1alpha1", "/openapi/v3"} {
		if err := own.RESTClient().Get().AbsPath(path).MaxRetries(0).Do(t.Context()).Error(); err != nil {
			t.Errorf("without etcd %s is answered with %v", path, err)
		}
	}
	// It may have been told a wrong etcd, with which it must not take the place of a replica that works.
	for path, check := range map[string]string{"/readyz": "etcd-reached", "/healthz": "etcd"} {
		err := own.RESTClient().Get().AbsPath(path).MaxRetries(0).Timeout(answers).Do(t.Context()).Error()
		if !strings.Contains(fmt.Sprint(err), "[-]"+check+" failed") || strings.Contains(fmt.Sprint(err), "[-]poststarthook") {
			t.Errorf("without etcd %s is answered with %v", path, err)
		}
	}
	metricsWithoutEtcd(t, own.RESTClient())
	content := canonical(t, noise("data", 1, 100))
	t.Run("calls fail", func(t *testing.T) { callsSayThatEtcdIsAway(t, client, content) })
	pid := s.PID()
	if err := etcd.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the default classes are there", func() string {
		_, err := own.ProvisionerClasses().Get(t.Context(), "raw", metav1.GetOptions{})
		return problem(err)
	})
	must(own.Bundles("default").Create(t.Context(), uploadBundle("app", "raw"), metav1.CreateOptions{}))(t)
	if err := put(t.Context(), own.RESTClient(), contentPath("default", "app"), content); err != nil {
		t.Fatal(err)
	}
	if got := must(own.RESTClient().Get().AbsPath(contentPath("default", "app")).Do(t.Context()).Raw())(t); !bytes.Equal(got, content) {
		t.Errorf("other content is served: %s", digestOf(got))
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		eventually(t, "health says so", func() string {
			return problem(own.RESTClient().Get().AbsPath(path).Do(t.Context()).Error())
		})
	}
	if raw := must(own.RESTClient().Get().AbsPath("/metrics").Do(t.Context()).Raw())(t); !strings.Contains(string(raw), sizeOfEtcd) {
		t.Errorf("there is no %s", sizeOfEtcd)
	}
	if !s.Running() || s.PID() != pid {
		t.Error("the server did not live through it")
	}
}

const (
	// answers bounds what is answered without etcd. A connection to etcd is waited for twice as long.
	answers = 10 * time.Second
	// sizeOfEtcd is the metric of the generic server that is measured in the scrape.
	sizeOfEtcd = "\napiserver_storage_size_bytes{"
)

// metricsWithoutEtcd expects metrics, but that which only etcd could tell.
func metricsWithoutEtcd(t *testing.T, api rest.Interface) {
	t.Helper()
	raw, err := api.Get().AbsPath("/metrics").MaxRetries(0).Timeout(answers).Do(t.Context()).Raw()
	if err != nil || !strings.Contains(string(raw), "\nrukpak_build_info{") || strings.Contains(string(raw), sizeOfEtcd) {
		t.Errorf("without etcd /metrics is answered with %v, %d bytes", err, len(raw))
	}
}

// callsSayThatEtcdIsAway makes all kinds of calls at once, each of which has to fail, soon and in words that say why.
func callsSayThatEtcdIsAway(t *testing.T, client clientset.Interface, content []byte) {
	own := client.RukpakV1alpha1()
	path := contentPath("default", "app")
	for name, call := range map[string]func(context.Context) error{
		"get": func(ctx context.Context) error {
			return own.RESTClient().Get().AbsPath(bundlePath("default", "app")).MaxRetries(0).Do(ctx).Error()
		},
		"create": func(ctx context.Context) error {
			return own.RESTClient().Post().AbsPath(bundlePath("default")).Body(typedBundle(uploadBundle("two", "raw"))).MaxRetries(0).Do(ctx).Error()
		},
		"read content": func(ctx context.Context) error {
			return own.RESTClient().Get().AbsPath(path).MaxRetries(0).Do(ctx).Error()
		},
		"write content": func(ctx context.Context) error {
			return own.RESTClient().Put().AbsPath(path).Body(content).MaxRetries(0).Do(ctx).Error()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := call(ctx)
			switch {
			case err == nil:
				t.Error("it succeeds")
			case ctx.Err() != nil:
				t.Error("it hangs")
			case !strings.Contains(err.Error(), "etcd"):
				t.Errorf("it fails with %v", err)
			}
		})
	}
}
