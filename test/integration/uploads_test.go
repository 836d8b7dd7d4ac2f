// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/test/integration/harness"
)

func uploadsPath(namespace, name string) string {
	return "/apis/rukpak.io/v1alpha1/namespaces/" + namespace + "/bundles/" + name + "/uploads"
}

// uploader may do what artifacts/deploy lets editors do.
func uploader(t *testing.T, namespace string) user {
	t.Helper()
	return newUser(t, namespace, rule("bundles/content", "get", "update"), rule("bundles/uploads", "create", "delete", "get", "patch"))
}

func part(offset int, complete string) []string {
	return []string{"Content-Type", "application/partial-upload", "Upload-Offset", fmt.Sprint(offset), "Upload-Complete", complete}
}

func (r reply) has(t *testing.T, headers ...string) reply {
	t.Helper()
	for i := 0; i+1 < len(headers); i += 2 {
		if got := r.header.Get(headers[i]); got != headers[i+1] {
			t.Errorf("answer %d has %s: %q, want %q", r.code, headers[i], got, headers[i+1])
		}
	}
	return r
}

// location is the path that a client finds the upload at, by the answer to a request to another.
func (r reply) location(t *testing.T, base string) string {
	t.Helper()
	to := must(must(url.Parse(base))(t).Parse(r.header.Get("Location")))(t)
	if to.Host != "" || !strings.HasPrefix(to.Path, base+"/") {
		t.Fatalf("Location is %q", r.header.Get("Location"))
	}
	return to.Path
}

// The protocol survives the way through kube-apiserver: methods, header fields and codes.
func TestUploadInParts(t *testing.T) {
	clean := noDebris(t)
	for _, w := range bothWays(t) {
		t.Run(w.name, func(t *testing.T) {
			namespace := newNamespace(t)
			u := uploader(t, namespace)
			create(t, namespace, uploadBundle("app", "raw"))
			body := tarOf(t, noise("data", 1, 3<<20))
			want := canonical(t, noise("data", 1, 3<<20))
			send := func(method, path string, body []byte, headers ...string) reply {
				t.Helper()
				return w.do(t, method, path, u.token, bytes.NewReader(body), headers...)
			}
			r := send(http.MethodPost, uploadsPath(namespace, "app"), nil, "Upload-Complete", "?0", "Upload-Length", fmt.Sprint(len(body)), "Repr-Digest", field(body)).
				expect(t, http.StatusCreated, `"offset":0`).has(t, "Upload-Offset", "0", "Upload-Complete", "?0")
			path := r.location(t, uploadsPath(namespace, "app"))
			half := len(body) / 2
			send(http.MethodPatch, path, body[:half], append(part(0, "?0"), "Content-Digest", field(body[:half]))...).
				expect(t, http.StatusNoContent).has(t, "Upload-Offset", fmt.Sprint(half))
			send(http.MethodPatch, path, body[:half], part(0, "?0")...).
				expect(t, http.StatusConflict, "MismatchingUploadOffset").has(t, "Upload-Offset", fmt.Sprint(half))
			send(http.MethodHead, path, nil).expect(t, http.StatusOK).
				has(t, "Upload-Offset", fmt.Sprint(half), "Upload-Length", fmt.Sprint(len(body)), "Upload-Complete", "?0")
			tag := `"` + digestOf(want) + `"`
			send(http.MethodPatch, path, body[half:], part(half, "?1")...).expect(t, http.StatusCreated, digestOf(want)).has(t, "ETag", tag, "Upload-Complete", "?1")
			send(http.MethodPatch, path, nil, part(len(body), "?1")...).expect(t, http.StatusOK, digestOf(want)).has(t, "ETag", tag)
			if got := send(http.MethodGet, contentPath(namespace, "app"), nil).expect(t, http.StatusOK).body; !bytes.Equal(got, want) {
				t.Error("the content is not what was uploaded")
			}
			path = send(http.MethodPost, uploadsPath(namespace, "app"), body[:half]).expect(t, http.StatusCreated).location(t, uploadsPath(namespace, "app"))
			send(http.MethodDelete, path, nil).expect(t, http.StatusNoContent)
			send(http.MethodGet, path, nil).expect(t, http.StatusNotFound, "UploadNotFound")
		})
	}
	t.Run("over a bad line", uploadOverABadLine)
	clean()
}

// Every verb is needed, and besides the one that writes content at once.
func TestWhoMayUpload(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, uploadBundle("app", "raw"))
	path := uploadsPath(namespace, "app")
	for _, test := range []struct {
		name  string
		rules []rbacv1.PolicyRule
		code  int
	}{
		{"nothing", nil, http.StatusForbidden},
		{"content alone", []rbacv1.PolicyRule{rule("bundles/content", "get", "update")}, http.StatusForbidden},
		{"uploads alone", []rbacv1.PolicyRule{rule("bundles/uploads", "create", "get", "patch", "delete")}, http.StatusForbidden},
		{"both", []rbacv1.PolicyRule{rule("bundles/content", "update"), rule("bundles/uploads", "create")}, http.StatusCreated},
	} {
		u := newUser(t, namespace, test.rules...)
		for _, w := range bothWays(t) {
			t.Run(test.name+" "+w.name, func(t *testing.T) {
				w.do(t, http.MethodPost, path, u.token, nil).expect(t, test.code)
			})
		}
	}
}

