// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package upload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content/keys"
	"rukpak.io/apiserver/pkg/content/reference"
)

// Folders below the prefix.
const (
	openFolder = "uploads/open"
	doneFolder = "uploads/done"
)

// pageSize is how many sessions one request lists. One has a hundred bytes for each part.
const pageSize = 50

// Sessions are the sessions under one prefix. It is safe for use by many goroutines, and by many processes.
type Sessions struct {
	kv     clientv3.KV
	prefix string
	now    func() time.Time
}

// New returns the sessions under prefix, an absolute path with or without a final slash. Of kv it uses Get and Txn.
func New(kv clientv3.KV, prefix string, now func() time.Time) *Sessions {
	return &Sessions{kv: kv, prefix: strings.TrimSuffix(prefix, "/"), now: now}
}

func (s *Sessions) key(folder string, k Key) (string, error) {
	for _, part := range []string{k.Namespace, k.BundleUID} {
		if part == "" || strings.Contains(part, "/") {
			return "", fmt.Errorf("upload %q of bundle %q in namespace %q: %w", k.ID, k.BundleUID, k.Namespace, ErrInvalidID)
		}
	}
	if err := CheckID(k.ID); err != nil {
		return "", err
	}
	return strings.Join([]string{s.prefix, folder, k.Namespace, k.BundleUID, k.ID}, "/"), nil
}

// Create writes a new session. Its times are set.
func (s *Sessions) Create(ctx context.Context, session *Session) error {
	key, err := s.key(openFolder, session.Key)
	if err != nil {
		return err
	}
	session.Created = s.now().UTC()
	session.Touched = session.Created
	return s.put(ctx, session, key, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
}

// Update writes a session that nobody has changed since it was read, else ErrChanged. Its revision and
// Touched are set. After another error it may have been written.
func (s *Sessions) Update(ctx context.Context, session *Session) error {
	key, err := s.key(openFolder, session.Key)
	if err != nil {
		return err
	}
	session.Touched = s.now().UTC()
	return s.put(ctx, session, key, clientv3.Compare(clientv3.ModRevision(key), "=", session.revision))
}

func (s *Sessions) put(ctx context.Context, session *Session, key string, guard clientv3.Cmp) error {
	value, err := json.Marshal(session)
	if err != nil {
		return fmt.Errorf("write upload %s: %w", session.ID, err)
	}
	resp, err := s.kv.Txn(ctx).If(guard).Then(clientv3.OpPut(key, string(value))).Commit()
	if err != nil {
		return fmt.Errorf("write upload %s: %w", session.ID, err)
	}
	if !resp.Succeeded {
		return fmt.Errorf("write upload %s: %w", session.ID, ErrChanged)
	}
	session.revision = resp.Header.Revision
	return nil
}

// Get returns a session, open or done, as it is now. ErrNotFound if there is none.
func (s *Sessions) Get(ctx context.Context, k Key) (*Session, error) {
	open, err := s.key(openFolder, k)
	if err != nil {
		return nil, err
	}
	done, err := s.key(doneFolder, k)
	if err != nil {
		return nil, err
	}
	resp, err := s.kv.Txn(ctx).Then(clientv3.OpGet(open), clientv3.OpGet(done)).Commit()
	if err != nil {
		return nil, fmt.Errorf("read upload %s: %w", k.ID, err)
	}
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			return parse(k, kv.Value, kv.ModRevision)
		}
	}
	return nil, fmt.Errorf("%w: %s", ErrNotFound, k.ID)
}

// Finish ends an open session that nobody has changed since it was read, else ErrChanged: it takes no bytes
// any more, and says how it ended until it is removed. The parts are the caller's to release.
func (s *Sessions) Finish(ctx context.Context, session *Session, outcome Outcome) error {
	open, err := s.key(openFolder, session.Key)
	if err != nil {
		return err
	}
	done, err := s.key(doneFolder, session.Key)
	if err != nil {
		return err
	}
	ended := *session
	ended.Parts, ended.Outcome, ended.Touched = nil, &outcome, s.now().UTC()
	value, err := json.Marshal(&ended)
	if err != nil {
		return fmt.Errorf("end upload %s: %w", session.ID, err)
	}
	resp, err := s.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(open), "=", session.revision)).
		Then(clientv3.OpDelete(open), clientv3.OpPut(done, string(value))).
		Commit()
	if err != nil {
		return fmt.Errorf("end upload %s: %w", session.ID, err)
	}
	if !resp.Succeeded {
		return fmt.Errorf("end upload %s: %w", session.ID, ErrChanged)
	}
	return nil
}

// Remove removes a session, open or done, if nobody has changed it since it was read, else ErrChanged. The parts
// are the caller's to release.
func (s *Sessions) Remove(ctx context.Context, session *Session) error {
	folder := openFolder
	if session.Outcome != nil {
		folder = doneFolder
	}
	key, err := s.key(folder, session.Key)
	if err != nil {
		return err
	}
	resp, err := s.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", session.revision)).
		Then(clientv3.OpDelete(key)).
		Commit()
	if err != nil {
		return fmt.Errorf("remove upload %s: %w", session.ID, err)
	}
	if !resp.Succeeded {
		return fmt.Errorf("remove upload %s: %w", session.ID, ErrChanged)
	}
	return nil
}

