// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package filesystem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/filesystem"
)

// TestFullDisk runs a child in namespaces of its own, where it may mount a small disk.
func TestFullDisk(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), smallDisk+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("this machine gives no user namespace: %v", err)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// fillSmallDisk is what the child does.
func fillSmallDisk(dir string) error {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	ctx := context.Background()
	s, err := filesystem.Open(dir)
	if err != nil {
		return err
	}
	old := contenttest.Blob{Seed: 1, Size: 1000}
	digest, err := old.Put(ctx, s)
	if err != nil {
		return err
	}
	big := contenttest.Blob{Seed: 2, Size: 8 << 20}
	if _, err := big.Put(ctx, s); !errors.Is(err, content.ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("writing 8 MiB to a disk of 3 MiB: %v", err)
	}
	// A writer whose Write failed does not commit what it has.
	w, err := s.Create(ctx)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = w.Write(make([]byte, 1<<20))
	}
	if err := w.Commit(ctx, w.Digest()); !errors.Is(err, content.ErrNoSpace) {
		return fmt.Errorf("commit after a failed write: %v", err)
	}
	// Nothing of it is left, so there is room again, and the old blob is served.
	if _, err := (contenttest.Blob{Seed: 3, Size: 1 << 20}).Put(ctx, s); err != nil {
		return fmt.Errorf("after the disk was full: %w", err)
	}
	if info, err := s.Stat(ctx, digest); err != nil || info.Size != old.Size {
		return fmt.Errorf("the old blob: %+v, %w", info, err)
	}
	return s.Close()
}
