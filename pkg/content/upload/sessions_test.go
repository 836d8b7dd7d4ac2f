// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package upload

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/content/etcdtest"
)

func newSession(uid string) *Session {
	return &Session{
		Key:    Key{Namespace: "team", BundleUID: uid, ID: NewID()},
		Bundle: "app", Generation: 1, User: "jane", Store: "default", Length: UnknownLength,
	}
}

func aPart(n int) Part {
	return Part{Digest: "sha256:" + fmt.Sprintf("%064x", n), Size: int64(n), Nonce: NewNonce()}
}

func TestTheLifeOfASession(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	sessions := New(etcdtest.Start(t), "/test/", func() time.Time { return now })
	s := newSession("uid")
	ctx := t.Context()
	if _, err := sessions.Get(ctx, s.Key); !errors.Is(err, ErrNotFound) {
		t.Fatalf("before it is there: %v", err)
	}
	if err := sessions.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := sessions.Create(ctx, s); !errors.Is(err, ErrChanged) {
		t.Errorf("created twice: %v", err)
	}
	stale, err := sessions.Get(ctx, s.Key)
	if err != nil || stale.User != "jane" || !stale.Created.Equal(now) || stale.Offset() != 0 {
		t.Fatalf("%+v, %v", stale, err)
	}
	now = now.Add(time.Hour)
	next := s.With(aPart(10), false)
	if err := sessions.Update(ctx, &next); err != nil || !next.Touched.Equal(now) {
		t.Fatalf("%+v, %v", next, err)
	}
	for name, change := range map[string]func() error{
		"update": func() error { return sessions.Update(ctx, stale) },
		"finish": func() error { return sessions.Finish(ctx, stale, Outcome{}) },
		"remove": func() error { return sessions.Remove(ctx, stale) },
	} {
		if err := change(); !errors.Is(err, ErrChanged) {
			t.Errorf("%s of a session that has changed: %v", name, err)
		}
	}
	grown := next.With(aPart(15), true)
	if err := sessions.Update(ctx, &grown); err != nil || grown.Offset() != 15 || next.Offset() != 10 {
		t.Fatalf("%+v, %v", grown, err)
	}
	if err := sessions.Finish(ctx, &grown, Outcome{Size: 15, Digest: "sha256:x"}); err != nil {
		t.Fatal(err)
	}
	done, err := sessions.Get(ctx, s.Key)
	if err != nil || done.Outcome == nil || done.Offset() != 15 || len(done.Parts) > 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	if n, all, err := sessions.Count(ctx, "team", "uid"); n != 0 || all != 0 || err != nil {
		t.Errorf("%d of %d are open, %v", n, all, err)
	}
	if err := sessions.Remove(ctx, done); err != nil {
		t.Fatal(err)
	}
	if _, err := sessions.Get(ctx, s.Key); !errors.Is(err, ErrNotFound) {
		t.Errorf("after it was removed: %v", err)
	}
}

func TestListing(t *testing.T) {
	sessions := New(etcdtest.Start(t), "/test", time.Now)
	ctx := t.Context()
	// More than a page, of two bundles one of whose UIDs begins with the other.
	want := map[string][]string{}
	var holders []string
	for i := range pageSize + 10 {
		uid := []string{"uid", "uid-2"}[i%2]
		s := newSession(uid)
		s.Parts = []Part{aPart(i + 1)}
		if err := sessions.Create(ctx, s); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			if err := sessions.Finish(ctx, s, Outcome{Size: 1}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want[uid] = append(want[uid], s.ID)
		holders = append(holders, s.Ref(s.Parts[0]).BundleUID)
	}
	for uid, ids := range want {
		var found []string
		for s, err := range sessions.OfBundle(ctx, "team", uid) {
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, s.ID)
		}
		slices.Sort(ids)
		if !slices.Equal(found, ids) {
			t.Errorf("of %s are found %v, not %v", uid, found, ids)
		}
		n, all, err := sessions.Count(ctx, "team", uid)
		if err != nil || int(n) != len(ids) || int(all) != len(want["uid"])+len(want["uid-2"]) {
			t.Errorf("of %s are counted %d of %d, %v", uid, n, all, err)
		}
	}
	var found []string
	for ref, err := range sessions.Refs(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if ref.Store != "default" {
			t.Errorf("%+v", ref)
		}
		found = append(found, ref.BundleUID)
	}
	slices.Sort(found)
	slices.Sort(holders)
	if !slices.Equal(found, holders) {
		t.Errorf("held are %d parts, not %d", len(found), len(holders))
	}
	all := 0
	for _, err := range sessions.All(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		all++
	}
	if all != pageSize+10 {
		t.Errorf("%d are listed", all)
	}
}