// uploadOverABadLine cuts the client's connections to kube-apiserver again and again.
func uploadOverABadLine(t *testing.T) {
	namespace := newNamespace(t)
	u := uploader(t, namespace)
	create(t, namespace, uploadBundle("app", "raw"))
	const cuts = 12
	var left atomic.Int64
	left.Store(cuts)
	config := rest.AnonymousClientConfig(shared.Config)
	config.BearerToken, config.QPS = u.token, -1
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &weakConn{Conn: conn, bytes: 1500 << 10, left: &left}, err
	}
	client := must(clientset.NewForConfig(config))(t)
	body := tarOf(t, noise("data", 7, 12<<20))
	want := canonical(t, noise("data", 7, 12<<20))
	b := must(client.RukpakV1alpha1().Bundles(namespace).UploadContent(t.Context(), "app", bytes.NewReader(body), int64(len(body)),
		typed.UploadContentOptions{ChunkSize: 4 << 20, IfNone: true}))(t)
	if b.Status.Content.Digest != digestOf(want) {
		t.Errorf("the content is %s, not %s", b.Status.Content.Digest, digestOf(want))
	}
	if n := left.Load(); n > cuts/2 {
		t.Errorf("the line was cut only %d times", cuts-n)
	}
}

// weakConn ends after some bytes, as long as cuts are left.
type weakConn struct {
	net.Conn
	bytes int
	left  *atomic.Int64
}

func (c *weakConn) Write(p []byte) (int, error) {
	if c.bytes -= len(p); c.bytes < 0 && c.left.Add(-1) >= 0 {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// TestKilledUploadsGoOn kills a server at each point that an upload passes. The client goes on when it is back, and
// nothing is left over.
func TestKilledUploadsGoOn(t *testing.T) {
	plan := filepath.Join(t.TempDir(), "failpoints")
	t.Setenv("RUKPAK_FAILPOINTS", "@"+plan)
	programs := shared.Programs
	programs.Server = filepath.Join(shared.Root, "_output", "integration", "rukpak-apiserver-failpoints")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "failpoints", "-ldflags", "-s -w", "-o", programs.Server, "./cmd/rukpak-apiserver")
	build.Dir = shared.Root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the server with failpoints: %v: %s", err, out)
	}
	s := must(harness.StartStandalone(t.Context(), programs, t.TempDir(), "--content-gc-grace=4s"))(t)
	defer func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	}()
	client := must(s.Client())(t)
	eventually(t, "default classes", func() string {
		_, err := client.RukpakV1alpha1().ProvisionerClasses().Get(t.Context(), "raw", metav1.GetOptions{})
		return problem(err)
	})
	own := client.RukpakV1alpha1().Bundles("default")
	must(own.Create(t.Context(), uploadBundle("app", "raw"), metav1.CreateOptions{}))(t)
	before := ""
	for i, point := range []string{
		"upload/after-reference", "upload/after-blob", "upload/after-session", "upload/after-session@2", "upload/after-commit", "upload/after-finish",
		"content/after-write@2", "content/before-rename", "content/after-rename", "content/after-upload", "content/after-reference", "content/after-blob", "content/after-status",
	} {
		t.Run(point, func(t *testing.T) {
			name, at, counted := strings.Cut(point, "@")
			action := name + "=exit"
			if counted {
				action += "@" + at
			}
			if err := os.WriteFile(plan, []byte(action), 0o600); err != nil {
				t.Fatal(err)
			}
			// Of two parts one grows when the other comes.
			files := noise("data", uint64(i), 2<<20)
			body, want := tarOf(t, files), digestOf(canonical(t, files))
			ended := make(chan error, 1)
			options := typed.UploadContentOptions{ChunkSize: 600 << 10, IfDigest: before, IfNone: before == ""}
			go func() {
				b, err := own.UploadContent(t.Context(), "app", bytes.NewReader(body), int64(len(body)), options)
				if err == nil && b.Status.Content.Digest != want {
					err = fmt.Errorf("the content is %s", b.Status.Content.Digest)
				}
				ended <- err
			}()
			before = want
			eventually(t, "the server is killed", func() string {
				if s.Running() {
					return "it runs"
				}
				return ""
			})
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(patience):
				t.Fatal("the upload does not end")
			}
		})
		if t.Failed() {
			t.Log(s.Log())
			return
		}
	}
	eventually(t, "no debris after the crashes", func() string {
		list := must(own.List(t.Context(), metav1.ListOptions{}))(t)
		return debris(s.Dir, list, nil)
	})
}
