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
	names, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	var all []kept
	total := room
	for _, entry := range names {
		path := filepath.Join(c.dir, entry.Name())
		switch filepath.Ext(path) {
		case "":
			k, err := look(path)
			if err != nil {
				return err
			}
			total += k.bytes
			all = append(all, k)
		case suffixNew:
			err = c.clear(strings.TrimSuffix(path, suffixNew), path)
		case suffixOld:
			err = os.RemoveAll(path)
		}
		if err != nil {
			return err
		}
	}
	slices.SortFunc(all, func(a, b kept) int { return cmp.Or(a.used.Compare(b.used), strings.Compare(a.place, b.place)) })
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

// look says what is known of a content. One that is being removed takes nothing.
func look(place string) (kept, error) {
	k := kept{place: place}
	text, err := os.ReadFile(filepath.Join(place, bytesName))
	if err != nil {
		return k, ignoreMissing(err)
	}
	if k.bytes, err = strconv.ParseInt(string(text), 10, 64); err != nil {
		return k, err
	}
	info, err := os.Stat(place + suffixLock)
	if err != nil {
		return k, ignoreMissing(err) // then it was never used
	}
	k.used = info.ModTime()
	return k, nil
}

// clear removes a folder that somebody began to fill and does not fill any more.
func (c *Cache) clear(place, part string) error {
	held, err := flock.TryOpen(place+suffixLock, flock.Exclusive)
	if errors.Is(err, flock.ErrBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(part), held.Close())
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
