// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package replicas

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/cmd/etcdcerts"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/test/integration/harness"
)

// soon is how quickly a request has to fail that cannot be served.
const soon = 10 * time.Second

// heals is how long it may take until all is well once the cause is gone.
const heals = time.Minute

// code is the status of an error of the API, 0 if there is none.
func code(err error) int {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return int(status.Status().Code)
	}
	return 0
}

// stored is a bundle with content.
type stored struct {
	name, digest string
	body         []byte
}

func newStored(t *testing.T, class, name string, size int) stored {
	t.Helper()
	newBundle(t, class, name)
	s := stored{name: name}
	s.body, s.digest = archive(t, 7, size)
	if _, err := upload(t.Context(), name, s.body); err != nil {
		t.Fatal(err)
	}
	return s
}

// calls are the kinds of requests that need etcd.
func (s stored) calls() map[string]func(context.Context) error {
	own := shared.Rukpak.RukpakV1alpha1().RESTClient()
	path := "/apis/rukpak.io/v1alpha1/namespaces/" + namespace + "/bundles"
	return map[string]func(context.Context) error{
		"get":  func(ctx context.Context) error { return own.Get().AbsPath(path, s.name).MaxRetries(0).Do(ctx).Error() },
		"list": func(ctx context.Context) error { return own.Get().AbsPath(path).MaxRetries(0).Do(ctx).Error() },
		"delete": func(ctx context.Context) error {
			return own.Delete().AbsPath(path, "nobody").MaxRetries(0).Do(ctx).Error()
		},
		"read content": func(ctx context.Context) error {
			return own.Get().AbsPath(path, s.name, "content").MaxRetries(0).Do(ctx).Error()
		},
		"write content": func(ctx context.Context) error {
			_, err := bundles().PutContent(ctx, s.name, bytes.NewReader(s.body), typed.PutContentOptions{})
			return err
		},
	}
}

// failsSoon makes all calls once, each of which has to be answered with 503 soon.
func (s stored) failsSoon(t *testing.T) {
	t.Helper()
	for name, call := range s.calls() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		begin := time.Now()
		err := call(ctx)
		cancel()
		if took := time.Since(begin); code(err) != http.StatusServiceUnavailable || took > soon {
			t.Errorf("%s: answered after %v with %v", name, took, err)
		}
	}
	// What a cluster needs of an API that does nothing goes on.
	if err := shared.Rukpak.Discovery().RESTClient().Get().AbsPath("/apis/rukpak.io/v1alpha1").MaxRetries(0).Do(t.Context()).Error(); err != nil {
		t.Errorf("discovery: %v", err)
	}
}

// healed waits until all is served by every replica, and by itself.
func (s stored) healed(t *testing.T) {
	t.Helper()
	eventually(t, "all is served again", heals, func(ctx context.Context) error {
		got, err := download(ctx, s.name, 64<<20)
		if err == nil && got != s.digest {
			err = fmt.Errorf("digest %s in place of %s", got, s.digest)
		}
		if err == nil {
			_, err = bundles().PutContent(ctx, s.name, bytes.NewReader(s.body), typed.PutContentOptions{})
		}
		return err
	})
	for i, server := range shared.Servers {
		eventually(t, fmt.Sprintf("replica %d is healthy", i), heals, func(ctx context.Context) error {
			_, err := shared.Fetch(ctx, server, "/healthz")
			return err
		})
	}
	everythingIsThere(t, map[string]string{s.name: s.digest})
}

// waitUnhealthy waits until each replica knows that etcd does not answer.
func waitUnhealthy(t *testing.T) {
	t.Helper()
	for i, server := range shared.Servers {
		eventually(t, fmt.Sprintf("replica %d says that etcd is away", i), patience, func(ctx context.Context) error {
			if _, err := shared.Fetch(ctx, server, "/healthz"); err == nil {
				return errors.New("it is healthy")
			}
			return nil
		})
	}
}

// unharmed makes sure that no replica was restarted, and none lost its place behind the Service.
func unharmed(t *testing.T) func() {
	t.Helper()
	var pids []int
	for _, s := range shared.Servers {
		pids = append(pids, s.PID())
	}
	return func() {
		t.Helper()
		for i, s := range shared.Servers {
			if !s.Running() || s.PID() != pids[i] {
				t.Errorf("replica %d did not live through it", i)
			}
			if _, err := shared.Fetch(t.Context(), s, "/readyz"); err != nil {
				t.Errorf("replica %d: %v", i, err)
			}
		}
	}
}

