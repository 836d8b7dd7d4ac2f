// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"rukpak.io/apiserver/pkg/diskfull"
	"rukpak.io/apiserver/pkg/flock"
	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/tarball/extract"
)

// DefaultCacheBytes is the size of a cache whose options say nothing else.
const DefaultCacheBytes = 10 << 30

// The names in a cache's folder. HEX is the digest of a content.
//
//	HEX/files/   the files of the content, all of them
//	HEX/bytes    how much they take
//	HEX/entries  how many there are, directories among them
//	HEX.new/     files that are being written; whoever writes them holds the lock
//	HEX.lock     locked by who reads the files (shared), writes or removes them (alone). Its time is that of the last use
//	HEX.old/     files that are being removed
//
// Whatever else is there, such as lost+found, is nobody's business.
const (
	filesName   = "files"
	bytesName   = "bytes"
	entriesName = "entries"
	suffixNew   = ".new"
	suffixOld   = ".old"
	suffixLock  = ".lock"
)

// CacheOptions bound a cache.
type CacheOptions struct {
	// MaxBytes is about how much the contents may take on the disk. 0 means DefaultCacheBytes. What was used least lately goes
	// first, and nothing that is in use. A content that is larger by itself is refused.
	MaxBytes int64
}

// Cache keeps contents on disk, by digest. Any number of processes of one user may use the same folder at the same time: a
// content is fetched once, is there as a whole or not at all, and stays for as long as somebody reads it. A process that is killed
// leaves nothing behind that the next one does not clear away.
type Cache struct {
	dir string
	max int64
}

