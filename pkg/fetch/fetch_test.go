// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package fetch_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/bundleclient/bundletest"
	"rukpak.io/apiserver/pkg/fetch"
	"rukpak.io/apiserver/pkg/tarball"
)

// patience bounds the wait for what happens by itself.
const patience = 30 * time.Second

func tree(mark string) fs.FS {
	return fstest.MapFS{"data/000.txt": {Data: []byte(mark), Mode: 0o644}}
}

// fetching is a Fetch from an API of its own.
func fetching(t *testing.T, dir string, tell ...fetch.Listener) (*bundletest.API, *fetch.Fetch) {
	t.Helper()
	a := bundletest.Start()
	t.Cleanup(a.Close)
	client, err := bundleclient.NewForConfig(a.Config(), bundleclient.Options{MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond, PollInterval: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return a, &fetch.Fetch{Client: client, Namespace: "team", Name: "app", Volume: openVolume(t, dir, fetch.VolumeOptions{}), Tell: tell}
}

// follow begins to follow, until the function that it returns is called.
func follow(t *testing.T, f *fetch.Fetch) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Follow(ctx) }()
	end = func() {
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			ended <- err
		case <-time.After(patience):
			t.Error("it did not end")
		}
	}
	t.Cleanup(end)
	return end
}

// until waits until a volume has a content.
func until(t *testing.T, dir, want string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		mark, err := read(dir, 1)
		if mark == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there is %q, %v", mark, err)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestOnceWaitsAndEnds(t *testing.T) {
	dir := t.TempDir()
	a, f := fetching(t, dir)
	ended := make(chan error, 1)
	go func() { ended <- f.Once(t.Context()) }()
	a.Put("team/app", tree("one"), true)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	until(t, dir, "one")
	// A container that is started again finds it there.
	if err := f.Once(t.Context()); err != nil {
		t.Error(err)
	}
	a.Put("team/app", tree("two"), true)
	if err := f.Once(t.Context()); err != nil {
		t.Error(err)
	}
	until(t, dir, "two")
}

func TestOnceSaysWhyThereIsNothing(t *testing.T) {
	a, f := fetching(t, t.TempDir())
	late := errors.New("too late")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, late)
	defer cancel()
	err := f.Once(ctx)
	if !errors.Is(err, late) || !apierrors.IsNotFound(err) || a.Count("content") == 0 {
		t.Errorf("%v", err)
	}
}

// Both ways say while they wait what they wait for: once, and again when it is something else or has lasted.
func TestWaitingIsExplained(t *testing.T) {
	for name, run := range map[string]func(*fetch.Fetch, context.Context) error{"once": (*fetch.Fetch).Once, "follow": (*fetch.Fetch).Follow} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a, f := fetching(t, dir)
			f.LookInterval = 5 * time.Millisecond
			logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
			said := func() (lines int) {
				for _, line := range logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
					if strings.Contains(line.Message, "no content yet") && strings.Contains(fmt.Sprint(line.WithKVList, line.ParameterKVList), "NotFound") {
						lines++
					}
				}
				return lines
			}
			ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- run(f, ctx) }()
			for deadline := time.Now().Add(patience); said() < 2; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("it said %d times that there is no such bundle", said())
				}
			}
			if looks := a.Count("content"); looks < 2*said() {
				t.Errorf("it was said %d times after %d looks", said(), looks)
			}
			a.Put("team/app", tree("one"), true)
			until(t, dir, "one")
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}