func TestOneMemberOfEtcdIsAway(t *testing.T) {
	check := unharmed(t)
	s := newStored(t, "raw", "one-away", 1<<20)
	for _, m := range shared.etcd.Members {
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
		s.healed(t)
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	check()
}

// TestEtcdIsAway takes etcd away in several ways while clients read and write, who have patience. Others get their
// errors soon.
func TestEtcdIsAway(t *testing.T) {
	check := unharmed(t)
	idle := resources(t)
	stop, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := startLoad(t, stop, "raw")
	s := newStored(t, "raw", "away", 1<<20)
	each := func(wire func(*harness.Wire)) func(*testing.T) {
		return func(*testing.T) {
			for _, w := range shared.wires {
				wire(w)
			}
		}
	}
	for _, fault := range []struct {
		name      string
		harm, fix func(*testing.T)
	}{
		{"killed", killMembers, startMembers},
		{"cut off", each((*harness.Wire).Cut), each((*harness.Wire).Mend)},
		// Each answer takes 5 s, of the store in it too.
		{"slow", each(func(w *harness.Wire) { w.Slow(5 * time.Second) }), each(func(w *harness.Wire) { w.Slow(0) })},
	} {
		t.Run(fault.name, func(t *testing.T) {
			reads, writes := l.reads.Load(), l.writes.Load()
			fault.harm(t)
			waitUnhealthy(t)
			s.failsSoon(t)
			check()
			fault.fix(t)
			s.healed(t)
			check()
			eventually(t, "clients go on", heals, func(context.Context) error {
				if l.reads.Load() < reads+readers || l.writes.Load() < writes+writers {
					return fmt.Errorf("%d downloads and %d uploads ended", l.reads.Load()-reads, l.writes.Load()-writes)
				}
				return nil
			})
		})
	}
	cancel()
	l.working.Wait()
	everythingIsThere(t, l.digest)
	eventually(t, "no leaks", 3*time.Minute, func(context.Context) error { return idle.compare(t) })
}

func killMembers(t *testing.T) {
	for _, m := range shared.etcd.Members {
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

func startMembers(t *testing.T) {
	for _, m := range shared.etcd.Members {
		if err := m.Begin(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificatesOfEtcdAreRenewed renews the certificates under all that use them, of which nothing is restarted.
func TestCertificatesOfEtcdAreRenewed(t *testing.T) {
	check := unharmed(t)
	s := newStored(t, "raw", "renewed", 1<<20)
	file := filepath.Join(shared.Dir, "e", "client", "tls.crt")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	reconnect := func() {
		for _, w := range shared.wires {
			w.Cut()
			w.Mend()
		}
	}
	// What cannot be read keeps replicas from connecting anew: so they read it for each connection.
	if err := os.WriteFile(file, []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	reconnect()
	waitUnhealthy(t)
	if err := shared.etcd.RenewCertificates(t.Context(), time.Now().AddDate(0, 0, 80)); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(before, after) {
		t.Fatal("the certificates were not renewed")
	}
	s.healed(t)
	check()
	for _, m := range shared.etcd.Members {
		if err := m.Healthy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestAuthoritiesOfEtcdAreReplaced takes the steps of docs/ha.md. In each, members and replicas are restarted one after the other, as
// their controllers do it, and bundles are written meanwhile.
func TestAuthoritiesOfEtcdAreReplaced(t *testing.T) {
	s := newStored(t, "raw", "reissued", 1<<10)
	client := func(name string) string { return filepath.Join(shared.Dir, "e", "client", name) }
	old, err := tls.LoadX509KeyPair(client("tls.crt"), client("tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{etcdcerts.RotateBegin, etcdcerts.RotateFinish} {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, etcdcerts.RotateAnnotation, step)
		if _, err := shared.Kube.CoreV1().Secrets(harness.SystemNamespace).Patch(t.Context(), "rukpak-etcd-ca", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := shared.etcd.RenewCertificates(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		for i, m := range shared.etcd.Members {
			if err := m.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := m.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := shared.Restart(t.Context(), i); err != nil {
				t.Fatal(err)
			}
			s.written(t)
		}
	}
	trusted, err := os.ReadFile(client("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(trusted)
	for i, m := range shared.etcd.Members {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		if err := harness.Probe(ctx, m.URL+"/health", &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{old}}); err == nil {
			t.Errorf("member %d takes a certificate of the old authority", i)
		}
		cancel()
		if err := m.Healthy(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s.healed(t)
}

// written waits until the content is taken, by whichever replica gets it.
func (s stored) written(t *testing.T) {
	t.Helper()
	eventually(t, "content is written", heals, func(ctx context.Context) error {
		_, err := bundles().PutContent(ctx, s.name, bytes.NewReader(s.body), typed.PutContentOptions{})
		return err
	})
}

// TestAnyReplicaTakesTheLead kills the one that leads; another one goes on with its work.
func TestAnyReplicaTakesTheLead(t *testing.T) {
	holder := func(ctx context.Context) (string, error) {
		lease, err := shared.Kube.CoordinationV1().Leases("rukpak-system").Get(ctx, "rukpak-apiserver", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			return "", errors.New("nobody leads")
		}
		return *lease.Spec.HolderIdentity, nil
	}
	var first string
	eventually(t, "somebody leads", patience, func(ctx context.Context) (err error) {
		first, err = holder(ctx)
		return err
	})
	for i, s := range shared.Servers {
		if first != fmt.Sprintf("rukpak-apiserver-%d", i) {
			continue
		}
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another one leads", patience, func(ctx context.Context) error {
			now, err := holder(ctx)
			if err == nil && now == first {
				err = fmt.Errorf("%s leads", now)
			}
			return err
		})
		// Reads and writes never needed it.
		s := newStored(t, "raw", "led", 1<<10)
		if err := shared.Servers[i].Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := shared.Balancer.Ready(t.Context(), i, true); err != nil {
			t.Fatal(err)
		}
		s.healed(t)
		return
	}
	t.Fatalf("%q leads", first)
}
