// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPackRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		make   func(t *testing.T, path string)
		reason string
	}{
		"FIFO": {func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o644)) }, "a FIFO"},
		"socket": {func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			must(t, err)
			t.Cleanup(func() { _ = l.Close() })
		}, "a socket"},
		"device": {func(t *testing.T, path string) {
			if err := syscall.Mknod(path, syscall.S_IFCHR|0o644, 1<<8|3); err != nil {
				t.Skip(err)
			}
		}, "a character device"},
		"absolute link": {func(t *testing.T, path string) { must(t, os.Symlink("/etc", path)) }, "absolute"},
		"escaping link": {func(t *testing.T, path string) { must(t, os.Symlink("../../x", path)) }, "leaves the root"},
	} {
		t.Run(name, func(t *testing.T) {
			// The name of a socket must be short.
			root, err := os.MkdirTemp("", "t")
			must(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(root) })
			must(t, os.Mkdir(filepath.Join(root, "dir"), 0o755))
			c.make(t, filepath.Join(root, "dir", "odd"))
			_, _, err = pack(t, root, "", Limits{})
			refused(t, err, "dir/odd", c.reason)
		})
	}
}

func TestPackRefusesPaths(t *testing.T) {
	root := tree{
		{name: "dir/file", mode: 0o644},
		{name: "link", symlink: "dir"},
		{name: "out", symlink: "/"},
	}.build(t)
	headers := []*tar.Header{file("dir/file"), link("link", "dir"), link("out", "/")}
	for path, c := range map[string]struct {
		reason string
		is     error
	}{
		"dir/file": {"not a directory", errNotDirectory},
		"gone":     {"", fs.ErrNotExist},
		"dir/gone": {"", fs.ErrNotExist},
		"link":     {"symbolic link", errLink},
		"out/etc":  {"symbolic link", errLink},
		"../x":     {`".."`, nil},
		"dir/..":   {`".."`, nil},
	} {
		_, _, err := pack(t, root, path, Limits{})
		refused(t, err, path, c.reason)
		_, _, foreignErr := canonicalize(t, entries(t, headers...), Options{Path: path})
		refused(t, foreignErr, path, c.reason)
		if c.is != nil && (!errors.Is(err, c.is) || !errors.Is(foreignErr, c.is)) {
			t.Errorf("path %q: %v, %v", path, err, foreignErr)
		}
	}
	if _, _, err := pack(t, filepath.Join(root, "gone"), "", Limits{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing root: %v", err)
	}
}

// withoutPrivilege makes the file system see an ordinary user in this thread.
func withoutPrivilege(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread()
	set := func(id uintptr) { _, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, id, 0, 0) }
	set(65534)
	t.Cleanup(func() {
		set(0)
		runtime.UnlockOSThread()
	})
}

func TestPackNamesWhatItCannotRead(t *testing.T) {
	for name, c := range map[string]struct {
		items tree
		entry string
	}{
		"file":   {tree{{name: "dir/secret", mode: 0}}, "dir/secret"},
		"folder": {tree{{name: "dir/closed", mode: 0, dir: true}}, "dir/closed"},
	} {
		t.Run(name, func(t *testing.T) {
			root := c.items.build(t)
			must(t, os.Chmod(filepath.Dir(root), 0o755))
			withoutPrivilege(t)
			_, _, err := pack(t, root, "", Limits{})
			refused(t, err, c.entry, "cannot be read")
			if !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%v is not fs.ErrPermission", err)
			}
		})
	}
}

func TestPackRefusesFilesThatChange(t *testing.T) {
	// A file of the proc file system claims to be empty and is not.
	if _, err := os.Stat("/proc/self/net/tcp"); err != nil {
		t.Skip(err)
	}
	_, _, err := pack(t, "/proc/sys/kernel", "random", Limits{})
	refused(t, err, "boot_id", "became longer")
}

// Where the file system has no modes, what it says of them is not published.
func TestPackWithoutModes(t *testing.T) {
	odd := tree{{name: "dir", mode: 0o777, dir: true}, {name: "dir/file", mode: 0o666, content: "x"}, {name: "read", mode: 0o444}, {name: "link", symlink: "dir/file"}}.build(t)
	usual := tree{{name: "dir", mode: 0o755, dir: true}, {name: "dir/file", mode: 0o644, content: "x"}, {name: "read", mode: 0o644}, {name: "link", symlink: "dir/file"}}.build(t)
	var got, want bytes.Buffer
	if _, err := packTree(t.Context(), &got, odd, "", Limits{}, false); err != nil {
		t.Fatal(err)
	}
	if _, err := Pack(t.Context(), &want, usual, "", Limits{}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("%q is not %q", read(t, got.Bytes()), read(t, want.Bytes()))
	}
}
