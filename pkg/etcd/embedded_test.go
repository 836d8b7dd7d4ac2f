// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func start(t *testing.T, dir string) *Embedded {
	t.Helper()
	e, err := Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestKeepsData writes in process, reads over the socket, and reads again after a restart, for a folder with a
// short path and for one that is too long for a socket.
func TestKeepsData(t *testing.T) {
	for name, sub := range map[string]string{"short": "d", "long": strings.Repeat("long-", 20)} {
		t.Run(name, func(t *testing.T) {
			parent, err := os.MkdirTemp("", "e")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(parent) })
			dir := filepath.Join(parent, sub)
			e := start(t, dir)
			if _, err := e.Client().Put(t.Context(), "k", "v"); err != nil {
				t.Fatal(err)
			}
			remote, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint()}})
			if err != nil {
				t.Fatal(err)
			}
			expect(t, remote)
			if err := remote.Close(); err != nil {
				t.Error(err)
			}
			e.Close()
			again := start(t, dir)
			defer again.Close()
			expect(t, again.Client())
		})
	}
}

func expect(t *testing.T, client *clientv3.Client) {
	t.Helper()
	got, err := client.Get(context.WithoutCancel(t.Context()), "k")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v" {
		t.Errorf("got %v", got.Kvs)
	}
}

// TestListensOnItsSocketAlone looks for other sockets of the process: one without a path can be reached by
// everybody on the machine, and so can a port.
func TestListensOnItsSocketAlone(t *testing.T) {
	before := listeners(t)
	e := start(t, t.TempDir())
	defer e.Close()
	for s := range listeners(t) {
		if !before[s] && s != strings.TrimPrefix(e.Endpoint(), "unix://") {
			t.Errorf("something else listens, on %q", s)
		}
	}
	if info, err := os.Stat(filepath.Dir(strings.TrimPrefix(e.Endpoint(), "unix://"))); err != nil {
		t.Error(err)
	} else if info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may enter the folder of the socket: %v", info.Mode())
	}
}

// listeners are the sockets that this process listens on: paths and names of unix sockets, addresses of TCP.
func listeners(t *testing.T) map[string]bool {
	t.Helper()
	own := map[string]bool{}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		// A descriptor may be closed by now.
		if link, err := os.Readlink(fd); err == nil && strings.HasPrefix(link, "socket:[") {
			own[strings.Trim(strings.TrimPrefix(link, "socket:"), "[]")] = true
		}
	}
	found := map[string]bool{}
	scan(t, "/proc/self/net/unix", func(f []string) {
		const listening = "00010000"
		if len(f) >= 7 && f[3] == listening && own[f[6]] {
			found[strings.Join(f[7:], " ")] = true
		}
	})
	for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		scan(t, file, func(f []string) {
			const listening = "0A"
			if len(f) >= 10 && f[3] == listening && own[f[9]] {
				found[fmt.Sprintf("tcp %s", f[1])] = true
			}
		})
	}
	return found
}

func scan(t *testing.T, path string, line func(fields []string)) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		line(strings.Fields(s.Text()))
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

// A database that is none, or only the beginning of one, is an error that names it, and not the end of the process.
func TestADamagedDatabase(t *testing.T) {
	for name, damage := range map[string]func(file string) error{
		"other bytes": func(file string) error { return os.WriteFile(file, []byte(strings.Repeat("garbage ", 8<<10)), 0o600) },
		"few bytes":   func(file string) error { return os.WriteFile(file, []byte("garbage"), 0o600) },
		"cut":         func(file string) error { return os.Truncate(file, 8<<10) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			e := start(t, dir)
			if _, err := e.Client().Put(t.Context(), "k", "v"); err != nil {
				t.Fatal(err)
			}
			e.Close()
			file := filepath.Join(dir, "data", "member", "snap", "db")
			if err := damage(file); err != nil {
				t.Fatal(err)
			}
			e, err := Start(t.Context(), dir)
			if err == nil {
				e.Close()
			}
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), file) {
				t.Errorf("it starts with %v", err)
			}
		})
	}
}
