// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"rukpak.io/apiserver/pkg/content/listing"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

const (
	// maxListed bounds the entries of the lists that are kept, some 300 bytes each, and the lists. One list is kept however long it is.
	maxListed = 20_000
	// maxLinks is how many symbolic links a path may lead through, as on the server.
	maxLinks = 40
)

// errLoop means that symbolic links lead in a circle.
var errLoop = errors.New("too many symbolic links")

// lists are those that were read last. They are of one content, and so do not change.
type lists struct {
	flights singleflight.Group // by directory, so that many who want the same read it once

	mu    sync.Mutex // never held while something is read
	kept  map[string][]*remoteInfo
	order []string // of what is kept, what was used last at the end
	total int      // by weight
}

// weight is what a list counts for. One that is empty takes memory, too.
func weight(all []*remoteInfo) int { return len(all) + 1 }

// get is a list that is kept.
func (l *lists) get(dir string) ([]*remoteInfo, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all, ok := l.kept[dir]
	if ok {
		l.order = append(slices.DeleteFunc(l.order, func(d string) bool { return d == dir }), dir)
	}
	return all, ok
}

// keep keeps a list that was not, in place of those that were not used for longest.
func (l *lists) keep(dir string, all []*remoteInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept == nil {
		l.kept = map[string][]*remoteInfo{}
	}
	l.kept[dir] = all
	l.order = append(l.order, dir)
	for l.total += weight(all); l.total > maxListed && len(l.order) > 1; l.order = l.order[1:] {
		l.total -= weight(l.kept[l.order[0]])
		delete(l.kept, l.order[0])
	}
}

// list is what is in a directory, by name.
func (r *RemoteFS) list(dir string) ([]*remoteInfo, error) {
	if all, ok := r.lists.get(dir); ok {
		return all, nil
	}
	read, err, _ := r.lists.flights.Do(dir, func() (any, error) {
		// Another flight may have ended since.
		if all, ok := r.lists.get(dir); ok {
			return all, nil
		}
		all, err := r.readList(dir)
		if err == nil {
			r.lists.keep(dir, all)
		}
		return all, err
	})
	if err != nil {
		return nil, err
	}
	return read.([]*remoteInfo), nil
}

func (r *RemoteFS) readList(dir string) ([]*remoteInfo, error) {
	at := dir
	if at == "." {
		at = ""
	}
	var all []*remoteInfo
	opts := typed.ListFilesOptions{Digest: r.Digest, Patience: r.patience}
	for e, err := range r.bundles.Bundles(r.namespace).ListFiles(r.ctx, r.name, at, opts) {
		if err != nil {
			return nil, err
		}
		info, err := newRemoteInfo(e)
		if err != nil {
			return nil, fmt.Errorf("list of the files of bundle %q: %w", r.name, err)
		}
		all = append(all, info)
	}
	slices.SortFunc(all, compareNames)
	return all, nil
}

func compareNames(a, b *remoteInfo) int { return strings.Compare(a.name, b.name) }

// root is the directory of all.
var root = &remoteInfo{name: ".", mode: fs.ModeDir | 0o755, entry: listing.Entry{Type: listing.Directory, Mode: "0755"}}

// find is what is at a path. The server follows links that lead to the directory it is in.
func (r *RemoteFS) find(name string) (*remoteInfo, error) {
	if name == "." {
		return root, nil
	}
	all, err := r.list(path.Dir(name))
	if errors.Is(err, typed.ErrNotDirectory) {
		return nil, &alias{err, fs.ErrNotExist}
	}
	if err != nil {
		return nil, err
	}
	at, ok := slices.BinarySearchFunc(all, &remoteInfo{name: path.Base(name)}, compareNames)
	if !ok {
		return nil, fs.ErrNotExist
	}
	return all[at], nil
}

// follow is what a path leads to. It goes a component at a time, since what is above a directory depends on the links to it.
func (r *RemoteFS) follow(name string) (*remoteInfo, error) {
	at, rest := ".", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		found, err := r.find(next)
		switch {
		case err != nil:
			return nil, err
		case found.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return nil, errLoop
			}
			rest = append(strings.Split(found.entry.Target(), "/"), rest...)
		case found.IsDir():
			at = next
		case len(rest) > 0:
			return nil, fs.ErrNotExist
		default:
			return found, nil
		}
	}
	return r.find(at)
}

// remoteInfo describes an entry.
type remoteInfo struct {
	name  string
	mode  fs.FileMode
	entry listing.Entry
}

func newRemoteInfo(e listing.Entry) (*remoteInfo, error) {
	i := &remoteInfo{name: e.Path(), entry: e}
	if i.name == "" || i.name == "." || i.name == ".." || strings.Contains(i.name, "/") {
		return nil, fmt.Errorf("entry %q: that is no name", i.name)
	}
	bits, err := strconv.ParseUint(e.Mode, 8, 9)
	if err != nil {
		return nil, fmt.Errorf("entry %q: mode: %w", i.name, err)
	}
	i.mode = fs.FileMode(bits)
	switch e.Type {
	case listing.File:
	case listing.Directory:
		i.mode |= fs.ModeDir
	case listing.SymbolicLink:
		i.mode |= fs.ModeSymlink
	default:
		return nil, fmt.Errorf("entry %q: type %q is not known", i.name, e.Type)
	}
	return i, nil
}

func (i *remoteInfo) Name() string      { return i.name }
func (i *remoteInfo) Size() int64       { return i.entry.Size }
func (i *remoteInfo) Mode() fs.FileMode { return i.mode }
func (i *remoteInfo) IsDir() bool       { return i.mode.IsDir() }

// ModTime is that of every entry of an archive.
func (i *remoteInfo) ModTime() time.Time { return time.Unix(0, 0) }

// Sys is a copy of the entry of the list.
func (i *remoteInfo) Sys() any { e := i.entry; return &e }
