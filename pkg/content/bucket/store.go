// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bucket keeps content in an object store: Amazon S3 and what speaks its protocol,
// Google Cloud Storage, Azure Blob Storage.
//
//	PREFIXblobs/sha256/HEX    blobs
//	PREFIXindex/sha256/HEX    their indexes
//	PREFIXtmp/ID              blobs that are being written
//	PREFIXmark                the mark of the store
//
// An object becomes visible whole or not at all, and replaces what had its name, in one step.
// It cannot be renamed, and the name of a blob is known only after its last byte. So what fits
// into memory is put at its name when it is committed; what does not goes to an object of its
// own, as it comes, which Commit has the object store copy to the name. An object that points
// to another would spare the copy. But then every reading were two requests of which the second could
// meet a replaced object, and the sweeper would have to tell by two listings which objects nothing points to;
// as it is, nothing is ever removed but by Delete and what stands in tmp.
//
// The object store must show what was written to whoever reads next; S3, Google and Azure do.
// Nothing else is asked of it than to put, in one or many parts, get by range, head, copy, delete and list.
package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"gocloud.dev/blob"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/places"
	"rukpak.io/apiserver/pkg/failpoint"
)

// Folders and objects below the prefix.
const (
	blobFolder  = "blobs/" + content.Algorithm + "/"
	indexFolder = "index/" + content.Algorithm + "/"
	tmpFolder   = "tmp/"
	markObject  = "mark"
)

// remember is how long a full bucket is taken to be full without a further try.
const remember = 30 * time.Second

// Store is a content.Store in a bucket.
type Store struct {
	bucket  *blob.Bucket
	cloud   cloud
	prefix  string
	patient patience
	release func() // lets go of connections
	fullAt  atomic.Int64
	uploads *places.Places // one for each upload that is under way
	turn    time.Duration  // that a writer waits for one of them to end
}

var _ content.Store = (*Store)(nil)

// cloud is what one kind of object store does differently.
type cloud struct {
	// absent reports that an object is not there, or its bucket.
	absent func(error) bool
	// full reports that there is no space left.
	full func(error) bool
	// check has the object store compare what arrives with a hash, MD5, as all of them can.
	check func(o *blob.WriterOptions, md5 []byte)
	// abandon ends uploads under a prefix that began before. Nil where the object store does that by itself.
	abandon func(ctx context.Context, prefix string, before time.Time) error
	// copy has the object store copy an object of so many bytes. Nil is the library's way.
	copy func(ctx context.Context, to, from string, size int64) error
	// prefix, if it is not nil, refuses the prefix of a store.
	prefix func(string) error
	// endsByError says that an upload whose reader fails stores nothing and cleans up behind
	// itself. Any other is ended by its context.
	endsByError bool
	// most is the greatest size of a blob, 0 for any.
	most int64
}

// checkMD5 is the check of most.
func checkMD5(o *blob.WriterOptions, md5 []byte) { o.ContentMD5 = md5 }

// Create begins a blob.
func (s *Store) Create(ctx context.Context) (content.Writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create content: %w", err)
	}
	return newWriter(ctx, s), nil
}

// Open returns a reader that goes on from where it was when its connection breaks.
func (s *Store) Open(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error) {
	key, err := s.key(ctx, blobFolder, digest)
	if err != nil {
		return nil, fmt.Errorf("open content: %w", err)
	}
	r, err := s.open(ctx, key, offset, length)
	if err != nil {
		return nil, fmt.Errorf("open content %s: %w", digest, err)
	}
	return r, nil
}

// Stat describes a blob.
func (s *Store) Stat(ctx context.Context, digest string) (content.Info, error) {
	key, err := s.key(ctx, blobFolder, digest)
	if err != nil {
		return content.Info{}, fmt.Errorf("stat content: %w", err)
	}
	attributes, err := s.head(ctx, key)
	if err != nil {
		return content.Info{}, fmt.Errorf("stat content %s: %w", digest, err)
	}
	return content.Info{Digest: digest, Size: attributes.Size, ModTime: attributes.ModTime}, nil
}

// Delete removes a blob and its index.
func (s *Store) Delete(ctx context.Context, digest string) error {
	for _, folder := range []string{blobFolder, indexFolder} {
		key, err := s.key(ctx, folder, digest)
		if err != nil {
			return fmt.Errorf("delete content: %w", err)
		}
		if err := s.remove(ctx, key); err != nil {
			return fmt.Errorf("delete content %s: %w", digest, err)
		}
		if folder == blobFolder {
			failpoint.Hit("bucket/after-delete")
		}
	}
	return nil
}

// Walk calls fn for each blob, ordered by digest. Objects that are no blobs are passed over.
func (s *Store) Walk(ctx context.Context, fn func(content.Info) error) error {
	list := s.list(blobFolder)
	for {
		object, err := list.next(ctx)
		if err != nil {
			return fmt.Errorf("walk content: %w", err)
		}
		if object == nil {
			return nil
		}
		digest := content.Algorithm + ":" + object.name
		if _, err := content.ParseDigest(digest); err != nil {
			continue
		}
		if err := fn(content.Info{Digest: digest, Size: object.size, ModTime: object.modified}); err != nil {
			return err
		}
	}
}

