// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"errors"
	"fmt"
	"strings"
	"testing"

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

func connect(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
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
