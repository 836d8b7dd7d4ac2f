// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package content defines the store that keeps the bytes of bundles.
//
// A store is content-addressed: a blob is named by the digest of its bytes, is
// whole or absent, and is the same for everybody who stored it. A store knows
// neither bundles nor who may read what. Which bundle has which blob is said by
// the records of package reference, and what nobody has any more is removed by
// package collect. Nothing here knows of Kubernetes.
//
// Storing:
//
//	w, err := store.Create(ctx)
//	defer w.Abort()
//	io.Copy(w, body)
//	records.Add(ctx, ref)       // names w.Digest()
//	w.Commit(ctx, w.Digest())
//
// Every backend passes the suite of package contenttest.
package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Store keeps blobs. It is safe for use by many goroutines at once.
//
// A digest that ParseDigest refuses is answered with ErrInvalidDigest by every
// method that takes one, and a context that is done with its error. Where space
// runs out the error is ErrNoSpace, and ErrBusy where a write waited in vain for others to end.
type Store interface {
	// Create begins a blob. Nothing of it can be seen before Commit, and nothing of it is
	// left when the process ends before. ctx bounds the writing: once it is done, Write
	// fails. Commit has a context of its own. The caller ends every Writer with Commit or Abort.
	Create(ctx context.Context) (Writer, error)

	// Open reads length bytes of a blob from offset; a negative length, or one that goes
	// beyond the end, reads to the end. An offset equal to the size gives no bytes; a
	// greater or a negative one is ErrOutOfRange. ErrNotFound if there is no such blob.
	//
	// The caller closes the reader. A reader that is open gives the whole of its range even
	// when the blob is deleted meanwhile. ctx must stay alive for as long as the reader is
	// used. The reader of a backend may offer more, such as io.Seeker.
	Open(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error)

	// Stat describes a blob. ErrNotFound if there is no such blob.
	Stat(ctx context.Context, digest string) (Info, error)

	// Delete removes a blob for good, and its index. It is no error if there is none.
	Delete(ctx context.Context, digest string) error

	// PutIndex keeps size bytes of r beside a blob, in place of what it kept there before, in
	// one step. An index is made from its blob and can be made again, so it need not outlive a
	// crash; but it is never half there. ErrNotFound if there is no such blob.
	PutIndex(ctx context.Context, digest string, r io.Reader, size int64) error

	// OpenIndex reads the index of a blob as Open reads the blob. ErrNotFound if there is none.
	OpenIndex(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error)

	// Walk calls fn for each blob, in no promised order, and ends with the first error of
	// fn, as it is. A blob that is there for the whole walk is visited exactly once; one
	// that comes or goes meanwhile may be or may not be.
	Walk(ctx context.Context, fn func(Info) error) error

	// ReadMark returns the mark of the store, nil if it has none. The mark says whose the
	// store is; the store does not look into it.
	ReadMark(ctx context.Context) ([]byte, error)

	// WriteMark replaces the mark, of at most MaxMark bytes, in one step and lastingly.
	WriteMark(ctx context.Context, mark []byte) error

	// Room returns an error that is ErrNoSpace and says why where the store should take no
	// more content in, and nil where it may. It is quick, and no promise: a write can fail still.
	Room(ctx context.Context) error

	// Sweep removes what writers left that died before the end, if it is older than olderThan: that
	// is longer than any writer works, and than the clocks of machines differ. A writer that
	// lives and is taken for a dead one fails; blobs, their indexes and the mark are never touched.
	Sweep(ctx context.Context, olderThan time.Duration) error

	// Shared reports whether several processes may use the store at the same time.
	Shared() bool

	// Close ends the use of the store. Readers that are open may fail after it.
	Close() error
}

// MaxMark is the greatest length of a mark, in bytes.
const MaxMark = 4 << 10

// Writer receives the bytes of one blob. It belongs to one goroutine.
type Writer interface {
	io.Writer

	// Size is the number of bytes written so far.
	Size() int64

	// Digest is that of the bytes written so far. The store hashes while it writes, so a
	// caller needs no hash of its own.
	Digest() string

	// Commit makes the blob visible and lasting: when it returns nil, the blob survives the
	// loss of power. The bytes written must have the digest, else ErrDigestMismatch; after
	// a Write that failed it returns the error of that. It does not depend on the context of
	// Create: a client that leaves after its last byte need not undo the work.
	// The bytes take the place of a blob of the same digest, in one step; Commit never
	// leaves them out because they seem to be there, so a blob that Delete removed before
	// Commit was called is there after it.
	//
	// Whatever it returns, the Writer is finished. After an error of Commit the blob may be
	// there only if the error came after it became visible (a failed sync of a folder); the
	// caller treats it as not stored.
	Commit(ctx context.Context, digest string) error

	// Abort drops the bytes. After Commit or Abort it does nothing and returns nil, so it
	// can be deferred.
	Abort() error
}

// Info describes a blob.
type Info struct {
	Digest  string    // sha256:HEX
	Size    int64     // bytes
	ModTime time.Time // of the last Commit
}

// Errors of stores, to be found with errors.Is.
var (
	ErrNotFound       = errors.New("content not found")
	ErrDigestMismatch = errors.New("content does not have the digest")
	ErrInvalidDigest  = errors.New("invalid digest")
	ErrOutOfRange     = errors.New("range starts outside the content")
	ErrNoSpace        = errors.New("content store is full")
	// ErrBusy means that the store takes no more at the same time, and would in a moment.
	ErrBusy     = errors.New("content store is busy")
	ErrFinished = errors.New("writer is finished")
)

// Algorithm is the one algorithm of digests.
const Algorithm = "sha256"

const hexLength = 64

// ParseDigest returns the hexadecimal part of a digest. It accepts exactly
// "sha256:" and 64 lower-case hexadecimal digits, one spelling for one blob, and
// answers anything else with ErrInvalidDigest.
func ParseDigest(digest string) (hex string, err error) {
	hex, ok := strings.CutPrefix(digest, Algorithm+":")
	if !ok || len(hex) != hexLength {
		return "", invalidDigest(digest)
	}
	for _, c := range []byte(hex) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", invalidDigest(digest)
		}
	}
	return hex, nil
}

// invalidDigest quotes at most what a digest may be long: the text can come from a request.
func invalidDigest(digest string) error {
	const most = len(Algorithm) + 1 + hexLength
	if len(digest) > most {
		return fmt.Errorf("%w: %q and %d bytes more", ErrInvalidDigest, digest[:most], len(digest)-most)
	}
	return fmt.Errorf("%w: %q", ErrInvalidDigest, digest)
}