// Count returns how many open sessions a bundle has, and how many all bundles of its namespace have.
func (s *Sessions) Count(ctx context.Context, namespace, bundleUID string) (ofBundle, ofNamespace int64, err error) {
	prefix := strings.Join([]string{s.prefix, openFolder, namespace}, "/") + "/"
	resp, err := s.kv.Txn(ctx).Then(
		clientv3.OpGet(prefix+bundleUID+"/", clientv3.WithPrefix(), clientv3.WithCountOnly()),
		clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()),
	).Commit()
	if err != nil {
		return 0, 0, fmt.Errorf("count uploads: %w", err)
	}
	return resp.Responses[0].GetResponseRange().Count, resp.Responses[1].GetResponseRange().Count, nil
}

// Bytes is how many bytes the open sessions of a namespace have, but for the one of an ID. One that cannot be read counts nothing.
func (s *Sessions) Bytes(ctx context.Context, namespace, except string) (int64, error) {
	var sum int64
	for session, err := range s.list(ctx, openFolder, namespace+"/") {
		if ends(err) {
			return 0, err
		}
		if err == nil && session.ID != except {
			sum += session.Offset()
		}
	}
	return sum, nil
}

// OfBundle gives the open sessions of a bundle. As in all listings, one that cannot be read is an UnreadableError, after which
// the listing goes on; any other error is the last.
func (s *Sessions) OfBundle(ctx context.Context, namespace, bundleUID string) iter.Seq2[*Session, error] {
	return s.list(ctx, openFolder, namespace+"/"+bundleUID+"/")
}

// All gives all sessions, those that are open first. One that is there for the whole listing is in it; one that comes
// or goes meanwhile may be or may not be.
func (s *Sessions) All(ctx context.Context) iter.Seq2[*Session, error] {
	return func(yield func(*Session, error) bool) {
		for _, folder := range []string{openFolder, doneFolder} {
			for session, err := range s.list(ctx, folder, "") {
				if !yield(session, err) || ends(err) {
					return
				}
			}
		}
	}
}

// Refs gives the reference records of the parts of all open sessions: what the collector has to leave alone. A part
// that a session had before the listing began, and still has when it ends, is in it.
func (s *Sessions) Refs(ctx context.Context) iter.Seq2[reference.Ref, error] {
	return func(yield func(reference.Ref, error) bool) {
		for session, err := range s.list(ctx, openFolder, "") {
			if err != nil {
				if !yield(reference.Ref{}, err) || ends(err) {
					return
				}
				continue
			}
			for _, p := range session.Parts {
				if !yield(session.Ref(p), nil) {
					return
				}
			}
		}
	}
}

// list gives the sessions of a folder whose keys begin with what comes below it.
func (s *Sessions) list(ctx context.Context, folder, below string) iter.Seq2[*Session, error] {
	return func(yield func(*Session, error) bool) {
		root := s.prefix + "/" + folder + "/"
		for kv, err := range keys.Under(ctx, s.kv.Get, root+below, pageSize) {
			if err != nil {
				yield(nil, fmt.Errorf("list uploads: %w", err))
				return
			}
			k, err := parseKey(strings.TrimPrefix(string(kv.Key), root))
			var session *Session
			if err == nil {
				session, err = parse(k, kv.Value, kv.ModRevision)
			}
			if err != nil {
				err = &UnreadableError{Key: string(kv.Key), ID: k.ID, Err: err}
			}
			if !yield(session, err) {
				return
			}
		}
	}
}

// ends reports whether an error is the last of a listing.
func ends(err error) bool {
	_, unreadable := errors.AsType[*UnreadableError](err)
	return err != nil && !unreadable
}

func parseKey(path string) (Key, error) {
	parts := strings.Split(path, "/")
	if len(parts) != 3 {
		return Key{}, fmt.Errorf("key %q of an upload: %w", path, ErrInvalidID)
	}
	k := Key{Namespace: parts[0], BundleUID: parts[1], ID: parts[2]}
	if err := CheckID(k.ID); err != nil {
		return Key{}, err
	}
	return k, nil
}

// parse reads a stored session. What it cannot be, such as a negative size, is an error.
func parse(k Key, value []byte, revision int64) (*Session, error) {
	session := &Session{}
	if err := json.Unmarshal(value, session); err != nil {
		return nil, fmt.Errorf("upload %s: %w", k.ID, err)
	}
	if session.Length < UnknownLength || (session.Outcome != nil && session.Outcome.Size < 0) {
		return nil, fmt.Errorf("upload %s: its size is less than nothing", k.ID)
	}
	var total int64
	for _, p := range session.Parts {
		if total += p.Size; p.Size <= 0 || total < 0 {
			return nil, fmt.Errorf("upload %s: a part of %d bytes cannot be", k.ID, p.Size)
		}
	}
	session.Key, session.revision = k, revision
	return session, nil
}
