// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rukpak.io/apiserver/pkg/content"
)

// Bounds of one step of the store.
const (
	callTimeout = 10 * time.Second // of one request
	patience    = 15 * time.Second // of a store
	raceTime    = time.Minute      // how long others may come first
	firstPause  = 5 * time.Millisecond
	longPause   = time.Second
)

// snapshot is what keys held at one revision. A key that was not there is not in it.
type snapshot map[string]*mvccpb.KeyValue

func (have snapshot) manifest(key string) (*manifest, error) {
	kv := have[key]
	if kv == nil {
		return nil, nil
	}
	return parseManifest(kv)
}

// reservation is nil where there is no such upload.
func (have snapshot) reservation(key string) (*reservation, error) {
	kv := have[key]
	if kv == nil {
		return nil, nil
	}
	r := &reservation{}
	return r, parse(kv, r)
}

// used is 0 where nothing was stored yet.
func (s *Store) used(have snapshot) (int64, error) {
	kv := have[s.join(used)]
	if kv == nil {
		return 0, nil
	}
	return parseUsed(kv)
}

// account adds to the bytes in use. More than the capacity is content.ErrNoSpace.
func (s *Store) account(have snapshot, more int64) ([]clientv3.Op, error) {
	n, err := s.used(have)
	if err != nil || more == 0 {
		return nil, err
	}
	if more > 0 && more > s.capacity-n {
		return nil, s.noSpace(n)
	}
	return []clientv3.Op{clientv3.OpPut(s.join(used), strconv.FormatInt(n+more, 10))}, nil
}

// update reads keys, asks change what to do, and does it if the keys are still what they
// were, else begins anew. A request that failed may have been carried out: then change sees that
// there is nothing left to do, and returns no operation.
func (s *Store) update(ctx context.Context, keys []string, change func(snapshot) ([]clientv3.Op, error)) error {
	return s.repeat(ctx, func(ctx context.Context) (bool, error) {
		have, err := s.snapshot(ctx, keys)
		if err != nil {
			return false, err
		}
		ops, err := change(have)
		if err != nil || len(ops) == 0 {
			return true, err
		}
		conditions := make([]clientv3.Cmp, len(keys))
		for i, key := range keys {
			var revision int64
			if kv := have[key]; kv != nil {
				revision = kv.ModRevision
			}
			conditions[i] = clientv3.Compare(clientv3.ModRevision(key), "=", revision)
		}
		resp, err := s.kv.Txn(ctx).If(conditions...).Then(ops...).Commit()
		if err != nil {
			return false, err
		}
		return resp.Succeeded, nil
	})
}

// free is update for what only deletes, and frees bytes. An etcd that has used up its quota takes no put
// any more, but still deletes; then the bytes in use are left as they are, too many, for Sweep to count anew.
func (s *Store) free(ctx context.Context, keys []string, change func(snapshot) (ops []clientv3.Op, freed int64, err error)) error {
	err := s.update(ctx, append([]string{s.join(used)}, keys...), func(have snapshot) ([]clientv3.Op, error) {
		ops, freed, err := change(have)
		if err != nil || len(ops) == 0 {
			return nil, err
		}
		account, err := s.account(have, -freed)
		return append(ops, account...), err
	})
	if !errors.Is(err, content.ErrNoSpace) {
		return err
	}
	return s.update(ctx, keys, func(have snapshot) ([]clientv3.Op, error) {
		ops, _, err := change(have)
		return ops, err
	})
}

func (s *Store) snapshot(ctx context.Context, keys []string) (snapshot, error) {
	gets := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		gets[i] = clientv3.OpGet(key)
	}
	resp, err := s.kv.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return nil, err
	}
	have := snapshot{}
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			have[string(kv.Key)] = kv
		}
	}
	return have, nil
}

// repeat tries until try is done, with a deadline of its own for each try. What failed for
// a reason that may pass is tried again for as long as the store has patience, what others were quicker in for raceTime.
func (s *Store) repeat(ctx context.Context, try func(context.Context) (done bool, err error)) error {
	var failing time.Time
	began, pause := time.Now(), firstPause
	for {
		done, err := s.once(ctx, try)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			failing = time.Time{}
			if time.Since(began) > raceTime {
				return errors.New("others write to the store without a pause")
			}
		case !passes(err):
			return s.explain(err)
		case failing.IsZero():
			failing = time.Now()
		case time.Since(failing) > s.patience:
			return s.explain(err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, longPause)
	}
}

func (s *Store) once(ctx context.Context, try func(context.Context) (bool, error)) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	done, err := try(call)
	if err != nil && ctx.Err() != nil {
		// As the caller knows it, and not as the one that etcd made of it.
		return false, fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", errSlow, err)
	}
	return done, err
}

var errSlow = fmt.Errorf("etcd gave no answer for %v", callTimeout)

// passes reports whether an error may be gone at the next try.
func passes(err error) bool {
	if errors.Is(err, errSlow) || errors.Is(err, rpctypes.ErrTooManyRequests) {
		return true
	}
	switch code(err) {
	case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}

// code is that of an error of a client that speaks gRPC, or of one in the process of the server.
func code(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(rpctypes.Error(err), &e) {
		return e.Code()
	}
	return status.Code(err)
}

// explain marks the error of an etcd that has used up its quota.
func (s *Store) explain(err error) error {
	if errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) {
		s.fullAt.Store(time.Now().UnixNano())
		return fmt.Errorf("%w: etcd has used up its quota: %w", content.ErrNoSpace, err)
	}
	return err
}
