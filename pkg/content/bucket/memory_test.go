// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"errors"
	"testing"
	"time"

	"gocloud.dev/blob/memblob"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/bucket"
)

// Writers of large content wait for one another, since each takes memory; those of small content do not.
func TestWritersWaitForMemory(t *testing.T) {
	s := bucket.New(memblob.OpenBucket(nil), "")
	s.SetTurn(10 * time.Millisecond)
	large, small := make([]byte, 5<<20), make([]byte, 100)
	write := func(p []byte) (content.Writer, error) {
		w, err := s.Create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Abort() })
		_, err = w.Write(p)
		return w, err
	}
	var writers []content.Writer
	for range bucket.MaxUploads {
		w, err := write(large)
		if err != nil {
			t.Fatal(err)
		}
		writers = append(writers, w)
	}
	if _, err := write(large); !errors.Is(err, bucket.ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	if w, err := write(small); err != nil {
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
	for range 2 {
		if _, err := write(large); err != nil {
			t.Errorf("after one ended: %v", err)
		}
	}
}
