// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"io/fs"
	"math"
	"slices"
	"strings"
)

// kinds of a node that no entry has.
const (
	kindHardLink Type = '1'
	kindOther    Type = 0 // a device or the like, outside the tree that is wanted
)

const (
	// nodeCost is about what a node costs in memory besides its strings, in bytes, and
	// childrenCost what the map of a directory that is not empty adds to it.
	nodeCost     = 256
	childrenCost = 512
	// metadataPerFile and metadataExtra bound the memory of an index by the
	// limit on files. They leave room for usual names and refuse those that are
	// long only to fill the memory.
	metadataPerFile = 512
	metadataExtra   = 16 << 20
)

// node is a file, directory or link of an archive that is being read.
type node struct {
	kind      Type
	implied   bool // a directory that is known from its children only
	resolving bool // a hard link whose target is being looked for
	mode      fs.FileMode
	offset    int64 // of a file's content in the spool
	size      int64
	link      string           // the target of a symbolic link; that of a hard link, cleaned
	children  map[string]*node // of a directory
}

// index is the tree of an archive that is being read. Contents are elsewhere.
type index struct {
	root    *node
	cost    int64
	maxCost int64
}

func newIndex(limits Limits) *index {
	return &index{
		root:    &node{kind: TypeDirectory, implied: true},
		maxCost: times(limits.Files, metadataPerFile, metadataExtra),
	}
}

// insert puts n at name, which is clean, and makes the directories above it
// that are missing.
func (x *index) insert(name string, n *node) error {
	dir, parts := x.root, strings.Split(name, "/")
	last := len(parts) - 1
	for i, part := range parts[:last] {
		child := dir.children[part]
		if child == nil {
			child = &node{kind: TypeDirectory, implied: true, mode: 0o755}
			if err := x.attach(dir, part, child, name); err != nil {
				return err
			}
		}
		if child.kind != TypeDirectory {
			return refuse(name, "is below %q, which is not a directory", strings.Join(parts[:i+1], "/"))
		}
		dir = child
	}
	old := dir.children[parts[last]]
	switch {
	case old == nil:
		return x.attach(dir, parts[last], n, name)
	case old.implied && n.kind == TypeDirectory:
		old.implied, old.mode = false, n.mode
		return nil
	case old.implied:
		return refuse(name, "is a duplicate: there are entries below it, so it is a directory too")
	default:
		return refuse(name, "is a duplicate")
	}
}

func (x *index) attach(dir *node, part string, n *node, name string) error {
	x.cost += nodeCost + int64(len(part)+len(n.link))
	if dir.children == nil {
		x.cost += childrenCost
	}
	if x.cost > x.maxCost {
		return exceeds(LimitMetadata, x.maxCost, name)
	}
	if dir.children == nil {
		dir.children = make(map[string]*node)
	}
	// A part of a longer string would keep all of that in memory.
	dir.children[strings.Clone(part)] = n
	return nil
}

// find returns the node at a clean name, or nil.
func (x *index) find(name string) *node {
	n := x.root
	if name == "" {
		return n
	}
	for part := range strings.SplitSeq(name, "/") {
		if n = n.children[part]; n == nil {
			return nil
		}
	}
	return n
}

// resolve turns a hard link into a copy of what it leads to, and every link on
// the way there too, so that no chain is followed twice.
func (x *index) resolve(name string, n *node) error {
	var chain []*node
	target := n
	for target.kind == kindHardLink {
		if target.resolving {
			return refuse(name, "is a hard link that leads back to itself")
		}
		target.resolving = true
		chain = append(chain, target)
		to := target.link
		switch target = x.find(to); {
		case target == nil:
			return refuse(name, "is a hard link to %q, which is not in the archive", to)
		case target.kind == TypeDirectory:
			return refuse(name, "is a hard link to %q, which is a directory", to)
		case target.kind == kindOther:
			return refuse(name, "is a hard link to %q, which is a device or the like", to)
		}
	}
	for _, link := range chain {
		*link = *target
	}
	return nil
}

// subtree returns the directory at a clean path.
func (x *index) subtree(path string) (*node, error) {
	n := x.root
	if path == "" {
		return n, nil
	}
	for part := range strings.SplitSeq(path, "/") {
		switch n = n.children[part]; {
		case n == nil:
			return nil, failed(path, "cannot be read", fs.ErrNotExist)
		case n.kind == TypeSymlink:
			return nil, failed(path, "cannot be read", errLink)
		case n.kind != TypeDirectory:
			return nil, failed(path, "cannot be read", errNotDirectory)
		}
	}
	return n, nil
}

// walk calls do for everything below dir, in canonical order.
func (x *index) walk(dir *node, name string, do func(name string, n *node) error) error {
	parts := make([]string, 0, len(dir.children))
	for part := range dir.children {
		parts = append(parts, part)
	}
	slices.Sort(parts)
	for _, part := range parts {
		child, childName := dir.children[part], join(name, part)
		if err := do(childName, child); err != nil {
			return err
		}
		if err := x.walk(child, childName, do); err != nil {
			return err
		}
	}
	return nil
}

// entry describes a node, hard links being resolved.
func (n *node) entry(name string) Entry {
	e := Entry{Name: name, Type: n.kind, Mode: n.mode, Size: n.size, Linkname: n.link}
	if e.Type == TypeSymlink {
		e.Mode = fs.ModePerm
	}
	return e
}

// spoolLimit is how many bytes may be read or spooled for an archive of at most n.
func spoolLimit(n int64) int64 { return times(n, readFactor, math.MaxUint16) }
