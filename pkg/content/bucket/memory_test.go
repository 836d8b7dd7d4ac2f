// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"gocloud.dev/blob/memblob"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/bucket"
	"rukpak.io/apiserver/pkg/panics"
)

// Writers of large content wait for one another, since each takes memory; those of small content do not.
func TestWritersWaitForMemory(t *testing.T) {
	s := bucket.New(memblob.OpenBucket(nil), "")
	s.SetTurn(10 * time.Millisecond)
	large, small := make([]byte, 5<<20), make([]byte, 100)
	write := func(tenant string, p []byte) (content.Writer, error) {
		w, err := s.Create(content.ForTenant(t.Context(), tenant))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Abort() })
		_, err = w.Write(p)
		return w, err
	}
	var writers []content.Writer
	for i := range bucket.MaxUploads {
		w, err := write(fmt.Sprint("tenant-", i), large)
		if err != nil {
			t.Fatal(err)
		}
		writers = append(writers, w)
	}
	if _, err := write("another", large); !errors.Is(err, bucket.ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	if w, err := write("another", small); err != nil {
		t.Errorf("small content: %v", err)
	} else if err := w.Commit(t.Context(), w.Digest()); err != nil {
		t.Error(err)
	}
	if err := writers[0].Commit(t.Context(), writers[0].Digest()); err != nil {
		t.Fatal(err)
	}
	if err := writers[1].Abort(); err != nil {
		t.Fatal(err)
	}
	s.SetTurn(time.Minute)
	for i := range 2 {
		if _, err := write(fmt.Sprint("tenant-", i), large); err != nil {
			t.Errorf("after one ended: %v", err)
		}
	}
}

// A panic in the client of the object store is the error of the writer.
func TestAnUploadPanics(t *testing.T) {
	s := bucket.New(nil, "") // no bucket: every call of it panics
	w, err := s.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Write(make([]byte, 5<<20))
	if _, ok := errors.AsType[*panics.Error](err); !ok {
		t.Error(err)
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
}

// TestSlowWritersOfOneTenant has one tenant begin as many uploads as it can, none of which goes on.
func TestSlowWritersOfOneTenant(t *testing.T) {
	s := bucket.New(memblob.OpenBucket(nil), "")
	s.SetTurn(10 * time.Millisecond)
	write := func(tenant string) (content.Writer, error) {
		w, err := s.Create(content.ForTenant(t.Context(), tenant))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Abort() })
		_, err = w.Write(make([]byte, 5<<20))
		return w, err
	}
	n := 0
	for ; n <= bucket.MaxUploads; n++ {
		if _, err := write("slow"); errors.Is(err, bucket.ErrBusy) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n != bucket.MaxUploads/2 {
		t.Errorf("one tenant has %d uploads of %d", n, bucket.MaxUploads)
	}
	for range 2 {
		w, err := write("quick")
		if err != nil {
			t.Fatalf("another tenant: %v", err)
		}
		if err := w.Commit(t.Context(), w.Digest()); err != nil {
			t.Error(err)
		}
	}
}
