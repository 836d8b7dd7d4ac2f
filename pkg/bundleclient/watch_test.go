// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/bundleclient/bundletest"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// patience bounds the wait for what happens by itself.
const patience = 30 * time.Second

// handled is what a handler was told.
type handled struct {
	digest, mark string
}

// watching is a Watch under way.
type watching struct {
	t       *testing.T
	handled chan handled
	end     context.CancelFunc
	ended   chan error
}

// watch begins to watch team/app. Each call of the handler waits until somebody takes what it was told; fault is what it returns.
func watch(t *testing.T, client *bundleclient.Client, fault func(mark string) error) *watching {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watching{t: t, handled: make(chan handled), end: cancel, ended: make(chan error, 1)}
	go func() {
		w.ended <- client.Watch(ctx, "team", "app", func(ctx context.Context, b *v1alpha1.Bundle, tree fs.FS) error {
			mark, err := markOf(tree)
			if err != nil {
				return err
			}
			select {
			case w.handled <- handled{b.Status.Content.Digest, mark}:
			case <-ctx.Done():
			}
			// It is still the same after whatever came meanwhile.
			if again, err := markOf(tree); again != mark {
				return fmt.Errorf("the files said %q and say %q, %w", mark, again, err)
			}
			if fault != nil {
				return fault(mark)
			}
			return nil
		})
	}()
	t.Cleanup(w.stop)
	return w
}

// expect waits until the handler is told of a mark. It may be told of others before.
func (w *watching) expect(mark string) handled {
	w.t.Helper()
	timeout := time.After(patience)
	var last handled
	for {
		select {
		case last = <-w.handled:
			if last.mark == mark {
				return last
			}
		case err := <-w.ended:
			w.t.Fatalf("the watch ended: %v", err)
		case <-timeout:
			w.t.Fatalf("%q was not handled; the last was %q", mark, last.mark)
		}
	}
}

func (w *watching) stop() {
	w.end()
	select {
	case err := <-w.ended:
		if !errors.Is(err, context.Canceled) {
			w.t.Errorf("the watch ended with %v", err)
		}
		noneLeft(w.t)
	case <-time.After(patience):
		w.t.Error("the watch did not end")
	}
}

func TestWatchFollowsTheContent(t *testing.T) {
	for name, change := range map[string]func(*bundletest.API){
		"by watching": func(*bundletest.API) {},
		"by asking":   func(a *bundletest.API) { a.Fail(bundletest.Faults{MayNotWatch: true}) },
		"by watches that end": func(a *bundletest.API) {
			a.Fail(bundletest.Faults{Watches: []int{1, 0, 1, 0, 2, 1, 1, 1, 1, 1, 1, 1, 1}})
		},
		"by watches that always expire": func(a *bundletest.API) { a.Fail(bundletest.Faults{Watches: make([]int, 20)}) },
	} {
		t.Run(name, func(t *testing.T) {
			a := startAPI(t)
			change(a)
			cut := strings.Contains(name, "break")
			w := watch(t, clientOf(t, a, bundleclient.Options{Cache: openCache(t, t.TempDir(), 0)}), nil)
			for i := range 10 {
				mark := fmt.Sprint("generation ", i)
				if cut {
					a.CloseClientConnections()
				}
				digest := a.Put("team/app", files(mark, 5), i%2 == 0)
				if got := w.expect(mark); got.digest != digest {
					t.Errorf("the bundle that the handler got has the content %s, not %s", got.digest, digest)
				}
			}
		})
	}
}

func TestWatchHandlesTheLatestAlone(t *testing.T) {
	a := startAPI(t)
	a.Put("team/app", files("0", 5), true)
	w := watch(t, clientOf(t, a, bundleclient.Options{}), nil)
	w.expect("0")
	a.Put("team/app", files("1", 5), true)
	for {
		// The handler of 1 holds on until somebody listens. Meanwhile others come.
		if a.Count("content") > 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for i := range 20 {
		a.Put("team/app", files(fmt.Sprint(i+2), 5), false)
	}
	calls := 0
	for mark := ""; mark != "21"; calls++ {
		select {
		case got := <-w.handled:
			mark = got.mark
		case <-time.After(patience):
			t.Fatalf("the latest was not handled; the last was %q", mark)
		}
	}
	if calls > 3 {
		t.Errorf("the handler was called %d times for what came while it worked", calls)
	}
}

func TestWatchTriesAgainWhatFails(t *testing.T) {
	for name, mayNotWatch := range map[string]bool{"by watching": false, "by asking": true} {
		t.Run(name, func(t *testing.T) {
			a := startAPI(t)
			a.Fail(bundletest.Faults{MayNotWatch: mayNotWatch})
			a.Put("team/app", files("one", 5), true)
			failures := 5
			w := watch(t, clientOf(t, a, bundleclient.Options{}), func(string) error {
				if failures--; failures >= 0 {
					return errors.New("not yet")
				}
				return nil
			})
			for range 6 {
				w.expect("one")
			}
			a.Put("team/app", files("two", 5), true)
			// Had it been told once more of the first it would say so here.
			if got := <-w.handled; got.mark != "two" {
				t.Errorf("told of %q", got.mark)
			}
		})
	}
}

func TestWatchGoesOnWhenABundleComesBack(t *testing.T) {
	a := startAPI(t)
	w := watch(t, clientOf(t, a, bundleclient.Options{}), nil)
	a.Put("team/app", files("one", 5), true)
	w.expect("one")
	a.Remove("team/app")
	a.Put("team/app", files("two", 5), true)
	w.expect("two")
}

func TestFollowSkipsWhatIsThere(t *testing.T) {
	for _, mayNotWatch := range []bool{false, true} {
		a := startAPI(t)
		a.Fail(bundletest.Faults{MayNotWatch: mayNotWatch})
		have := a.Put("team/app", files("one", 5), true)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan string, 1)
		ended := make(chan error, 1)
		go func() {
			ended <- clientOf(t, a, bundleclient.Options{}).Follow(ctx, "team", "app", have, func(_ context.Context, _ *v1alpha1.Bundle, content *typed.Content) error {
				got <- content.Digest
				return nil
			})
		}()
		for a.Count("watch")+a.Count("content") < 2 && (mayNotWatch || a.Count("watch") < 1) {
			time.Sleep(time.Millisecond)
		}
		want := a.Put("team/app", files("two", 5), true)
		if digest := <-got; digest != want {
			t.Errorf("got %s, not %s", digest, want)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		noneLeft(t)
	}
}
