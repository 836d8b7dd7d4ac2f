// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/flock"
)

// noLocksVariable makes the test program a process in which flock(2) fails with the error of that number.
const noLocksVariable = "BUNDLECLIENT_TEST_NO_LOCKS"

// TestWithoutLocksThereIsNoCache is on a system without them, and on a file system without them, such as NFS whose server has no
// lock manager.
func TestWithoutLocksThereIsNoCache(t *testing.T) {
	if number, err := strconv.Atoi(os.Getenv(noLocksVariable)); err == nil {
		openWithoutLocks(t, syscall.Errno(number))
		return
	}
	for name, errno := range map[string]syscall.Errno{"system": unix.ENOSYS, "file system": unix.ENOLCK} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestWithoutLocksThereIsNoCache$", "-test.v")
			cmd.Env = append(os.Environ(), noLocksVariable+"="+strconv.Itoa(int(errno)))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			} else if strings.Contains(string(out), "--- SKIP") {
				t.Skipf("%s", out)
			}
		})
	}
}

func openWithoutLocks(t *testing.T, errno syscall.Errno) {
	if err := forbidFlock(errno); err != nil {
		t.Skipf("no system call may be made to fail here: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "cache")
	_, err := bundleclient.OpenCache(dir, bundleclient.CacheOptions{})
	if !errors.Is(err, errno) || errors.Is(errno, errors.ErrUnsupported) && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("there is left %v, %v", left, err)
	}
}

// forbidFlock makes flock(2) fail in all threads of this process from now on.
func forbidFlock(errno syscall.Errno) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call, of struct seccomp_data
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FLOCK, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if failed != 0 {
		return failed
	}
	return nil
}

// Many may open a cache at the same time, also while somebody has the lock that is tried.
func TestManyOpenOneCache(t *testing.T) {
	dir := t.TempDir()
	var opening sync.WaitGroup
	for range 8 {
		opening.Go(func() {
			for range 50 {
				if _, err := bundleclient.OpenCache(dir, bundleclient.CacheOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	opening.Wait()
	held, err := flock.TryOpen(filepath.Join(dir, strings.Repeat("0", 64)+".lock"), flock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	openCache(t, dir, 0)
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	openCache(t, dir, 0)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("there is left %v, %v", left, err)
	}
}
