// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/tarball"
)

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func lister(b *strings.Builder) tarball.Visitor {
	return func(e tarball.Entry, content io.Reader) error {
		text, err := io.ReadAll(content)
		fmt.Fprintf(b, "%c %v %q -> %q %q\n", e.Type, e.Mode, e.Name, e.Linkname, text)
		return err
	}
}

func TestResolve(t *testing.T) {
	host := serve(t, nil)
	img := imageOf(t, layerOf(t, file0644("a", "a")))
	want := push(t, host+"/team/app:v1", img)
	idx := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})
	ref, err := name.ParseReference(host + "/team/app:idx")
	must(t, err)
	must(t, remote.WriteIndex(ref, idx))
	idxDigest, err := idx.Digest()
	must(t, err)
	digest := "sha256:" + strings.Repeat("0", 64)
	for reference, want := range map[string]string{
		host + "/team/app:v1":            want,
		host + "/team/app:idx":           host + "/team/app@" + idxDigest.String(),
		want:                             want,
		host + "/team/app:tag@" + digest: host + "/team/app@" + digest,
		"app@" + digest:                  "docker.io/library/app@" + digest,
	} {
		got, err := New().Resolve(t.Context(), reference)
		if err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", reference, got, err, want)
		}
	}
}

// TestResolveWithoutDigestHeader meets a registry that leaves the optional header out.
func TestResolveWithoutDigestHeader(t *testing.T) {
	host := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(headerless{w}, r)
		})
	})
	img := imageOf(t, layerOf(t, file0644("a", "a")))
	want := push(t, host+"/app:v1", img)
	got, err := New().Resolve(t.Context(), host+"/app:v1")
	if err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

type headerless struct{ http.ResponseWriter }

func (h headerless) WriteHeader(code int) {
	h.Header().Del("Docker-Content-Digest")
	h.ResponseWriter.WriteHeader(code)
}

func TestErrorsAreToldApart(t *testing.T) {
	answer := func(code int) string {
		return serve(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v2/" {
					next.ServeHTTP(w, r)
					return
				}
				w.WriteHeader(code)
			})
		})
	}
	unknown := httptest.NewTLSServer(http.NotFoundHandler())
	defer unknown.Close()
	secret := strings.TrimPrefix(unknown.URL, "https://")
	dead := httptest.NewServer(http.NotFoundHandler())
	gone := strings.TrimPrefix(dead.URL, "http://")
	dead.Close()
	digest := "@sha256:" + strings.Repeat("0", 64)
	for _, test := range []struct {
		name, reference string
		want            error
	}{
		{"no reference", "UPPER/case:v1", ErrInvalidReference},
		{"a tag that is not there", serve(t, nil) + "/app:v1", ErrNotFound},
		{"a digest that is not there", serve(t, nil) + "/app" + digest, ErrNotFound},
		{"401", answer(http.StatusUnauthorized) + "/app:v1", ErrUnauthorized},
		{"403", answer(http.StatusForbidden) + "/app" + digest, ErrUnauthorized},
		{"429", answer(http.StatusTooManyRequests) + "/app:v1", ErrTooManyRequests},
		{"503", answer(http.StatusServiceUnavailable) + "/app" + digest, ErrUnreachable},
		{"nobody listens", gone + "/app:v1", ErrUnreachable},
		{"unknown authority", secret + "/app:v1", ErrNotTrusted},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := New()
			resolved, err := p.Resolve(t.Context(), test.reference)
			if err == nil {
				_, err = p.Pack(t.Context(), resolved, platform.Platform{}, "", discard{}, tarball.Limits{}, t.TempDir())
			}
			for _, kind := range []error{ErrInvalidReference, ErrNotFound, ErrUnauthorized, ErrTooManyRequests, ErrUnreachable, ErrNotTrusted, ErrInvalidImage} {
				if errors.Is(err, kind) != (kind == test.want) {
					t.Errorf("got %v, want %q alone", err, test.want)
				}
			}
			if err != nil && !strings.Contains(err.Error(), test.reference) && test.want != ErrInvalidReference {
				t.Errorf("%q does not name the image", err)
			}
		})
	}
}