// OpenCache opens the cache in a folder, which it makes. The folder belongs to the cache alone, and has to be writable. On
// systems without flock it fails with errors.ErrUnsupported, and with the system's error where a file system has no locks.
func OpenCache(dir string, opts CacheOptions) (*Cache, error) {
	c := &Cache{dir: dir, max: opts.MaxBytes}
	if c.max <= 0 {
		c.max = DefaultCacheBytes
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if err := c.tryLock(); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if err := c.shrink(0); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	return c, nil
}

// noDigest is that of no content.
var noDigest = strings.Repeat("0", 2*sha256.Size)

// tryLock fails where there are no locks, before anybody counts on one. It is a file that is locked, as contents are: on NFS and
// others the lock of a folder is the kernel's own, and says nothing. What is left of one who is killed goes as other locks of
// nothing do.
func (c *Cache) tryLock() error {
	path := filepath.Join(c.dir, noDigest+suffixLock)
	held, err := flock.TryOpen(path, flock.Exclusive)
	switch {
	case err == nil:
		return errors.Join(os.Remove(path), held.Close())
	case errors.Is(err, flock.ErrBusy):
		return nil // so there are locks
	case diskfull.Is(err):
		return nil // of which nothing is known then, and what is there can be read
	default:
		return errors.Join(err, ignoreMissing(os.Remove(path)))
	}
}

// errNoDigest means that a name in the cache would not be one.
var errNoDigest = errors.New(`not "sha256:" and 64 hexadecimal digits`)

// path is where the content with a digest is, with a suffix.
func (c *Cache) path(digest, suffix string) (string, error) {
	name, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || !isHex(name) {
		return "", fmt.Errorf("digest %q: %w", digest, errNoDigest)
	}
	return filepath.Join(c.dir, name+suffix), nil
}

// isHex reports whether a name is one of a content.
func isHex(name string) bool {
	raw, err := hex.DecodeString(name)
	return err == nil && len(raw) == 32 && name == strings.ToLower(name)
}

// fetcher opens the archive of a content.
type fetcher func(context.Context) (io.ReadCloser, error)

// errHeld means that files are missing which cannot be fetched into the cache, since somebody reads the others.
var errHeld = errors.New("its files in the cache are not whole, and in use")

// maxHeld is how often open looks at files that are not whole and that somebody has until it gives up.
const maxHeld = 50

// open returns the files of a content, with a lock that keeps them until it is closed. Where some are missing all are
// fetched; others that want the same content wait for that. The error is errHeld where that cannot be.
func (c *Cache) open(ctx context.Context, digest string, fetch fetcher) (dir string, held *os.File, err error) {
	place, err := c.path(digest, "")
	if err != nil {
		return "", nil, err
	}
	dir = filepath.Join(place, filesName)
	var broken os.FileInfo
	for looks := 0; ; looks++ {
		if err := ctx.Err(); err != nil {
			return "", nil, context.Cause(ctx)
		}
		held, err = flock.Open(ctx, place+suffixLock, flock.Shared)
		if c.retry(err) {
			continue
		}
		if err != nil {
			return "", nil, err
		}
		var ok bool
		if ok, broken, err = whole(place, broken); ok {
			now := time.Now()
			// It matters for what goes first, no more.
			_ = os.Chtimes(held.Name(), now, now)
			return dir, held, nil
		}
		if err := errors.Join(err, held.Close()); err != nil {
			return "", nil, err
		}
		held, err = flock.TryOpen(place+suffixLock, flock.Exclusive)
		if errors.Is(err, flock.ErrBusy) {
			// Somebody fetches it, or reads what was fetched since the look, maybe for long: so look again. Or he reads what is
			// left of files that were whole when he came, for as long as he likes.
			if looks >= maxHeld {
				return "", nil, errHeld
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		if err != nil {
			return "", nil, err
		}
		if err := errors.Join(c.fill(ctx, held.Name(), place, fetch), held.Close()); err != nil {
			return "", nil, err
		}
	}
}

// pause is the time between two looks at what somebody else is at.
const pause = 20 * time.Millisecond

// whole reports whether the files of a content are all there: whatever cleans folders that it takes for temporary ones removes
// single files. One whose number was never written down is fetched anew. broken is what an earlier look found not whole, and is
// not counted again: who counts has the lock, and many who count would keep each other from fetching it.
func whole(place string, broken os.FileInfo) (bool, os.FileInfo, error) {
	info, err := os.Stat(place)
	if err != nil {
		return false, nil, ignoreMissing(err)
	}
	if broken != nil && os.SameFile(info, broken) && info.ModTime().Equal(broken.ModTime()) {
		return false, broken, nil
	}
	text, err := os.ReadFile(filepath.Join(place, entriesName))
	if err != nil {
		return false, info, ignoreMissing(err)
	}
	entries := int64(-1) // the folder itself is none
	err = filepath.WalkDir(filepath.Join(place, filesName), func(_ string, _ fs.DirEntry, err error) error {
		entries++
		return err
	})
	return err == nil && string(text) == strconv.FormatInt(entries, 10), info, ignoreMissing(err)
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// fill fetches a content unless it is there by now. Its lock is held, and removed where it cannot be fetched. On a full disk
// other contents go, one after the other.
func (c *Cache) fill(ctx context.Context, lock, place string, fetch fetcher) error {
	if ok, _, err := whole(place, nil); ok || err != nil {
		return err
	}
	part := place + suffixNew
	// Of one who was killed, and what somebody has taken the files out of.
	if err := errors.Join(os.RemoveAll(part), os.RemoveAll(place)); err != nil {
		return err
	}
	for {
		err := c.write(ctx, part, fetch)
		if err == nil {
			return os.Rename(part, place)
		}
		err = errors.Join(err, os.RemoveAll(part))
		if !c.retry(err) {
			return errors.Join(err, os.Remove(lock))
		}
	}
}

// write fetches a content into a folder that is not there yet.
func (c *Cache) write(ctx context.Context, part string, fetch fetcher) error {
	files := filepath.Join(part, filesName)
	if err := os.MkdirAll(files, 0o700); err != nil {
		return err
	}
	content, err := fetch(ctx)
	if err != nil {
		return err
	}
	summary, err := extract.Tree(ctx, content, files, extract.Options{Limits: tarball.Limits{Bytes: c.max}})
	if err := errors.Join(err, content.Close()); err != nil {
		return err
	}
	for name, n := range map[string]int64{bytesName: summary.Disk, entriesName: summary.Entries} {
		if err := os.WriteFile(filepath.Join(part, name), strconv.AppendInt(nil, n, 10), 0o600); err != nil {
			return err
		}
	}
	if err := extract.Sync(part); err != nil {
		return err
	}
	return c.shrink(summary.Disk)
}
