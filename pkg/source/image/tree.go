// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"io/fs"
	"strings"

	"rukpak.io/apiserver/pkg/tarball"
)

// Names that mean something in a layer, as the OCI image specification says
// (layer.md, "Whiteouts").
const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
	// metaPrefix begins the names that AUFS uses for itself.
	metaPrefix = ".wh..wh."
)

// impliedMode is that of a directory that a layer needs and nowhere describes.
const impliedMode = 0o755

// maxNames bounds all the names and link targets of an image, in bytes, since
// they are kept in memory.
const maxNames = 64 << 20

// node is a file, directory, link or device of the merged tree. It holds no content.
type node struct {
	kind     byte  // as in a tar header; never tar.TypeLink
	mode     int64 // permission bits
	link     string
	content  *content // of a regular file; hard links share it
	children map[string]*node
	// layer is the last one that wrote the node or something below it.
	layer int
}

// content says where a regular file's bytes are.
type content struct {
	layer int
	entry int // counted from the layer's first entry, 0
}

// tree is the merge of an image's layers, the lowest applied first.
type tree struct {
	root  *node
	layer int   // the one that is being applied
	names int64 // bytes of the names and links seen so far
}

func newTree() *tree { return &tree{root: &node{kind: tar.TypeDir, mode: impliedMode}, layer: -1} }

// next begins the next layer.
func (t *tree) next() { t.layer++ }

// apply adds the entry-th entry of the current layer.
func (t *tree) apply(h *tar.Header, entry int) error {
	if t.names += int64(len(h.Name) + len(h.Linkname)); t.names > maxNames {
		return &tarball.LimitError{Limit: tarball.LimitMetadata, Max: maxNames, Entry: h.Name}
	}
	parts, err := components(h.Name)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return nil
	}
	dir, base := parts[:len(parts)-1], parts[len(parts)-1]
	switch hidden, whiteout := strings.CutPrefix(base, whiteoutPrefix); {
	case base == opaqueMarker:
		return t.hide(h.Name, dir, "")
	case isMeta(parts):
		return nil
	case whiteout && hidden == "":
		return refuse(h.Name, "is a whiteout without a name")
	case whiteout:
		return t.hide(h.Name, dir, hidden)
	}
	n, err := t.make(h, entry)
	if err != nil {
		return err
	}
	parent, err := t.directory(h.Name, dir)
	if err != nil {
		return err
	}
	if old := parent.children[base]; old != nil && old.kind == tar.TypeDir && n.kind == tar.TypeDir {
		old.mode, old.layer = n.mode, n.layer
		return nil
	}
	if parent.children == nil {
		parent.children = map[string]*node{}
	}
	parent.children[base] = n
	return nil
}

// make returns a new node for an entry.
func (t *tree) make(h *tar.Header, entry int) (*node, error) {
	n := &node{kind: h.Typeflag, mode: h.Mode & int64(fs.ModePerm), layer: t.layer}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		n.kind = tar.TypeReg
		n.content = &content{layer: t.layer, entry: entry}
	case tar.TypeSymlink:
		n.link = h.Linkname
	case tar.TypeDir, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	case tar.TypeLink:
		parts, err := components(h.Linkname)
		if err != nil {
			return nil, refuse(h.Name, "is a hard link to %q, which is no path inside the image", h.Linkname)
		}
		target, missing := t.root.find(parts)
		switch {
		case missing >= 0:
			return nil, refuse(h.Name, "is a hard link to %q, which does not exist", h.Linkname)
		case target.kind == tar.TypeDir:
			return nil, refuse(h.Name, "is a hard link to %q, which is a directory", h.Linkname)
		}
		n.kind, n.mode, n.link, n.content = target.kind, target.mode, target.link, target.content
	default:
		return nil, refuse(h.Name, "has the unknown type %q", h.Typeflag)
	}
	return n, nil
}

// directory returns the directory at dir for an entry of the current layer, and
// makes what is missing. Something else from a lower layer gives way to it, as
// in an overlay of folders; from the same layer it is a contradiction, and a
// symbolic link there a way to write elsewhere.
func (t *tree) directory(name string, dir []string) (*node, error) {
	n := t.root
	for i, part := range dir {
		child := n.children[part]
		if child != nil && child.kind != tar.TypeDir && child.layer == t.layer {
			return nil, refuse(name, "is below %q, which is not a directory", strings.Join(dir[:i+1], "/"))
		}
		if child == nil || child.kind != tar.TypeDir {
			child = &node{kind: tar.TypeDir, mode: impliedMode}
			if n.children == nil {
				n.children = map[string]*node{}
			}
			n.children[part] = child
		}
		child.layer = t.layer
		n = child
	}
	return n, nil
}

// hide removes what lower layers have at base in dir, or, with base empty, all
// that they have in dir. What the current layer has there stays, wherever in
// the layer the whiteout stands.
func (t *tree) hide(name string, dir []string, base string) error {
	parent, err := t.directory(name, dir)
	if err != nil {
		return err
	}
	if base == "" {
		parent.prune(t.layer)
		return nil
	}
	if child := parent.children[base]; child != nil && !child.keep(t.layer) {
		delete(parent.children, base)
	}
	return nil
}

// prune removes from a directory what comes from below layer.
func (n *node) prune(layer int) {
	for name, child := range n.children {
		if !child.keep(layer) {
			delete(n.children, name)
		}
	}
}

// keep reports whether a node is, or holds something, of layer; what it holds
// of lower ones is removed.
func (n *node) keep(layer int) bool {
	if n.layer != layer {
		return false
	}
	n.prune(layer)
	return true
}

// find returns the node at the end of parts. If there is none, missing is the
// index of the component that does not exist or that is no directory to descend
// from; else it is -1.
func (n *node) find(parts []string) (found *node, missing int) {
	for i, part := range parts {
		child := n.children[part]
		if child == nil {
			return nil, i
		}
		n = child
	}
	return n, -1
}

// components splits a name of a layer. Leading slashes mean the image's root,
// as they do to container runtimes.
func components(name string) ([]string, error) {
	if len(name) > tarball.DefaultPathLength {
		return nil, &tarball.LimitError{Limit: tarball.LimitPathLength, Max: tarball.DefaultPathLength, Entry: name[:tarball.DefaultPathLength]}
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
		case "..":
			return nil, refuse(name, `the name has a component ".."`)
		default:
			parts = append(parts, part)
		}
	}
	if len(parts) > maxDepth {
		return nil, &tarball.LimitError{Limit: tarball.LimitDepth, Max: maxDepth, Entry: name}
	}
	return parts, nil
}

// maxDepth bounds the nesting of an image's directories. A path of
// tarball.DefaultPathLength bytes has no more components.
const maxDepth = tarball.DefaultPathLength / 2

func isMeta(parts []string) bool {
	for _, part := range parts {
		if strings.HasPrefix(part, metaPrefix) {
			return true
		}
	}
	return false
}

func refuse(name, format string, args ...any) error {
	return entryError(name, nil, format, args...)
}