// What is foreign ends both ways at once, and is named: no other try does better.
func TestWhatIsForeignEndsIt(t *testing.T) {
	for name, plant := range map[string]func(path string) error{
		"current":                      func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"current, a folder":            func(path string) error { return os.Mkdir(path, 0o700) },
		"current, a link to elsewhere": func(path string) error { return os.Symlink("/etc", path) },
		"..told":                       func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		base, _, _ := strings.Cut(name, ",")
		for _, way := range []string{"once", "follow"} {
			t.Run(name+" "+way, func(t *testing.T) {
				dir := t.TempDir()
				a, f := fetching(t, dir)
				a.Put("team/app", tree("one"), true)
				if err := plant(filepath.Join(dir, base)); err != nil {
					t.Fatal(err)
				}
				run := f.Once
				if way == "follow" {
					run = f.Follow
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				err := run(ctx)
				if !errors.Is(err, fetch.ErrForeign) || !strings.Contains(err.Error(), filepath.Join(dir, base)) {
					t.Error(err)
				}
			})
		}
	}
}

// A content that is too large is known to be without reading it.
func TestTooLargeAContentIsNotRead(t *testing.T) {
	dir := t.TempDir()
	a, f := fetching(t, dir)
	if err := f.Volume.Close(); err != nil {
		t.Fatal(err)
	}
	f.Volume = openVolume(t, dir, fetch.VolumeOptions{Limits: tarball.Limits{Bytes: 1 << 20}})
	a.Put("team/app", tree("small"), true)
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.Put("team/app", tree(strings.Repeat("large", 1<<20)), true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := a.Count("content")
	ended := make(chan error, 1)
	go func() { ended <- f.Once(ctx) }()
	for deadline := time.Now().Add(patience); a.Count("content") < before+2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not tried again")
		}
	}
	cancel()
	err := <-ended
	if limit, ok := errors.AsType[*tarball.LimitError](err); !ok || limit.Limit != tarball.LimitBytes || limit.Entry != "" {
		t.Error(err)
	}
	until(t, dir, "small")
}

func TestFollowPutsEachContent(t *testing.T) {
	dir := t.TempDir()
	a, f := fetching(t, dir)
	end := follow(t, f)
	for i := range 10 {
		a.Put("team/app", tree(fmt.Sprint(i)), false)
		until(t, dir, fmt.Sprint(i))
	}
	end()
	// The next one fetches what is new, and nothing else.
	before := a.Count("content")
	end = follow(t, f)
	a.Put("team/app", tree("more"), false)
	until(t, dir, "more")
	end()
	if n := a.Count("content") - before; n != 1 {
		t.Errorf("%d requests for content", n)
	}
}

// told is a listener that fails a few times.
type told struct {
	failures int
	digests  chan string
}

func (l *told) Changed(ctx context.Context, digest string) error {
	if l.failures--; l.failures >= 0 {
		return errors.New("nobody is there yet")
	}
	select {
	case l.digests <- digest:
	case <-ctx.Done():
	}
	return nil
}

func TestListenersAreTold(t *testing.T) {
	dir, listener := t.TempDir(), &told{failures: 3, digests: make(chan string, 10)}
	a, f := fetching(t, dir, listener)
	end := follow(t, f)
	a.Put("team/app", tree("one"), true)
	until(t, dir, "one")
	want := a.Put("team/app", tree("two"), true)
	if got := <-listener.digests; got != want {
		t.Errorf("told of %s, not of %s", got, want)
	}
	// Ended before it could tell, the next one does.
	listener.failures = 1 << 30
	want = a.Put("team/app", tree("three"), true)
	until(t, dir, "three")
	end()
	listener.failures = 0
	end = follow(t, f)
	if got := <-listener.digests; got != want {
		t.Errorf("told of %s, not of %s", got, want)
	}
	end()
	follow(t, f)()
	select {
	case got := <-listener.digests:
		t.Errorf("told again of %s", got)
	default:
	}
}

func TestListenersReachWhomTheyAreFor(t *testing.T) {
	answers, code := make(chan string, 2), http.StatusServiceUnavailable
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		answers <- req.Method + " " + req.Header.Get("Bundle-Digest")
		w.WriteHeader(code)
	}))
	defer server.Close()
	if err := fetch.URL(server.URL).Changed(t.Context(), "sha256:x"); err == nil {
		t.Error("a 503 was taken for success")
	}
	code = http.StatusNoContent
	if err := fetch.URL(server.URL).Changed(t.Context(), "sha256:x"); err != nil {
		t.Error(err)
	}
	if got := <-answers; got != "POST sha256:x" {
		t.Errorf("%q", got)
	}

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	file := filepath.Join(t.TempDir(), "pid")
	process := fetch.Process{PIDFile: file, Signal: syscall.SIGUSR1}
	for _, text := range []string{"", "x", "-1", "0"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := process.Changed(t.Context(), ""); err == nil {
			t.Errorf("%q was taken for a process", text)
		}
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := process.Changed(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	<-signals
}
