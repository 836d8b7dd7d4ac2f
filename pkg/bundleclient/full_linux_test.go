// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"rukpak.io/apiserver/pkg/bundleclient"
)

// fullVariable makes the test program a process in namespaces of its own, which may mount a small volume there.
const fullVariable = "BUNDLECLIENT_TEST_FULL"

// TestOnAFullVolumeWhatNobodyReadsGoes has a volume that is smaller than the bound of the cache.
func TestOnAFullVolumeWhatNobodyReadsGoes(t *testing.T) {
	if os.Getenv(fullVariable) == "" {
		inNamespaces(t)
		return
	}
	for name, options := range map[string]string{"bytes": "size=1m", "entries": "nr_inodes=30"} {
		t.Run(name, func(t *testing.T) { onAFullVolume(t, options) })
	}
}

func inNamespaces(t *testing.T) {
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
}

func onAFullVolume(t *testing.T, options string) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("no volume may be mounted here: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	a := startAPI(t)
	client := clientOf(t, a, bundleclient.Options{Cache: openCache(t, dir, 1<<30)})
	for i := range 6 {
		a.Put(fmt.Sprint("team/b", i), sized(fmt.Sprint(i), 300_000), true)
	}
	held := open(t, client, "b0")
	for i := 1; i < 6; i++ {
		if err := open(t, client, fmt.Sprint("b", i)).Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(held.Dir() + "/data/file"); err != nil {
		t.Errorf("what is read is gone: %v", err)
	}
	// Where nothing is left to remove it says why.
	a.Put("team/large", files("large", 300), true)
	if _, err := client.Open(t.Context(), "team", "large", bundleclient.OpenOptions{}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a content that is larger than the volume: %v", err)
	}
	if names := kept(t, dir); len(names) != 1 {
		t.Errorf("there is left %q", names)
	}
	if err := held.Close(); err != nil {
		t.Error(err)
	}
}
