// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"context"
	"errors"
	"fmt"
	"io"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/upload"
)

// errLost means that a stored part is gone, or is not what was stored.
var errLost = errors.New("a stored part is lost")

// parts reads the parts of a session as one stream. Each is checked against its digest. It needs a Close.
type parts struct {
	ctx   context.Context
	store content.Store
	left  []upload.Part
	open  io.ReadCloser // the first of left
	sum   *content.Sum
	err   error
}

func newParts(ctx context.Context, store content.Store, list []upload.Part) *parts {
	return &parts{ctx: ctx, store: store, left: list}
}

func (p *parts) Read(b []byte) (int, error) {
	for p.err == nil {
		if len(p.left) == 0 {
			return 0, io.EOF
		}
		if p.open == nil {
			p.err = p.next()
			continue
		}
		n, err := p.open.Read(b)
		_, _ = p.sum.Write(b[:n])
		if err == io.EOF {
			p.err = p.ended()
		} else if err != nil {
			p.err = fmt.Errorf("read part %s: %w", p.left[0].Digest, err)
		}
		if n > 0 {
			return n, p.err
		}
	}
	return 0, p.err
}

func (p *parts) next() error {
	open, err := p.store.Open(p.ctx, p.left[0].Digest, 0, -1)
	if errors.Is(err, content.ErrNotFound) {
		return fmt.Errorf("%w: %w", errLost, err)
	} else if err != nil {
		return fmt.Errorf("open part %s: %w", p.left[0].Digest, err)
	}
	p.open, p.sum = open, content.NewSum()
	return nil
}

// ended closes a part that was read to its end, and checks it.
func (p *parts) ended() error {
	part := p.left[0]
	if err := p.Close(); err != nil {
		return fmt.Errorf("close part %s: %w", part.Digest, err)
	}
	p.left = p.left[1:]
	if got := p.sum.Digest(); got != part.Digest {
		return fmt.Errorf("%w: %s is stored as %s", errLost, part.Digest, got)
	}
	return nil
}

// Close closes the part that is being read.
func (p *parts) Close() error {
	if p.open == nil {
		return nil
	}
	open := p.open
	p.open = nil
	return open.Close()
}
