// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package toc

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"rukpak.io/apiserver/pkg/tarball"
)

const (
	// maxLinks is how many symbolic links are followed on the way to one entry, as on Linux.
	maxLinks = 40
	// maxRest bounds the components that are left to walk.
	maxRest = 1 << 12
)

// Resolve returns the entry that a path leads to, symbolic links followed, which is none itself. The name of the
// entry tells where it is. Path is in the form of an entry's name; "" is the root, whose entry is a directory without a name.
//
// Where there is nothing, the error is fs.ErrNotExist; it is ErrNotDirectory where the path leads through a file, and
// ErrLoop where more than 40 links had to be followed. Each names the entry where it happened.
func (x *Index) Resolve(ctx context.Context, path string) (*Entry, error) {
	w := walk{x: x, dir: &Entry{Entry: tarball.Entry{Type: tarball.TypeDirectory, Mode: 0o755}}}
	if path == "" {
		return w.dir, nil
	}
	// Most paths go through no link.
	if e, err := x.Lookup(ctx, path); err == nil && e.Type != tarball.TypeSymlink {
		return e, nil
	}
	w.rest = strings.Split(path, "/")
	for len(w.rest) > 0 {
		if err := w.step(ctx); err != nil {
			return nil, err
		}
	}
	return w.dir, nil
}

// walk follows a path.
type walk struct {
	x     *Index
	dir   *Entry   // reached so far; a file or a directory
	rest  []string // components that are left
	links int
}

func (w *walk) step(ctx context.Context) error {
	part := w.rest[0]
	w.rest = w.rest[1:]
	switch {
	case w.dir.Type != tarball.TypeDirectory:
		return fmt.Errorf("%q: %w", w.dir.Name, ErrNotDirectory)
	case part == "" || part == ".":
		return nil
	case part == "..":
		return w.up(ctx)
	}
	name := part
	if w.dir.Name != "" {
		name = w.dir.Name + "/" + part
	}
	e, err := w.x.Lookup(ctx, name)
	if err != nil {
		return err
	}
	if e.Type != tarball.TypeSymlink {
		w.dir = e
		return nil
	}
	target := strings.Split(e.Linkname, "/")
	if w.links++; w.links > maxLinks || len(target)+len(w.rest) > maxRest {
		return fmt.Errorf("%q: %w", name, ErrLoop)
	}
	w.rest = append(target, w.rest...)
	return nil
}

// up moves to the directory above.
func (w *walk) up(ctx context.Context) error {
	if w.dir.Name == "" {
		return fmt.Errorf("above the root: %w", fs.ErrNotExist)
	}
	i := strings.LastIndexByte(w.dir.Name, '/')
	if i < 0 {
		w.dir = &Entry{Entry: tarball.Entry{Type: tarball.TypeDirectory, Mode: 0o755}}
		return nil
	}
	var err error
	w.dir, err = w.x.Lookup(ctx, w.dir.Name[:i])
	return err
}
