// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package toc

import (
	"context"
	"fmt"
	"strings"
)

// cursor goes through the entries in canonical order.
type cursor struct {
	x     *Index
	above []place // the nodes above the leaf, from the root down
	leaf  decoder
	last  string // the name that came last from the leaf
	seen  string // the name that came last from any
	ahead *Entry // read already
}

// place is what of a node comes after the child that is being read.
type place struct {
	at   int64
	rest decoder
}

// seek moves to the first entry that does not come before a name.
func (c *cursor) seek(ctx context.Context, name string) error {
	c.above, c.leaf, c.last, c.seen, c.ahead = c.above[:0], decoder{}, "", "", nil
	if c.x.root == (pointer{}) {
		return nil
	}
	at := c.x.root
	for range c.x.height {
		rest, err := c.x.node(ctx, at)
		if err != nil {
			return err
		}
		first, err := c.x.child(&rest, at.offset)
		if err != nil {
			return err
		}
		// The last child that does not begin behind the name.
		for len(rest.b) > 0 {
			following := rest
			next, err := c.x.child(&following, at.offset)
			if err != nil {
				return err
			}
			if less(name, next.first) {
				break
			}
			first, rest = next, following
		}
		c.above = append(c.above, place{at.offset, rest})
		at = first.at
	}
	if err := c.enter(ctx, at); err != nil {
		return err
	}
	for {
		e, err := c.next(ctx)
		if err != nil || e == nil {
			return err
		}
		if !less(e.Name, name) {
			c.ahead = e
			return nil
		}
	}
}

// enter begins a leaf.
func (c *cursor) enter(ctx context.Context, at pointer) error {
	b, err := c.x.part(ctx, at, kindLeaf)
	if err != nil {
		return err
	}
	if len(b) == 0 {
		return fmt.Errorf("%w: the leaf at %d is empty", ErrDamaged, at.offset)
	}
	c.leaf, c.last = decoder{b: b}, ""
	return nil
}

// next returns the next entry, nil at the end.
func (c *cursor) next(ctx context.Context) (*Entry, error) {
	if e := c.ahead; e != nil {
		c.ahead = nil
		return e, nil
	}
	for len(c.leaf.b) == 0 {
		if more, err := c.nextLeaf(ctx); err != nil || !more {
			return nil, err
		}
	}
	e := c.leaf.entry(c.last)
	if e == nil || !less(c.seen, e.Name) {
		return nil, fmt.Errorf("%w: an entry after %q is none", ErrDamaged, c.seen)
	}
	c.last, c.seen = e.Name, e.Name
	return e, nil
}

// nextLeaf moves to the leaf behind the current one, if there is one.
func (c *cursor) nextLeaf(ctx context.Context) (bool, error) {
	depth := len(c.above)
	for depth > 0 && len(c.above[depth-1].rest.b) == 0 {
		depth--
	}
	if depth == 0 {
		return false, nil
	}
	c.above = c.above[:depth]
	next, err := c.x.child(&c.above[depth-1].rest, c.above[depth-1].at)
	if err != nil {
		return false, err
	}
	for len(c.above) < c.x.height {
		rest, err := c.x.node(ctx, next.at)
		if err != nil {
			return false, err
		}
		at := next.at.offset
		if next, err = c.x.child(&rest, at); err != nil {
			return false, err
		}
		c.above = append(c.above, place{at, rest})
	}
	return true, c.enter(ctx, next.at)
}

// leave moves over what is below a directory, whose entry came last.
func (c *cursor) leave(ctx context.Context, name string) error {
	e, err := c.next(ctx)
	if err != nil || e == nil {
		return err
	}
	if !strings.HasPrefix(e.Name, name+"/") {
		c.ahead = e
		return nil
	}
	// Nothing lies between what is below a directory and this name.
	return c.seek(ctx, name+"\x00")
}

// child is an item of a node.
type child struct {
	first string
	at    pointer
}

// node reads a node. It has at least one child.
func (x *Index) node(ctx context.Context, at pointer) (decoder, error) {
	b, err := x.part(ctx, at, kindNode)
	return decoder{b: b}, err
}

// child takes the next child out of a node at an offset. It stands before the node in the file, so that there are no circles.
func (x *Index) child(d *decoder, node int64) (child, error) {
	c := child{first: d.text(), at: pointer{d.number(), d.number()}}
	if d.bad || c.at.offset >= node {
		return c, fmt.Errorf("%w: the node at %d", ErrDamaged, node)
	}
	return c, nil
}
