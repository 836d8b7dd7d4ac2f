// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content"
)

const (
	// placeTimeout bounds what is asked of one place.
	placeTimeout = 10 * time.Second
	// etcdTimeout bounds one request to etcd.
	etcdTimeout = 5 * time.Second
)

// look reads the marks, and then the record.
func (g *Guard) look(ctx context.Context) (*view, error) {
	v := &view{places: g.newPlaces()}
	v.each(ctx, func(ctx context.Context, p *place) {
		var raw []byte
		if raw, p.err = p.marks.ReadMark(ctx); p.err == nil {
			p.mark = parseMark(raw)
		}
	})
	if err := g.readRecord(ctx, v); err != nil {
		return nil, err
	}
	if v.record == nil {
		var err error
		if v.used, err = g.used(ctx); err != nil {
			return nil, err
		}
	}
	v.each(ctx, func(ctx context.Context, p *place) {
		if p.err != nil || p.mark != nil || p.store == nil {
			return
		}
		if v.record != nil {
			if _, known := v.record.Places[p.name]; known {
				return
			}
		}
		if p.empty, p.err = empty(ctx, p.store); p.err == nil {
			p.awaited, p.err = g.cfg.Referred(ctx, p.name[len(storePrefix):])
		}
	})
	return v, nil
}

const (
	storePrefix  = "store/"
	clusterPlace = "cluster"
)

func (g *Guard) newPlaces() []*place {
	var places []*place
	for name, store := range g.cfg.Stores {
		places = append(places, &place{name: storePrefix + name, title: fmt.Sprintf("content store %q", name), store: store, marks: store})
	}
	if g.cfg.Cluster != nil {
		places = append(places, &place{name: clusterPlace, title: g.cfg.ClusterTitle, marks: g.cfg.Cluster})
	}
	return places
}

// each does something with each place, all at the same time, and not for long.
func (v *view) each(ctx context.Context, do func(context.Context, *place)) {
	var all sync.WaitGroup
	for _, p := range v.places {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, placeTimeout)
			defer cancel()
			do(ctx, p)
		})
	}
	all.Wait()
}

// readRecord reads the record and etcd's revision. It is never stale.
func (g *Guard) readRecord(ctx context.Context, v *view) error {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	resp, err := g.cfg.KV.Get(ctx, g.key)
	if err != nil {
		return fmt.Errorf("read the instance in etcd: %w", err)
	}
	v.revision = resp.Header.Revision
	if len(resp.Kvs) == 0 {
		return nil
	}
	v.modRevision = resp.Kvs[0].ModRevision
	if v.record, err = parseRecord(g.key, resp.Kvs[0].Value); err != nil {
		return fmt.Errorf("read the instance in etcd: %w", err)
	}
	return nil
}

// used says whether etcd has any object of the API.
func (g *Guard) used(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	resp, err := g.cfg.KV.Get(ctx, g.cfg.Objects, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	if err != nil {
		return false, fmt.Errorf("look for objects in etcd: %w", err)
	}
	return len(resp.Kvs) > 0, nil
}

var errFound = errors.New("found one")

// empty says whether a store has no content.
func empty(ctx context.Context, store Store) (bool, error) {
	err := store.Walk(ctx, func(content.Info) error { return errFound })
	if errors.Is(err, errFound) {
		return false, nil
	}
	return err == nil, err
}
