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
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
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
func TestDamagedData(t *testing.T) {
	const database, log = "snap/db", "wal"
	garbage := []byte(strings.Repeat("garbage ", 8<<10))
	// newest is the file of the log that is written to.
	newest := func(dir string) string {
		names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v, %v", dir, names, err)
		}
		return slices.Max(names)
	}
	for name, test := range map[string]struct {
		place  string
		damage func(place string) error
	}{
		"the database has other bytes": {database, func(file string) error { return os.WriteFile(file, garbage, 0o600) }},
		"the database has few bytes":   {database, func(file string) error { return os.WriteFile(file, garbage[:7], 0o600) }},
		"the database is cut":          {database, func(file string) error { return os.Truncate(file, 8<<10) }},
		"the database is gone":         {database, os.Remove},
		"the log is gone":              {log, os.RemoveAll},
		"the log is empty":             {log, func(dir string) error { return os.Truncate(newest(dir), 0) }},
		"the log has zeros":            {log, func(dir string) error { return os.WriteFile(newest(dir), make([]byte, 64<<20), 0o600) }},
		"the log has other bytes":      {log, func(dir string) error { return os.WriteFile(newest(dir), garbage, 0o600) }},
		"the log has one other byte":   {log, func(dir string) error { return alter(newest(dir), 500) }},
		"the database has other pages": {database, func(file string) error { return flip(file, 8<<10, 16<<10) }},
		"the log is cut":               {log, func(dir string) error { return os.Truncate(newest(dir), 400) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			e := start(t, dir)
			for i := range 3 * catchUpEntries {
				if _, err := e.Client().Put(t.Context(), fmt.Sprintf("k%d", i), "v"); err != nil {
					t.Fatal(err)
				}
			}
			e.Close()
			place := filepath.Join(dir, "data", "member", test.place)
			if err := test.damage(place); err != nil {
				t.Fatal(err)
			}
			e, err := Start(t.Context(), dir)
			if err == nil {
				e.Close()
			}
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), place) {
				t.Errorf("it starts with %v", err)
			}
		})
	}
}

// An etcd that is killed before it has an entry in its log has nothing that could be lost, and begins anew.
func TestAnUnbornEtcd(t *testing.T) {
	dir := t.TempDir()
	member := filepath.Join(dir, "data", "member")
	if err := os.MkdirAll(filepath.Join(member, "snap"), 0o700); err != nil {
		t.Fatal(err)
	}
	log, err := wal.Create(zap.NewNop(), filepath.Join(member, "wal"), []byte("metadata"))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkData(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(member); err != nil {
		t.Fatalf("what a living one has is gone: %v", err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	e := start(t, dir)
	defer e.Close()
	if _, err := e.Client().Put(t.Context(), "k", "v"); err != nil {
		t.Error(err)
	}
}

// flip changes all bytes of a part of a file.
func flip(file string, at, length int64) error {
	all, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for i := at; i < at+length; i++ {
		all[i] ^= 0xff
	}
	return os.WriteFile(file, all, 0o600)
}

// alter changes one byte of a file.
func alter(file string, at int64) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{b[0] ^ 1}, at)
	return err
}
