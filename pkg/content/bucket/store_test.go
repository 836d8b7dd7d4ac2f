// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gocloud.dev/blob/memblob"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/bucket"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/s3test"
)

// childURL tells a process of this test binary to be a writer that is going to be killed.
const childURL = "BUCKET_TEST_CHILD"

func TestMain(m *testing.M) {
	if text := os.Getenv(childURL); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return err
	}
	s, err := bucket.Open(context.Background(), u, bucket.Options{})
	if err != nil {
		return err
	}
	return errors.Join(contenttest.Child(s), s.Close())
}

func open(t testing.TB, u *url.URL, options bucket.Options) *bucket.Store {
	t.Helper()
	s, err := bucket.Open(t.Context(), u, options)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestS3(t *testing.T) {
	server := s3test.Start(t)
	server.Setenv(t)
	var places atomic.Int64 // tests that are parallel have one each
	contenttest.Run(t, func(t *testing.T) contenttest.Harness {
		place := places.Add(1)
		name, prefix := fmt.Sprintf("bucket-%d", place), ""
		if place%2 == 0 {
			prefix = "a/folder"
		}
		u := server.Bucket(t, name, prefix)
		return contenttest.Harness{
			Open: func(t *testing.T) (content.Store, func() error) {
				s := open(t, u, bucket.Options{})
				return s, s.Close
			},
			Borders: []int64{4 << 20, 8 << 20},
			Small:   small,
			Faulty: func(t *testing.T, next func() contenttest.Fault) content.Store {
				return open(t, u, bucket.Options{Call: 2 * time.Second, Pause: 10 * time.Millisecond, Wrap: func(base http.RoundTripper) http.RoundTripper {
					return faulty{base, next}
				}})
			},
			Failpoints: []string{"bucket/after-put", "bucket/after-upload", "bucket/after-copy", "bucket/after-delete"},
			Debris:     func(t *testing.T) []string { return debris(t, filepath.Join(server.Folder, name), prefix) },
			Child: func(t *testing.T) *exec.Cmd {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), childURL+"="+u.String())
				return cmd
			},
		}
	})
}

// small is a store in a server with a small disk.
func small(t *testing.T) (content.Store, int64) {
	const disk = 48 << 20
	server := s3test.StartSmall(t, disk, "small")
	server.Setenv(t)
	// What is written in parts is there twice while the parts are put together, or copied.
	return open(t, server.Bucket(t, "small", ""), bucket.Options{Pause: 10 * time.Millisecond}), disk / 2
}

// debris names the objects, and the parts of unfinished ones, that are neither blob, index nor mark.
func debris(t *testing.T, folder, prefix string) []string {
	t.Helper()
	var left []string
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(filepath.Join(folder, prefix), path)
		if err != nil {
			return err
		}
		if !isOurs(name) {
			left = append(left, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// isOurs reports whether an object is what is there when nobody writes.
func isOurs(name string) bool {
	return name == "mark" || strings.HasPrefix(name, "blobs/sha256/") || strings.HasPrefix(name, "index/sha256/")
}

func TestMemory(t *testing.T) {
	contenttest.Run(t, func(*testing.T) contenttest.Harness {
		b := memblob.OpenBucket(nil)
		return contenttest.Harness{
			Open: func(*testing.T) (content.Store, func() error) {
				s := bucket.New(b, "")
				return s, func() error { return nil }
			},
			Debris: func(*testing.T) []string { return nil },
		}
	})
}