// Room returns an error where the object store said a moment ago that it is full.
func (s *Store) Room(context.Context) error {
	if time.Since(time.Unix(0, s.fullAt.Load())) < remember {
		return fmt.Errorf("%w: the object store refuses more", content.ErrNoSpace)
	}
	return nil
}

// ReadMark returns the mark.
func (s *Store) ReadMark(ctx context.Context) ([]byte, error) {
	r, err := s.open(ctx, s.prefix+markObject, 0, -1)
	if errors.Is(err, content.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read mark: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, content.MaxMark))
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("read mark: %w", err)
	}
	return text, nil
}

// WriteMark replaces the mark.
func (s *Store) WriteMark(ctx context.Context, mark []byte) error {
	if len(mark) > content.MaxMark {
		return fmt.Errorf("write mark: %d bytes are more than %d", len(mark), content.MaxMark)
	}
	if err := s.putBytes(ctx, s.prefix+markObject, mark); err != nil {
		return fmt.Errorf("write mark: %w", err)
	}
	return nil
}

// Shared reports that many processes may use the store.
func (s *Store) Shared() bool { return true }

// Close lets go of the connections.
func (s *Store) Close() error {
	err := s.bucket.Close()
	s.release()
	return err
}

// key is where the blob or the index of a digest stands.
func (s *Store) key(ctx context.Context, folder, digest string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	hex, err := content.ParseDigest(digest)
	if err != nil {
		return "", err
	}
	return s.prefix + folder + hex, nil
}

func (s *Store) head(ctx context.Context, key string) (*blob.Attributes, error) {
	call, cancel := s.patient.call(ctx)
	defer cancel()
	attributes, err := s.bucket.Attributes(call, key)
	if err != nil {
		return nil, s.explain(ctx, call, err)
	}
	return attributes, nil
}

// remove deletes an object. It is no error if there is none.
func (s *Store) remove(ctx context.Context, key string) error {
	call, cancel := s.patient.call(ctx)
	defer cancel()
	err := s.bucket.Delete(call, key)
	if err == nil {
		return nil
	}
	if err := s.explain(ctx, call, err); !errors.Is(err, content.ErrNotFound) {
		return err
	}
	return nil
}

// explain says what an error of a call means.
//
// "Not found" must be beyond doubt: content that is believed to be lost is fetched again, or taken
// out of the status of its bundle. So it counts only if the bucket answers a listing. What the
// library calls not found is not enough: there, a host without an address, a
// forbidden bucket, and any error of S3 with "301" in its text, which a digest may hold, are as well.
func (s *Store) explain(ctx, call context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case call.Err() != nil:
		return fmt.Errorf("%w: %w", context.Cause(call), err)
	case s.cloud.full(err):
		s.fullAt.Store(time.Now().UnixNano())
		return fmt.Errorf("%w: %w", content.ErrNoSpace, err)
	case s.cloud.absent(err):
		if err := s.reach(ctx); err != nil {
			return err
		}
		return content.ErrNotFound
	default:
		return err
	}
}

// reach lists one object, to see that the bucket is there.
func (s *Store) reach(ctx context.Context) error {
	call, cancel := s.patient.call(ctx)
	defer cancel()
	if _, _, err := s.bucket.ListPage(call, blob.FirstPageToken, 1, &blob.ListOptions{Prefix: s.prefix}); err != nil {
		return fmt.Errorf("the bucket cannot be listed: %w", err)
	}
	return nil
}

// object is one of a listing.
type object struct {
	name     string // below the folder
	size     int64
	modified time.Time
}

// listing gives the objects of a folder, ordered by name, a page at a time.
type listing struct {
	store  *Store
	prefix string
	token  []byte
	page   []*blob.ListObject
}

const pageSize = 1000

func (s *Store) list(folder string) *listing {
	return &listing{store: s, prefix: s.prefix + folder, token: blob.FirstPageToken}
}

// next returns nil at the end.
func (l *listing) next(ctx context.Context) (*object, error) {
	for len(l.page) == 0 {
		if l.token == nil {
			return nil, ctx.Err()
		}
		if err := l.turn(ctx); err != nil {
			return nil, err
		}
	}
	found := l.page[0]
	l.page = l.page[1:]
	return &object{strings.TrimPrefix(found.Key, l.prefix), found.Size, found.ModTime}, ctx.Err()
}

func (l *listing) turn(ctx context.Context) (err error) {
	call, cancel := l.store.patient.call(ctx)
	defer cancel()
	l.page, l.token, err = l.store.bucket.ListPage(call, l.token, pageSize, &blob.ListOptions{Prefix: l.prefix})
	if err != nil {
		return l.store.explain(ctx, call, err)
	}
	return nil
}
