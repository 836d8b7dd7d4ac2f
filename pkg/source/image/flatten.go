// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"rukpak.io/apiserver/pkg/panics"
	"rukpak.io/apiserver/pkg/tarball"
)

// selection is the part of an image that is packed: a directory of the merged
// tree as the root, and the layers that hold the contents.
type selection struct {
	layers []layer
	root   *node
}

// flatten merges the layers and selects the directory at root. It reads the
// layers' headers; contents are skipped.
func flatten(ctx context.Context, layers []layer, bounds bounds, root []string) (*selection, error) {
	merged := newTree()
	budget := &budget{bounds: bounds}
	for _, l := range layers {
		merged.next()
		err := l.each(ctx, budget, func(h *tar.Header, entry int, _ io.Reader) error {
			if err := budget.entry(h.Name); err != nil {
				return err
			}
			return merged.apply(h, entry)
		})
		if err != nil {
			return nil, err
		}
	}
	if len(merged.root.children) == 0 {
		return nil, ErrEmpty
	}
	n, err := descend(merged.root, root)
	if err != nil {
		return nil, err
	}
	return &selection{layers: layers, root: n}, nil
}

// descend returns the directory at path, which is not reached through links.
func descend(n *node, path []string) (*node, error) {
	shown := strings.Join(path, "/")
	for i := range path {
		child, missing := n.find(path[i : i+1])
		switch {
		case missing >= 0:
			return nil, entryError(shown, fs.ErrNotExist, "the image has no such directory")
		case child.kind == tar.TypeSymlink:
			return nil, entryError(shown, nil, "the path goes through a symbolic link")
		case child.kind != tar.TypeDir:
			return nil, entryError(shown, nil, "the path goes through something that is not a directory")
		}
		n = child
	}
	return n, nil
}

// pack writes the selection to w as a canonical archive.
func (s *selection) pack(ctx context.Context, w io.Writer, opts tarball.Options) (tarball.Summary, error) {
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pw.CloseWithError(panics.Catch(ctx, "an image", func() error { return s.write(ctx, pw) }))
	}()
	summary, err := tarball.Canonicalize(ctx, w, pr, opts)
	// Whatever is still being written has no reader any more.
	pr.CloseWithError(io.ErrClosedPipe)
	<-done
	return summary, err
}

// write writes the selection to w as a tar: first all that has no content, then
// the files in the order in which the layers hold them.
func (s *selection) write(ctx context.Context, w io.Writer) error {
	out := tar.NewWriter(w)
	wanted := make([]map[int][]file, len(s.layers))
	err := s.root.walk("", func(name string, n *node) error {
		if n.content == nil {
			return out.WriteHeader(&tar.Header{Typeflag: n.kind, Name: name, Mode: n.mode, Linkname: n.link})
		}
		at := n.content
		if wanted[at.layer] == nil {
			wanted[at.layer] = map[int][]file{}
		}
		wanted[at.layer][at.entry] = append(wanted[at.layer][at.entry], file{name, n.mode})
		return nil
	})
	if err != nil {
		return err
	}
	for i, l := range s.layers {
		if wanted[i] == nil {
			continue
		}
		err := l.each(ctx, nil, func(h *tar.Header, entry int, r io.Reader) error {
			return writeFile(out, wanted[i][entry], h.Size, r)
		})
		if err != nil {
			return err
		}
	}
	return out.Close()
}

// file is a name of a regular file.
type file struct {
	name string
	mode int64
}

// writeFile writes a content under its first name, the others as hard links.
func writeFile(out *tar.Writer, names []file, size int64, r io.Reader) error {
	for i, f := range names {
		if i > 0 {
			h := &tar.Header{Typeflag: tar.TypeLink, Name: f.name, Mode: f.mode, Linkname: names[0].name}
			if err := out.WriteHeader(h); err != nil {
				return err
			}
			continue
		}
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: size}); err != nil {
			return err
		}
		if _, err := io.CopyN(out, r, size); err != nil {
			return err
		}
	}
	return nil
}

// walk calls visit for all that is below a directory, parents first.
func (n *node) walk(dir string, visit func(name string, n *node) error) error {
	for base, child := range n.children {
		name := dir + base
		if err := visit(name, child); err != nil {
			return err
		}
		if err := child.walk(name+"/", visit); err != nil {
			return err
		}
	}
	return nil
}

// each calls visit for every entry of a layer. Budget, if not nil, counts the
// bytes of its tar.
func (l layer) each(ctx context.Context, budget *budget, visit func(h *tar.Header, entry int, r io.Reader) error) error {
	open, err := l.open(ctx)
	if err != nil {
		return err
	}
	// Nothing is written through the reader, and its errors came with Read.
	defer open.Close()
	var source io.Reader = open
	if budget != nil {
		source = budget.reader(open)
	}
	entries := tar.NewReader(source)
	for entry := 0; ; entry++ {
		h, err := entries.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			if _, ok := errors.AsType[*tarball.LimitError](err); ok {
				return fmt.Errorf("layer %s: %w", l.digest, err)
			}
			return l.failed(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := visit(h, entry, entries); err != nil {
			return fmt.Errorf("layer %s: %w", l.digest, err)
		}
	}
}

// budget counts what is read of an image against its bounds.
type budget struct {
	bounds  bounds
	bytes   int64
	entries int64
}

func (b *budget) entry(name string) error {
	if b.entries++; b.entries > b.bounds.entries {
		return &tarball.LimitError{Limit: tarball.LimitFiles, Max: b.bounds.entries, Entry: name}
	}
	return nil
}

func (b *budget) reader(r io.Reader) io.Reader { return budgetReader{b, r} }

type budgetReader struct {
	budget *budget
	r      io.Reader
}

func (r budgetReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if r.budget.bytes += int64(n); r.budget.bytes > r.budget.bounds.uncompressed {
		return 0, &tarball.LimitError{Limit: tarball.LimitBytes, Max: r.budget.bounds.uncompressed}
	}
	return n, err
}

// cleanPath splits the path that is to become the root.
func cleanPath(path string) ([]string, error) {
	if strings.IndexByte(path, 0) >= 0 {
		return nil, refuse(path, "the path holds a NUL byte")
	}
	return components(path)
}

// entryError names an entry that cannot be packed. Its cause may be nil.
func entryError(name string, cause error, format string, args ...any) error {
	return &tarball.EntryError{Entry: name, Reason: fmt.Sprintf(format, args...), Err: cause}
}
