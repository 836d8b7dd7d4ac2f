// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

type listener struct{ told int }

func (l *listener) Enqueue() { l.told++ }

func TestFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := fresh(t, policy.Authority)
		w := newWorld(t, id)
		var observed []*Identity
		var issued [][]byte
		f, err := Follow(t.Context(), FollowerConfig{
			Keeper: replica{world: w}, Policy: policy, Names: []string{"server.team.svc", "localhost"}, Addresses: []net.IP{net.IPv4(10, 0, 0, 1)},
			Observe: func(id *Identity) error { observed = append(observed, id); return nil },
			Issued:  func(cert []byte) error { issued = append(issued, cert); return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		l := &listener{}
		f.AddListener(l)
		served := func() *tls.Certificate {
			t.Helper()
			pair, err := tls.X509KeyPair(f.CurrentCertKeyContent())
			if err != nil {
				t.Fatal(err)
			}
			return &pair
		}
		sync := func() {
			t.Helper()
			if err := f.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		first := served().Leaf
		for _, host := range []string{"server.team.svc", "localhost", "10.0.0.1"} {
			if err := first.VerifyHostname(host); err != nil {
				t.Error(err)
			}
		}
		if len(issued) != 1 || !bytes.Equal(certificates(issued[0])[0].Raw, first.Raw) {
			t.Errorf("%d certificates were issued", len(issued))
		}
		time.Sleep(policy.Serving*2/3 - time.Minute)
		if sync(); !served().Leaf.Equal(first) || l.told != 0 {
			t.Error("it is renewed before its time")
		}
		time.Sleep(2 * time.Minute)
		w.away = errAway
		if err := f.Sync(t.Context()); !errors.Is(err, errAway) || !served().Leaf.Equal(first) {
			t.Errorf("it is renewed without a look at what is kept: %v", err)
		}
		w.away = nil
		if sync(); served().Leaf.Equal(first) || l.told != 1 {
			t.Error("it is not renewed after two thirds of its life")
		}
		next := fresh(t, policy.Authority).Current
		w.kept = encoded(t, &Identity{Current: id.Current, Next: next, AttemptKey: id.AttemptKey})
		if sync(); l.told != 1 {
			t.Error("the next authority signs before its time")
		}
		w.kept = encoded(t, &Identity{Current: next, AttemptKey: id.AttemptKey, Retired: []Retired{{CertPEM: id.Current.CertPEM}}})
		sync()
		if err := served().Leaf.CheckSignatureFrom(next.Certificate()); err != nil || l.told != 2 {
			t.Errorf("after the promotion: %v", err)
		}
		if len(observed) != 5 || !bytes.Equal(observed[4].Current.CertPEM, next.CertPEM) {
			t.Errorf("%d were observed", len(observed))
		}
	})
}

// Where the certificate is somebody else's none is signed.
func TestFollowerWithoutACertificate(t *testing.T) {
	w := newWorld(t, fresh(t, policy.Authority))
	f, err := Follow(t.Context(), FollowerConfig{Keeper: replica{world: w}, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	if cert, key := f.CurrentCertKeyContent(); cert != nil || key != nil {
		t.Error("one is signed")
	}
}

func TestFollowerTellsWhatFails(t *testing.T) {
	w := newWorld(t, fresh(t, policy.Authority))
	for name, config := range map[string]FollowerConfig{
		"observe": {Observe: func(*Identity) error { return errAway }},
		"issued":  {Names: []string{"localhost"}, Issued: func([]byte) error { return errAway }},
	} {
		config.Keeper, config.Policy = replica{world: w}, policy
		if _, err := Follow(t.Context(), config); !errors.Is(err, errAway) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
