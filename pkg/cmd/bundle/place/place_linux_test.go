// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// There is no moment at which a folder that is replaced is not there.
func TestExchange(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	tree(t, dir, map[string]string{"a/x": "1", "b/x": "2"})
	if err := exchange(a, b); err != nil {
		t.Skipf("the file system of %s cannot: %v", dir, err)
	}
	expect(t, dir, "a/x=2", "b/x=1")
	if err := rename(a, b); !errors.Is(err, os.ErrExist) {
		t.Errorf("it says %v", err)
	}
	if err := exchange(a, filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it says %v", err)
	}
}

// Where nothing can be made, the error is that of the attempt: nobody waits for a folder to come.
func TestFolderThatCannotBeMade(t *testing.T) {
	if _, err := openWork("/proc/self/.work", "/proc/self"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it says %v", err)
	}
}

// A new folder has the mode of the one that it replaces, and one that its owner may not write to is replaced as well.
func TestModes(t *testing.T) {
	dir := t.TempDir()
	// Whoever may do anything needs no help: the test is about everybody else.
	if os.Geteuid() == 0 {
		asNobody(t)
		return
	}
	for _, mode := range []os.FileMode{0o750 | os.ModeSetgid, 0o700 | os.ModeSticky, 0o555, 0o555 | os.ModeSetgid} {
		path := filepath.Join(dir, "x")
		tree(t, dir, map[string]string{"x/a": "old", "x/d/b": "old"})
		if err := errors.Join(os.Chmod(filepath.Join(path, "d"), 0o111), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		put(t, opened(t, path, true))
		info, err := os.Stat(path)
		if err != nil || info.Mode() != mode|os.ModeDir {
			t.Errorf("the mode is %v, not %v, %v", info.Mode(), mode, err)
		}
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
		expect(t, dir, "x/a=new")
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
}

// asNobody runs the test again as another user.
func asNobody(t *testing.T) {
	t.Helper()
	const nobody = 65534
	dir, err := os.MkdirTemp("", "place")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "place.test")
	if err := errors.Join(os.WriteFile(copied, program, 0o755), os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "tmp"), 0o700), os.Chown(filepath.Join(dir, "tmp"), nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(copied, "-test.run", "^"+t.Name()+"$")
	cmd.Dir, cmd.Env = dir, []string{"TMPDIR=" + filepath.Join(dir, "tmp")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// What is mounted below a folder that is replaced is not deleted with it.
func TestMountsBelow(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{"x/a": "old", "x/deep/ly/b": "old", "outside/precious": "mine"})
	point := filepath.Join(dir, "x/deep/ly")
	if err := unix.Mount(filepath.Join(dir, "outside"), point, "", unix.MS_BIND, ""); err != nil {
		if os.Getenv(inNamespace) != "" {
			t.Fatal(err)
		}
		inOwnNamespace(t)
		return
	}
	t.Cleanup(func() {
		if err := unix.Unmount(point, 0); err != nil {
			t.Error(err)
		}
	})
	p := opened(t, filepath.Join(dir, "x"), true)
	if err := p.Put(); !errors.Is(err, ErrMounted) {
		t.Errorf("it says %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	expect(t, dir, "outside/precious=mine", "x/a=old", "x/deep/ly/precious=mine")
	if !isMount(point) || isMount(dir) {
		t.Error("it does not know what is mounted")
	}
	// In the folder where something is mounted that is the root, what is there is replaced, and the folder stays.
	put(t, opened(t, point, true))
	expect(t, dir, "outside/a=new", "x/a=old", "x/deep/ly/a=new")
}

// inNamespace is set in a process that may mount.
const inNamespace = "PLACE_TEST_IN_NAMESPACE"

// inOwnNamespace runs the test again where it may mount, or skips it.
func inOwnNamespace(t *testing.T) {
	t.Helper()
	if err := exec.Command("unshare", "-rm", "true").Run(); err != nil {
		t.Skipf("this machine gives no user namespace: %v", err)
	}
	cmd := exec.Command("unshare", "-rm", os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestUnescape(t *testing.T) {
	for text, want := range map[string]string{`/a\040b\134`: `/a b\`, `/\12`: `/\12`, "/a": "/a"} {
		if got := unescape(text); got != want {
			t.Errorf("%q is %q, not %q", text, got, want)
		}
	}
}