// TestBearerTokenIsFetchedAnonymously walks the way of public registries that
// want a token, which they give to everybody.
func TestBearerTokenIsFetchedAnonymously(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	must(t, os.WriteFile(path.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(`{"auths":{"http://127.0.0.1":{"auth":"dXNlcjpwYXNz"}}}`), 0o600))
	var open atomic.Bool
	host := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch auth := r.Header.Get("Authorization"); {
			case open.Load():
				next.ServeHTTP(w, r)
			case r.URL.Path == "/token":
				if auth != "" {
					t.Errorf("the token server got the credentials %q", auth)
				}
				io.WriteString(w, `{"token":"anybody"}`)
			case auth == "Bearer anybody":
				next.ServeHTTP(w, r)
			default:
				w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="test"`)
				w.WriteHeader(http.StatusUnauthorized)
			}
		})
	})
	open.Store(true)
	want := push(t, host+"/app:v1", imageOf(t, layerOf(t, file0644("a", "a"))))
	open.Store(false)
	resolved, err := New().Resolve(t.Context(), host+"/app:v1")
	if err != nil || resolved != want {
		t.Fatalf("got %s, %v; want %s", resolved, err, want)
	}
	_, err = New().Pack(t.Context(), resolved, platform.Platform{}, "", discard{}, tarball.Limits{}, t.TempDir())
	must(t, err)
}

// TestPlainHTTPIsForLoopbackOnly asks private addresses, where the library
// would fall back to plain HTTP. A transport stands in for the network.
func TestPlainHTTPIsForLoopbackOnly(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1:5000": true, "localhost:5000": true, "[::1]:5000": true,
		"10.0.0.1:5000": false, "192.168.1.1": false, "registry.local": false, "registry.example": false,
	} {
		var plain atomic.Bool
		p := New()
		p.transport = through(func(r *http.Request) (*http.Response, error) {
			if r.URL.Scheme == "http" {
				plain.Store(true)
			}
			return nil, errors.New("no network")
		})
		_, err := p.Resolve(t.Context(), host+"/app:v1")
		if !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: got %v, want ErrUnreachable", host, err)
		}
		if plain.Load() != want {
			t.Errorf("%s: plain HTTP spoken: %v, want %v", host, plain.Load(), want)
		}
	}
}

// TestRedirectToPlainHTTPIsRefused covers the way by which a registry could
// make this process read from its own host.
func TestRedirectToPlainHTTPIsRefused(t *testing.T) {
	var reached atomic.Bool
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer inner.Close()
	p := New()
	p.transport = through(func(r *http.Request) (*http.Response, error) {
		if r.URL.Host != "registry.example" {
			return http.DefaultTransport.RoundTrip(r)
		}
		return &http.Response{
			StatusCode: http.StatusFound, Request: r, Body: http.NoBody,
			Header: http.Header{"Location": {inner.URL + "/"}},
		}, nil
	})
	_, err := p.Resolve(t.Context(), "registry.example/app:v1")
	if !errors.Is(err, errPlainHTTP) || reached.Load() {
		t.Errorf("got %v, reached: %v; want a refusal", err, reached.Load())
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// through makes a Puller's transport of a function.
func through(f roundTripper) func() (http.RoundTripper, error) {
	return func() (http.RoundTripper, error) { return f, nil }
}

func TestPackTakesTheImageOfThePlatform(t *testing.T) {
	host := serve(t, nil)
	image := func(text string) v1.Image { return imageOf(t, layerOf(t, file0644("which", text))) }
	add := func(text string, p *v1.Platform) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: image(text), Descriptor: v1.Descriptor{MediaType: types.OCIManifestSchema1, Platform: p}}
	}
	attestation := add("attestation", &v1.Platform{OS: "unknown", Architecture: "unknown"})
	arm := func(variant string) *v1.Platform {
		return &v1.Platform{OS: "linux", Architecture: "arm64", Variant: variant}
	}
	amd := func(variant string) *v1.Platform {
		return &v1.Platform{OS: "linux", Architecture: "amd64", Variant: variant}
	}
	arm64 := platform.Platform{OS: "linux", Architecture: "arm64"}
	nested := mutate.IndexAddendum{
		Add:        mutate.AppendManifests(empty.Index, attestation, add("nested", arm(""))),
		Descriptor: v1.Descriptor{MediaType: types.OCIImageIndex, Platform: arm("")},
	}
	tests := []struct {
		name     string
		platform platform.Platform
		index    []mutate.IndexAddendum
		want     string // part of the content or of the error
		err      error
	}{
		{"exact", arm64, []mutate.IndexAddendum{attestation, add("amd64", amd("")), add("right", arm(""))}, "right", nil},
		{"baseline variant before others", arm64, []mutate.IndexAddendum{add("v9", arm("v9")), add("right", arm("v8"))}, "right", nil},
		{"other variant", arm64, []mutate.IndexAddendum{add("v9", arm("v9"))}, "v9", nil},
		{"the variant that is asked for", platform.Platform{OS: "linux", Architecture: "arm64", Variant: "v9"}, []mutate.IndexAddendum{add("v8", arm("v8")), add("right", arm("v9"))}, "right", nil},
		{"the baseline is asked for, and not named", platform.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}, []mutate.IndexAddendum{add("v9", arm("v9")), add("right", arm(""))}, "right", nil},
		{"a variant that is not there", platform.Platform{OS: "linux", Architecture: "amd64", Variant: "v3"}, []mutate.IndexAddendum{add("v1", amd(""))}, "none for linux/amd64/v3, only for linux/amd64", ErrPlatform},
		{"no platform", arm64, []mutate.IndexAddendum{attestation, add("neutral", nil)}, "neutral", nil},
		{"nested", arm64, []mutate.IndexAddendum{nested}, "nested", nil},
		{"none", arm64, []mutate.IndexAddendum{add("amd64", amd("")), attestation}, "none for linux/arm64, only for linux/amd64, unknown/unknown", ErrPlatform},
		{"this program's own", platform.Platform{}, []mutate.IndexAddendum{
			add("other", &v1.Platform{OS: "linux", Architecture: "mips"}), add("right", &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		}, "right", nil},
		{"empty", arm64, nil, "holds no image", ErrNoImage},
	}
	p := New()
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ref, err := name.ParseReference(fmt.Sprintf("%s/platform:%d", host, i))
			must(t, err)
			must(t, remote.WriteIndex(ref, mutate.AppendManifests(empty.Index, test.index...)))
			resolved, err := p.Resolve(t.Context(), ref.String())
			must(t, err)
			var out writer
			_, err = p.Pack(t.Context(), resolved, test.platform, "", &out, tarball.Limits{}, t.TempDir())
			got := fmt.Sprint(err)
			if err == nil {
				got = list(t, out)
			}
			if !strings.Contains(got, test.want) {
				t.Errorf("got %s, want %q", got, test.want)
			}
			if err != nil && (!errors.Is(err, test.err) || !errors.Is(err, ErrInvalidImage)) {
				t.Errorf("got %v, want %v", err, test.err)
			}
		})
	}
}

type writer []byte

func (w *writer) Write(p []byte) (int, error) {
	*w = append(*w, p...)
	return len(p), nil
}

// TestLyingRegistries checks that nothing is taken that its digest does not name.
func TestLyingRegistries(t *testing.T) {
	honest := gzipped(t, tarOf(t, file0644("a", "honest")))
	lie := gzipped(t, tarOf(t, file0644("a", "a  lie")))
	tests := []struct {
		name  string
		alter func(w http.ResponseWriter, r *http.Request) bool // whether it answered
		want  error
	}{
		{"another layer", blobs(func(w http.ResponseWriter) { w.Write(lie) }), ErrInvalidImage},
		{"a longer layer", blobs(func(w http.ResponseWriter) { w.Write(append(honest[:len(honest):len(honest)], "more"...)) }), ErrInvalidImage},
		{"a shorter layer", blobs(func(w http.ResponseWriter) { w.Write(honest[:10]) }), ErrInvalidImage},
		{"a layer that breaks off", blobs(func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", fmt.Sprint(len(honest)))
			w.Write(honest[:10])
			panic(http.ErrAbortHandler)
		}), ErrUnreachable},
		{"another manifest", manifests(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			io.WriteString(w, `{"schemaVersion":2,"layers":[]}`)
		}), ErrInvalidImage},
		{"a manifest without end", manifests(func(w http.ResponseWriter) {
			for range 2 * maxResponse / 1024 {
				w.Write(make([]byte, 1024))
			}
		}), ErrInvalidImage},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var lying atomic.Bool
			host := serve(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if !lying.Load() || !test.alter(w, r) {
						next.ServeHTTP(w, r)
					}
				})
			})
			resolved := push(t, host+"/app:v1", imageOf(t, staticLayer(honest, types.OCILayer)))
			lying.Store(true)
			_, err := New().Pack(t.Context(), resolved, platform.Platform{}, "", discard{}, tarball.Limits{}, t.TempDir())
			if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

func blobs(answer func(http.ResponseWriter)) func(http.ResponseWriter, *http.Request) bool {
	return answerTo("/blobs/", answer)
}

func manifests(answer func(http.ResponseWriter)) func(http.ResponseWriter, *http.Request) bool {
	return answerTo("/manifests/", answer)
}

func answerTo(part string, answer func(http.ResponseWriter)) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, part) {
			return false
		}
		answer(w)
		return true
	}
}

func TestLayersThatAreNone(t *testing.T) {
	host := serve(t, nil)
	for name, layer := range map[string]v1.Layer{
		"chart":   staticLayer([]byte("x"), "application/vnd.cncf.helm.chart.content.v1.tar+gzip"),
		"garbage": staticLayer([]byte(strings.Repeat("garbage", 1000)), types.OCILayer),
		"gzip":    staticLayer([]byte("\x1f\x8b not a gzip at all"), types.OCILayer),
		"cut":     staticLayer(tarOf(t, file0644("a", strings.Repeat("a", 2000)))[:1024], types.OCIUncompressedLayer),
	} {
		resolved := push(t, host+"/none:"+name, imageOf(t, layer))
		_, err := New().Pack(t.Context(), resolved, platform.Platform{}, "", discard{}, tarball.Limits{}, t.TempDir())
		if !errors.Is(err, ErrInvalidImage) || errors.Is(err, ErrNoImage) != (name == "chart") {
			t.Errorf("%s: got %v, want ErrInvalidImage", name, err)
		}
	}
}

// hang answers requests for layers with a few bytes and then nothing.
func hang(t *testing.T, begun chan<- struct{}) string {
	release := make(chan struct{})
	var hanging atomic.Bool
	host := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !hanging.Load() || !strings.Contains(r.URL.Path, "/blobs/") {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Length", "100000")
			w.WriteHeader(http.StatusOK)
			http.NewResponseController(w).Flush()
			begun <- struct{}{}
			<-release
		})
	})
	t.Cleanup(func() { close(release) })
	resolved := push(t, host+"/app:v1", imageOf(t, layerOf(t, file0644("a", "a"))))
	hanging.Store(true)
	return resolved
}

func TestPackEndsWithItsContext(t *testing.T) {
	begun := make(chan struct{}, 1)
	resolved := hang(t, begun)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	scratch := t.TempDir()
	_, err := New().Pack(ctx, resolved, platform.Platform{}, "", discard{}, tarball.Limits{}, scratch)
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		t.Errorf("scratch holds %v, %v", left, err)
	}
}

func TestPackEndsWhenNothingArrives(t *testing.T) {
	p := New()
	p.stall = 20 * time.Millisecond
	_, err := p.Pack(t.Context(), hang(t, make(chan struct{}, 1)), platform.Platform{}, "", discard{}, tarball.Limits{}, t.TempDir())
	if !errors.Is(err, ErrUnreachable) || !errors.Is(err, errStalled) {
		t.Errorf("got %v, want a stalled ErrUnreachable", err)
	}
}

func TestPackReportsABrokenWriter(t *testing.T) {
	resolved := push(t, serve(t, nil)+"/app:v1", imageOf(t, layerOf(t, file0644("a", "a"))))
	broken := errors.New("broken")
	_, err := New().Pack(t.Context(), resolved, platform.Platform{}, "", failing{broken}, tarball.Limits{}, t.TempDir())
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want that of the writer", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
