// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package fetch_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"rukpak.io/apiserver/pkg/fetch"
	"rukpak.io/apiserver/pkg/flock"
)

// fullVariable makes the test program a process in namespaces of its own, which may mount a small volume there.
const fullVariable = "FETCH_TEST_FULL"

// onSmallVolume runs a test in a process where a volume with options is mounted.
func onSmallVolume(t *testing.T, options string, test func(dir string)) {
	if os.Getenv(fullVariable) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), fullVariable+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Skipf("no namespaces here: %v", err)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("no volume may be mounted here: %v", err)
	}
	// Before the test's own cleanups.
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	test(dir)
}

// An error of a full volume says so first, and which, and what would have to fit; when there is room the content comes by itself.
func TestAFullVolumeIsNamedAndWaitedFor(t *testing.T) {
	onSmallVolume(t, "size=1m", func(dir string) {
		filler := filepath.Join(dir, "filler")
		if err := os.WriteFile(filler, make([]byte, 700<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		a, f := fetching(t, dir)
		tree := fstest.MapFS{"data/000.txt": {Data: []byte("one"), Mode: 0o644}, "large": {Data: make([]byte, 500<<10), Mode: 0o644}}
		a.Put("team/app", tree, true)

		said := make(lines, 1000)
		log := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(said)))
		tooLate := errors.New("too late")
		ctx, cancel := context.WithTimeoutCause(klog.NewContext(t.Context(), log), 300*time.Millisecond, tooLate)
		defer cancel()
		err := f.Once(ctx)
		want := "the volume " + dir + " is full: the content takes about 50"
		if !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, tooLate) || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), ", free are 3") {
			t.Errorf("%v", err)
		}
		if line := <-said; !strings.Contains(line, want) {
			t.Errorf("it said first %s", line)
		}

		end := follow(t, f)
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		until(t, dir, "one")
		end()
		if err := f.Volume.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What is old goes where there is no room, also where nobody but Once is there to remove it.
func TestAFullVolumeLosesWhatIsOld(t *testing.T) {
	onSmallVolume(t, "size=1m", func(dir string) {
		a, f := fetching(t, dir)
		put := func(mark string) {
			t.Helper()
			a.Put("team/app", fstest.MapFS{"data/000.txt": {Data: []byte(mark), Mode: 0o644}, "large": {Data: make([]byte, 400<<10), Mode: 0o644}}, true)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := f.Once(ctx); err != nil {
				t.Fatal(err)
			}
			until(t, dir, mark)
		}
		put("one")
		held, err := os.Open(filepath.Join(dir, "current"))
		if err == nil {
			err = flock.Try(held, flock.Shared)
		}
		if err != nil {
			t.Fatal(err)
		}
		put("two")
		if err := held.Close(); err != nil {
			t.Fatal(err)
		}
		put("three")
		if err := f.Volume.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestTheLockWaitsForRoom(t *testing.T) {
	onSmallVolume(t, "nr_inodes=3", func(dir string) {
		for _, name := range []string{"a", "b"} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		said := make(lines, 10)
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(said)))), patience)
		defer cancel()
		opened := make(chan error, 1)
		go func() {
			v, err := fetch.OpenVolume(ctx, dir, fetch.VolumeOptions{})
			if err == nil {
				err = v.Close()
			}
			opened <- err
		}()
		select {
		case line := <-said:
			if !strings.Contains(line, "the volume "+dir+" is full, free are") || !strings.Contains(line, "and 0 entries") {
				t.Error(line)
			}
		case err := <-opened:
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, "a")); err != nil {
			t.Fatal(err)
		}
		if err := <-opened; err != nil || len(said) > 0 {
			t.Errorf("it said %d lines more: %v", len(said), err)
		}
	})
}
