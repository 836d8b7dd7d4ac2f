// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package replicas

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/bucket"
	"rukpak.io/apiserver/pkg/content/s3test"
	"rukpak.io/apiserver/test/integration/harness"
)

const (
	bucketName = "rukpak"
	// patient is how quickly a request has to fail that needs a bucket which does not answer: it is tried again for 20 s.
	patient = 40 * time.Second
)

// inBucket gives all replicas a store of that name in a bucket of an S3 server, as long as the test runs. It returns a
// class that uses it, the wire that leads there, and the store itself. No two tests use the same name: a store
// that is empty where it was not is refused.
func inBucket(t *testing.T, name string, server *s3test.Server) (class string, wire *harness.Wire, store content.Store) {
	t.Helper()
	wire, err := harness.StartWire(server.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := wire.Stop(); err != nil {
			t.Error(err)
		}
	})
	direct := server.Bucket(t, bucketName, "")
	server.Setenv(t)
	if store, err = bucket.Open(t.Context(), direct, bucket.Options{}); err != nil {
		t.Fatal(err)
	}
	far := *direct
	query := far.Query()
	query.Set("endpoint", wire.URL)
	far.RawQuery = query.Encode()
	undo, err := shared.Reconfigure(t.Context(), []string{"--content-store=" + name + "=" + far.String()}, server.Environ)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		if err := undo(ctx); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	classes := shared.Rukpak.RukpakV1alpha1().ProvisionerClasses()
	made, err := classes.Create(t.Context(), &v1alpha1.ProvisionerClass{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bucket-"}, Provisioner: "rukpak.io/raw", Store: name,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := classes.Delete(context.Background(), made.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return made.Name, wire, store
}

func TestBucket(t *testing.T) {
	class, wire, store := inBucket(t, "large", s3test.Start(t))
	t.Run("killed replicas", func(t *testing.T) { killReplicas(t, class, store) })
	t.Run("is away", func(t *testing.T) { bucketIsAway(t, class, wire) })
}

// bucketIsAway cuts a bucket off, and makes it slow. Objects are served as ever.
func bucketIsAway(t *testing.T, class string, wire *harness.Wire) {
	check := unharmed(t)
	s := newStored(t, class, "away", 1<<20)
	calls := s.calls()
	t.Run("cut off", func(t *testing.T) {
		wire.Cut()
		for _, name := range []string{"read content", "write content"} {
			took, err := timed(t, calls[name])
			t.Logf("%s: failed after %v: %v", name, took, err)
			if code(err) != http.StatusServiceUnavailable || took > patient {
				t.Errorf("%s: answered after %v with %v", name, took, err)
			}
		}
		for _, name := range []string{"get", "list"} {
			if took, err := timed(t, calls[name]); err != nil || took > soon {
				t.Errorf("%s: answered after %v with %v", name, took, err)
			}
		}
		check()
		wire.Mend()
		s.healed(t)
	})
	t.Run("slow", func(t *testing.T) {
		wire.Slow(5 * time.Second)
		for _, name := range []string{"read content", "write content"} {
			took, err := timed(t, calls[name])
			t.Logf("%s: answered after %v with %v", name, took, err)
			if err != nil && code(err) != http.StatusServiceUnavailable || took > time.Minute {
				t.Errorf("%s: answered after %v with %v", name, took, err)
			}
		}
		for _, name := range []string{"get", "list"} {
			if took, err := timed(t, calls[name]); err != nil || took > soon {
				t.Errorf("%s: answered after %v with %v", name, took, err)
			}
		}
		check()
		wire.Slow(0)
		s.healed(t)
	})
	check()
}

func timed(t *testing.T, call func(context.Context) error) (time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	begin := time.Now()
	err := call(ctx)
	return time.Since(begin).Round(time.Millisecond), err
}

// TestBucketIsFull fills the disk of an S3 server. What is there is served, more is refused, and when something was
// deleted there is room again.
func TestBucketIsFull(t *testing.T) {
	class, _, _ := inBucket(t, "small", s3test.StartSmall(t, 16<<20, bucketName))
	check := unharmed(t)
	want := map[string]string{}
	var last string
	full := false
	for i := 0; !full; i++ {
		if i == 16 {
			t.Fatal("32 MiB fit on a disk of 16")
		}
		last = fmt.Sprintf("full-%d", i)
		newBundle(t, class, last)
		body, digest := archive(t, uint64(i), 2<<20)
		_, err := upload(t.Context(), last, body)
		switch {
		case err == nil:
			want[last] = digest
		case code(err) == http.StatusInsufficientStorage:
			full = true
		default:
			t.Fatal(err)
		}
	}
	everythingIsThere(t, want)
	check()
	for name := range want {
		if err := bundles().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		delete(want, name)
		break
	}
	body, digest := archive(t, 99, 1<<20)
	eventually(t, "there is room again", collectLimit, func(ctx context.Context) error {
		_, err := upload(ctx, last, body)
		return err
	})
	want[last] = digest
	everythingIsThere(t, want)
	check()
}
