// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"rukpak.io/apiserver/pkg/diskfull"
	"rukpak.io/apiserver/pkg/flock"
)

// kept is a content in a cache.
type kept struct {
	place string
	bytes int64
	used  time.Time
}

// shrink removes contents that nobody reads, those that were used least lately first, until there is room for more bytes. It
// clears away what was left half-done, too.
func (c *Cache) shrink(room int64) error {
	all, err := c.contents()
	if err != nil {
		return err
	}
	total := room
	for _, k := range all {
		total += k.bytes
	}
	for _, k := range all {
		if total <= c.max {
			break
		}
		removed, err := remove(k.place)
		if err != nil {
			return err
		}
		if removed {
			total -= k.bytes
		}
	}
	return nil
}

// retry removes the content that was used least lately of those that nobody reads where an error says that the disk is full.
// It reports whether there was one, so that another try may do better.
func (c *Cache) retry(full error) bool {
	if !diskfull.Is(full) {
		return false
	}
	all, err := c.contents()
	if err != nil {
		return false
	}
	for _, k := range all {
		if removed, err := remove(k.place); err == nil && removed {
			return true
		}
	}
	return false
}

// contents are those that the cache has, what was used least lately first. What was left half-done is cleared away.
func (c *Cache) contents() ([]kept, error) {
	names, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, err
	}
	var all []kept
	for _, entry := range names {
		path := filepath.Join(c.dir, entry.Name())
		suffix := filepath.Ext(path)
		if !isHex(strings.TrimSuffix(entry.Name(), suffix)) {
			continue
		}
		switch suffix {
		case "":
			var k kept
			if k, err = look(path); err == nil {
				all = append(all, k)
			}
		case suffixNew, suffixLock:
			err = clearAway(strings.TrimSuffix(path, suffix))
		case suffixOld:
			err = os.RemoveAll(path)
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b kept) int { return cmp.Or(a.used.Compare(b.used), strings.Compare(a.place, b.place)) })
	return all, nil
}

// look says what is known of a content. One that is being removed takes nothing.
func look(place string) (kept, error) {
	k := kept{place: place}
	text, err := os.ReadFile(filepath.Join(place, bytesName))
	if err != nil {
		return k, ignoreMissing(err)
	}
	// One that is no number, since the disk was full or somebody wrote it, counts as nothing: the content goes when its turn comes.
	k.bytes, _ = strconv.ParseInt(string(text), 10, 64)
	info, err := os.Stat(place + suffixLock)
	if err != nil {
		return k, ignoreMissing(err) // then it was never used
	}
	k.used = info.ModTime()
	return k, nil
}

// clearAway removes what is left of one who was killed while he fetched a content: a folder that nobody fills any more, and the
// lock where there is no content.
func clearAway(place string) error {
	if _, err := os.Lstat(place); err == nil {
		if _, err := os.Lstat(place + suffixNew); errors.Is(err, os.ErrNotExist) {
			return nil // as it nearly always is
		}
	}
	held, err := flock.TryOpen(place+suffixLock, flock.Exclusive)
	if errors.Is(err, flock.ErrBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	err = os.RemoveAll(place + suffixNew)
	if _, missing := os.Lstat(place); errors.Is(missing, os.ErrNotExist) {
		// Whoever opens it in between finds, once he has the lock, that it is no more where it was.
		err = errors.Join(err, os.Remove(held.Name()))
	}
	return errors.Join(err, held.Close())
}

// remove removes a content unless somebody reads it.
func remove(place string) (removed bool, err error) {
	held, err := flock.TryOpen(place+suffixLock, flock.Exclusive)
	if errors.Is(err, flock.ErrBusy) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	old := place + suffixOld
	if err := os.RemoveAll(old); err != nil {
		return false, err
	}
	// In one step: the files are all there or all gone.
	if err := ignoreMissing(os.Rename(place, old)); err != nil {
		return false, err
	}
	return true, errors.Join(os.RemoveAll(old), os.Remove(held.Name()))
}
