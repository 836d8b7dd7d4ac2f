// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// fill writes values of a size until etcd takes no more, and returns its error. The smaller they are the fuller it is then.
func fill(t *testing.T, client *clientv3.Client, size int, key func(i int) string) error {
	t.Helper()
	value := strings.Repeat("x", size)
	for i := range 200 << 20 / size {
		if _, err := client.Put(t.Context(), key(i), value); err != nil {
			return err
		}
	}
	t.Fatal("etcd takes everything")
	return nil
}

func connect(t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

func TestRecover(t *testing.T) {
	dir := t.TempDir()
	e, err := StartWithQuota(t.Context(), dir, MinQuota)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	client := connect(t, e.Endpoint())
	expectNoSpace := func(want bool) Space {
		t.Helper()
		for _, c := range []*clientv3.Client{client, e.Client()} {
			if got, err := HasNoSpace(t.Context(), c); err != nil || got != want {
				t.Fatalf("no space: %v, %v", got, err)
			}
		}
		s, err := ReadSpace(t.Context(), e.Client())
		if err != nil || s.NoSpace != want || s.Quota != MinQuota || s.Size <= 0 || s.InUse > s.Size {
			t.Fatalf("space is %+v, %v", s, err)
		}
		return s
	}
	expectNoSpace(false)

	// One key, again and again: all but its last value can go.
	if err := fill(t, e.Client(), 1<<20, func(int) string { return "k" }); !NoSpace(err) {
		t.Fatalf("in process it fails with %v", err)
	}
	if _, err := client.Put(t.Context(), "other", "v"); !NoSpace(err) {
		t.Fatalf("over the socket it fails with %v", err)
	}
	full := expectNoSpace(true)
	if _, err := client.Delete(t.Context(), "k"); err != nil {
		t.Errorf("what is deleted needs no space: %v", err)
	}
	var told []string
	if err := Recover(t.Context(), client, func(s string) { told = append(told, s) }); err != nil {
		t.Fatal(err, told)
	}
	if s := expectNoSpace(false); s.Size > full.Size/2 {
		t.Errorf("the database has %d bytes, had %d", s.Size, full.Size)
	}
	if _, err := client.Put(t.Context(), "other", "v"); err != nil {
		t.Errorf("after it, a write fails: %v", err)
	}

	// Many keys: nothing is superfluous. How many free pages etcd leaves in its file differs; what is won of them is filled again.
	keys := 0
	for round := 0; ; round++ {
		if err := fill(t, client, 32<<10, func(int) string { keys++; return fmt.Sprint("key", keys) }); !NoSpace(err) {
			t.Fatal(err)
		}
		err := Recover(t.Context(), client, func(string) {})
		if errors.Is(err, ErrStillFull) {
			break
		}
		if err != nil || round == 5 {
			t.Fatalf("full of what is needed, for the time %d: %v", round+1, err)
		}
	}
	expectNoSpace(true)
	if NoSpace(nil) || NoSpace(errors.New("other")) {
		t.Error("other errors look like it")
	}
}

// A member that is away, whether it refuses connections or says nothing, hides nothing of the others. It stands first, and the etcd that
// answers counts as a member more.
func TestSpaceWithoutSomeMembers(t *testing.T) {
	e := start(t, t.TempDir())
	defer e.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	away := []string{"http://" + closed.Addr().String(), "http://" + silent.Addr().String()}
	ask := func(endpoints ...string) (Space, int64, error) {
		client := connect(t, endpoints...)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		size, err := Size(ctx, client)
		if err != nil {
			return Space{}, 0, err
		}
		ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		space, err := ReadSpace(ctx, client)
		return space, size, err
	}
	if space, size, err := ask(append(away, e.Endpoint())...); err != nil || size <= 0 || space.Size <= 0 || space.Quota <= 0 {
		t.Errorf("the size is %d, the space %+v, %v", size, space, err)
	}
	if _, size, err := ask(away...); err == nil {
		t.Errorf("nobody answers, and the size is %d", size)
	}
}

func TestRunning(t *testing.T) {
	dir := t.TempDir()
	if got, err := Running(dir); err != nil || got != "" {
		t.Errorf("an empty folder: %q, %v", got, err)
	}
	e := start(t, dir)
	if got, err := Running(dir); err != nil || got != e.Endpoint() {
		t.Errorf("while it runs: %q, %v", got, err)
	}
	e.Close()
	if got, err := Running(dir); err != nil || got != "" {
		t.Errorf("when it has ended: %q, %v", got, err)
	}
}
