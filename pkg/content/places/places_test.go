// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package places

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

// queue takes places, each in a goroutine of its own, and remembers who got one in which order.
type queue struct {
	*Places
	got      []string
	releases map[string][]func()
}

func (q *queue) join(t *testing.T, namespaces ...string) {
	for _, namespace := range namespaces {
		go func() {
			release, err := q.Take(t.Context(), namespace)
			if err == nil {
				q.got = append(q.got, namespace)
				q.releases[namespace] = append(q.releases[namespace], release)
			}
		}()
		synctest.Wait()
	}
}

func (q *queue) leave(namespace string) {
	release := q.releases[namespace][0]
	q.releases[namespace] = q.releases[namespace][1:]
	release()
	release() // once is enough
	synctest.Wait()
}

func TestPlacesAreSharedAmongNamespaces(t *testing.T) {
	for name, test := range map[string]struct {
		places int
		each   int // places if 0
		join   []string
		leave  []string
		want   []string
	}{
		"the last one is for another namespace": {places: 2, join: []string{"a", "a", "b"}, want: []string{"a", "b"}},
		"which comes later":                     {places: 3, join: []string{"a", "a", "a", "a", "b"}, want: []string{"a", "a", "b"}},
		"a single one is for anybody":           {places: 1, join: []string{"a", "a"}, leave: []string{"a"}, want: []string{"a", "a"}},
		"one that has least is next":            {places: 5, join: []string{"a", "a", "a", "a", "b", "a", "b"}, leave: []string{"a", "a"}, want: []string{"a", "a", "a", "a", "b", "b"}},
		"nobody has more than his part":         {places: 6, each: 3, join: []string{"a", "a", "a", "a", "b", "b", "c"}, want: []string{"a", "a", "a", "b", "b", "c"}},
		"not of what becomes free either":       {places: 6, each: 2, join: []string{"a", "a", "a", "b"}, leave: []string{"b", "a"}, want: []string{"a", "a", "b", "a"}},
		"and of equals the one that came first": {places: 2, join: []string{"a", "b", "c", "d"}, leave: []string{"a", "b"}, want: []string{"a", "b", "c", "d"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &queue{Places: New(test.places, cmp.Or(test.each, test.places)), releases: map[string][]func(){}}
				q.join(t, test.join...)
				for _, namespace := range test.leave {
					q.leave(namespace)
				}
				if !slices.Equal(q.got, test.want) {
					t.Errorf("got places: %v, want %v", q.got, test.want)
				}
			})
		})
	}
}

func TestWhoWaitsForAPlaceMayGiveUp(t *testing.T) {
	p := New(1, 1)
	release, err := p.Take(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if p.Waiting() {
		t.Error("somebody is said to wait before anybody does")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Take(ctx, "b"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	release()
	if release, err = p.Take(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	release()
	if p.free != 1 || len(p.held) != 0 || len(p.waiting) != 0 {
		t.Errorf("%d free, held %v, %d waiting", p.free, p.held, len(p.waiting))
	}
}

func TestWhoHoldsAPlaceIsToldOfThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{Places: New(1, 1), releases: map[string][]func(){}}
		for _, step := range []struct {
			do   func()
			want bool
		}{
			{func() { q.join(t, "a") }, false},
			{func() { q.join(t, "b") }, true},
			{func() { q.leave("a") }, false},
		} {
			if step.do(); q.Waiting() != step.want {
				t.Errorf("%v have places, waiting: %v", q.got, q.Waiting())
			}
		}
	})
}
