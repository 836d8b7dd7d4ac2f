// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package contenttest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/content"
)

// Variables of the environment that a child obeys.
const (
	childSeed  = "RUKPAK_CONTENTTEST_SEED"  // of its first blob
	childBlobs = "RUKPAK_CONTENTTEST_BLOBS" // how many it stores
	childStep  = "RUKPAK_CONTENTTEST_STEP"  // at which it waits to be killed; empty: nowhere
	childMore  = "RUKPAK_CONTENTTEST_MORE"  // bytes that every fourth blob has more; empty: none
)

// steps are the moments between two calls of a writer.
var steps = []string{"created", "half", "written", "committed", "deleted"}

// childBlob is the n-th blob that a child stores: sizes from nothing to more than a megabyte,
// and some above the greatest border of the store.
func childBlob(n uint64, more int64) Blob {
	b := Blob{Seed: n, Size: int64(n*n*7919) % (3 << 19)}
	if n%4 == 3 {
		b.Size += more
	}
	return b
}

// more is what the greatest border adds.
func (h Harness) more() int64 {
	if len(h.Borders) == 0 {
		return 0
	}
	return slices.Max(h.Borders)
}

// Child stores blobs and reports each step on standard output, until it has stored
// as many as it was asked for or is killed. Every third blob it deletes again.
func Child(s content.Store) error {
	seed, err := strconv.ParseUint(os.Getenv(childSeed), 10, 64)
	if err != nil {
		return err
	}
	count, err := strconv.ParseUint(os.Getenv(childBlobs), 10, 64)
	if err != nil {
		return err
	}
	more, err := strconv.ParseInt(cmp.Or(os.Getenv(childMore), "0"), 10, 64)
	if err != nil {
		return err
	}
	for n := seed; n < seed+count; n++ {
		if err := storeInSteps(s, n, childBlob(n, more), os.Getenv(childStep)); err != nil {
			return err
		}
	}
	return nil
}

func storeInSteps(s content.Store, n uint64, b Blob, waitAt string) error {
	ctx := context.Background()
	at := func(step string) {
		fmt.Printf("%s %d\n", step, n) // not buffered: what was said before the kill is read
		if step == waitAt {
			time.Sleep(time.Hour) // the kill comes before; a bare select would be a deadlock to the runtime
		}
	}
	at("begun")
	w, err := s.Create(ctx)
	if err != nil {
		return err
	}
	at("created")
	body := b.Reader()
	if _, err := io.CopyN(w, body, b.Size/2); err != nil {
		return err
	}
	at("half")
	if _, err := io.Copy(w, body); err != nil {
		return err
	}
	at("written")
	if err := w.Commit(ctx, w.Digest()); err != nil {
		return err
	}
	at("committed")
	if n%3 != 0 {
		return nil
	}
	at("deleting")
	if err := s.Delete(ctx, b.Digest()); err != nil {
		return err
	}
	at("deleted")
	return nil
}

// progress is the last step that a child said for each blob.
type progress map[uint64]string

// runChild starts a child and feeds each of its lines to said, which may kill it.
func runChild(t *testing.T, h Harness, env []string, said func(cmd *exec.Cmd, step string)) progress {
	t.Helper()
	cmd := h.Child(t)
	cmd.Env = append(cmd.Environ(), env...)
	cmd.Env = append(cmd.Env, childMore+"="+strconv.FormatInt(h.more(), 10))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := progress{}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		step, number, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			t.Fatalf("the child said %q", lines.Text())
		}
		done[n] = step
		said(cmd, step)
	}
	err = cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || (err != nil && status.Signal() != syscall.SIGKILL) {
		t.Fatalf("the child ended with %v: %s", err, stderr.Bytes())
	}
	return done
}

// check opens the place and compares it with what the child had said. Earlier holds
// the digests of whole blobs that the place held before; those found now are added.
func (p progress) check(t *testing.T, h Harness, earlier map[string]bool) {
	t.Helper()
	store, closeStore := h.Open(t)
	for n, step := range p {
		b := childBlob(n, h.more())
		digest := b.Digest()
		got, err := read(t.Context(), store, digest, 0, -1)
		whole := err == nil && bytes.Equal(got, b.Bytes(t))
		absent := errors.Is(err, content.ErrNotFound)
		switch {
		case !whole && !absent:
			t.Errorf("blob %d, killed after %q: neither whole nor absent: %d of %d bytes, %v", n, step, len(got), b.Size, err)
		case step == "committed" && absent:
			t.Errorf("blob %d was committed and is lost", n)
		case step == "deleted" && whole:
			t.Errorf("blob %d was deleted and is there", n)
		}
		if whole || step == "written" && store.Shared() {
			// What was under way to the place may arrive after its sender is gone.
			earlier[digest] = true
		}
	}
	if err := store.Walk(t.Context(), func(info content.Info) error {
		if !earlier[info.Digest] {
			t.Errorf("%s is there and nobody stored it whole", info.Digest)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := store.Sweep(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if left := h.Debris(t); len(left) > 0 {
		t.Errorf("debris is left: %q", left)
	}
	if err := closeStore(); err != nil {
		t.Error(err)
	}
}

// testKilledAtRandom kills children of one place after random times.
func testKilledAtRandom(t *testing.T, h Harness) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	earlier := map[string]bool{}
	for round := range rounds {
		wait := time.Duration(random.Int64N(int64(60 * time.Millisecond)))
		env := []string{childSeed + "=" + strconv.Itoa(1+round*1000), childBlobs + "=1000"}
		armed := false
		done := runChild(t, h, env, func(cmd *exec.Cmd, _ string) {
			if !armed { // counted from its first line: the start of a process takes longer than a blob
				armed = true
				time.AfterFunc(wait, func() { _ = cmd.Process.Kill() })
			}
		})
		done.check(t, h, earlier)
	}
}

// testKilledBetweenCalls kills a child while it stands between two calls.
func testKilledBetweenCalls(t *testing.T, newHarness func(*testing.T) Harness) {
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			h := newHarness(t)
			env := []string{childSeed + "=11", childBlobs + "=5", childStep + "=" + step}
			killed := false
			done := runChild(t, h, env, func(cmd *exec.Cmd, said string) {
				if said == step {
					killed = true
					_ = cmd.Process.Kill()
				}
			})
			if !killed {
				t.Fatal("the child never came there")
			}
			done.check(t, h, map[string]bool{})
		})
	}
}

// testKilledAtFailpoints kills a child inside of the calls, at each point of the store.
func testKilledAtFailpoints(t *testing.T, newHarness func(*testing.T) Harness) {
	for _, name := range newHarness(t).Failpoints {
		for _, hit := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s@%d", name, hit), func(t *testing.T) {
				h := newHarness(t)
				env := []string{childSeed + "=11", childBlobs + "=9", fmt.Sprintf("RUKPAK_FAILPOINTS=%s=exit@%d", name, hit)}
				done := runChild(t, h, env, func(*exec.Cmd, string) {})
				if len(done) == 9 && done[19] == "committed" {
					t.Fatal("the child was not killed: this store has no such point")
				}
				done.check(t, h, map[string]bool{})
			})
		}
	}
}