// A key that holds no session is told of, and keeps no other from being found.
func TestKeysThatHoldNoSession(t *testing.T) {
	client := etcdtest.Start(t)
	sessions := New(client, "/test", time.Now)
	ctx := t.Context()
	good := newSession("uid")
	good.Parts = []Part{aPart(7)}
	if err := sessions.Create(ctx, good); err != nil {
		t.Fatal(err)
	}
	broken := NewID()
	for _, key := range []string{"/test/uploads/open/team/uid/" + broken, "/test/uploads/open/a", "/test/uploads/done/team/uid/zzz"} {
		if _, err := client.Put(ctx, key, "{"); err != nil {
			t.Fatal(err)
		}
	}
	count := func(err error) (unreadable int) {
		if u, ok := errors.AsType[*UnreadableError](err); ok {
			if want := u.ID == "" || u.ID == broken; !want || !u.MayHold(HolderPrefix+broken+"-x") || u.MayHold("uid") || u.MayHold(good.Ref(good.Parts[0]).BundleUID) != (u.ID == "") {
				t.Errorf("%+v holds something else", u)
			}
			return 1
		} else if err != nil {
			t.Fatal(err)
		}
		return 0
	}
	var refs, all, bad int
	for _, err := range sessions.Refs(ctx) {
		refs, bad = refs+1, bad+count(err)
	}
	if refs != 3 || bad != 2 {
		t.Errorf("%d parts, %d of them unreadable", refs, bad)
	}
	bad = 0
	for _, err := range sessions.All(ctx) {
		all, bad = all+1, bad+count(err)
	}
	if all != 4 || bad != 3 {
		t.Errorf("%d sessions, %d of them unreadable", all, bad)
	}
	for except, want := range map[string]int64{"": 7, good.ID: 0} {
		if n, err := sessions.Bytes(ctx, "team", except); err != nil || n != want {
			t.Errorf("without %q there are %d bytes, %v", except, n, err)
		}
	}
}

func TestKeysThatCannotBe(t *testing.T) {
	sessions := New(etcdtest.Start(t), "/test", time.Now)
	for name, change := range map[string]func(*Key){
		"no namespace":          func(k *Key) { k.Namespace = "" },
		"a slash":               func(k *Key) { k.BundleUID = "a/b" },
		"no ID":                 func(k *Key) { k.ID = "" },
		"an ID that leads away": func(k *Key) { k.ID = "../" + k.ID[3:] },
		"an ID in capitals":     func(k *Key) { k.ID = strings.ToUpper(k.ID) },
	} {
		s := newSession("uid")
		change(&s.Key)
		if err := sessions.Create(t.Context(), s); !errors.Is(err, ErrInvalidID) {
			t.Errorf("%s: create: %v", name, err)
		}
		if _, err := sessions.Get(t.Context(), s.Key); !errors.Is(err, ErrInvalidID) {
			t.Errorf("%s: get: %v", name, err)
		}
	}
}

// However an upload is cut, its record stays small.
func TestPartsAreFew(t *testing.T) {
	for name, test := range map[string]struct{ step, total int64 }{
		"small ones":      {1000, 100 << 20},
		"of a MiB":        {1 << 20, 10 << 30},
		"of a large file": {16 << 20, 1 << 38},
	} {
		s := newSession("uid")
		var offset int64
		for offset < test.total {
			p := Part{Size: test.step}
			if last := s.Grown(); last != nil {
				p.Size += last.Size
				*s = s.With(p, true)
			} else {
				*s = s.With(p, false)
			}
			offset += test.step
		}
		if s.Offset() != offset || len(s.Parts) > 3000 {
			t.Errorf("%s: %d bytes in %d parts", name, s.Offset(), len(s.Parts))
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"bundle":"app","generation":1,"user":"jane","length":-1,"parts":[{"digest":"sha256:00","size":5,"nonce":"n"}]}`))
	f.Add([]byte(`{"length":-2}`))
	f.Add([]byte(`{"parts":[{"size":9223372036854775807},{"size":1}]}`))
	f.Add([]byte(`{"outcome":{"size":-1}}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		s, err := parse(Key{ID: "x"}, value, 1)
		if err != nil {
			return
		}
		if s.Offset() < 0 || s.Length < UnknownLength {
			t.Errorf("offset %d, length %d", s.Offset(), s.Length)
		}
		for _, p := range s.Parts {
			if p.Size <= 0 {
				t.Errorf("a part of %d bytes", p.Size)
			}
		}
		s.Grown()
	})
}
