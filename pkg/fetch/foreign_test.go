// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package fetch_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"rukpak.io/apiserver/pkg/fetch"
)

// At its start only what it made itself is removed.
func TestWhatIsForeignIsNotTidiedAway(t *testing.T) {
	hex := strings.Repeat("ab", 32)
	dir := t.TempDir()
	stays := []string{"..backup.new/precious", ".." + strings.Repeat("AB", 32) + ".new/precious", "..abc.new/precious"}
	goes := ".." + hex + ".new/part"
	for _, name := range append(stays, goes) {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "..told.new"), nil, 0o600), os.Symlink("x", filepath.Join(dir, "..current.new"))); err != nil {
		t.Fatal(err)
	}
	put(t, openVolume(t, dir, fetch.VolumeOptions{}), "a", 1)
	for _, name := range stays {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{filepath.Dir(goes), "..told.new", "..current.new"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}

// A name that will be needed is looked at before there is content, and what is there is neither followed nor removed.
func TestForeignNamesAreFoundAtTheStart(t *testing.T) {
	folder := func(_, path string) error {
		return errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "precious"), nil, 0o600))
	}
	link := func(outside, path string) error { return os.Symlink(outside, path) }
	for name, plant := range map[string]func(outside, path string) error{
		"..lock": link, "..told": folder, "..told.new": link, "..current.new": folder,
	} {
		t.Run(name, func(t *testing.T) {
			dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
			path := filepath.Join(dir, name)
			if err := plant(outside, path); err != nil {
				t.Fatal(err)
			}
			v, err := fetch.OpenVolume(t.Context(), dir, fetch.VolumeOptions{})
			if !errors.Is(err, fetch.ErrForeign) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v", err)
			}
			if err == nil {
				_ = v.Close()
			}
			if _, err := os.Lstat(outside); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a file was made outside: %v", err)
			}
			if _, err := os.Lstat(path); err != nil {
				t.Error(err)
			}
		})
	}
}

// What comes later is found when it is needed.
func TestForeignNamesAreFoundLater(t *testing.T) {
	digest, archive := generation("a", 1)
	for _, name := range []string{"..current.new", ".." + strings.TrimPrefix(digest, "sha256:") + ".new"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			v := openVolume(t, dir, fetch.VolumeOptions{})
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := v.Put(t.Context(), digest, strings.NewReader(string(archive))); !errors.Is(err, fetch.ErrForeign) {
				t.Errorf("%v", err)
			}
			if _, err := os.Lstat(path); err != nil {
				t.Error(err)
			}
		})
	}
}

// lines are those of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// Who waits for another says so, once.
func TestWaitingForTheVolumeIsLogged(t *testing.T) {
	dir := t.TempDir()
	v := openVolume(t, dir, fetch.VolumeOptions{})
	said := make(lines, 10)
	log := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(said)))
	ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), log), patience)
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		second, err := fetch.OpenVolume(ctx, dir, fetch.VolumeOptions{})
		if err == nil {
			err = second.Close()
		}
		opened <- err
	}()
	select {
	case line := <-said:
		if !strings.Contains(line, dir) {
			t.Error(line)
		}
	case <-time.After(patience):
		t.Error("it waits and says nothing")
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil || len(said) != 0 {
		t.Errorf("it said %d lines more, %v", len(said), err)
	}
}
