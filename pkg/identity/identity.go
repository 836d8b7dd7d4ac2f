// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity is what the replicas of one server have in common and nobody else knows: the authorities that their
// serving certificates come from, and the key with which they recognize the pods that they made.
//
// A Keeper keeps it, in a Secret or in a file. Every replica has a Follower, which reads it again and again and signs the replica's own
// certificate. One replica has a Rotator, which replaces an authority long before its end, in this order:
//
//  1. The next authority is kept beside the current one, and published: both are trusted, the current one signs.
//  2. When what clients trust is known to have held the next one for Policy.Overlap, it becomes the current one. The
//     replicas sign anew. The old one is trusted and signs no more; its key is gone.
//  3. When no certificate of the old one can be good any more, it is no longer trusted.
//
// Each step is one write that succeeds only if nobody else wrote since the read, so two Rotators do no harm.
package identity

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"rukpak.io/apiserver/pkg/pki"
)

const attemptKeySize = 32

// The parts of an encoded identity.
const (
	keyAuthority    = "ca.crt"
	keyAuthorityKey = "ca.key"
	keyNext         = "next.crt"
	keyNextKey      = "next.key"
	keyAttempt      = "attempt.key"
	keyRotation     = "rotation.json"
)

// parts are all of them.
var parts = []string{keyAuthority, keyAuthorityKey, keyNext, keyNextKey, keyAttempt, keyRotation}

var (
	// ErrNotFound means that nothing is kept.
	ErrNotFound = errors.New("there is no identity")
	// ErrConflict means that somebody else wrote first.
	ErrConflict = errors.New("somebody else wrote the identity")
)

// Keeper keeps an identity for all replicas.
type Keeper interface {
	// Load returns the identity and the version of it; ErrNotFound where there is none.
	Load(ctx context.Context) (*Identity, string, error)
	// Save replaces a version, or makes the first one where version is empty; ErrConflict where the version is another by now.
	Save(ctx context.Context, id *Identity, version string) error
}

// Identity is one state of the identity. What it holds is secret but for Trusted.
type Identity struct {
	// Current signs.
	Current *pki.Authority
	// Next is trusted and will sign. Nil most of the time.
	Next *pki.Authority
	// Confirmed is since when clients are known to trust Next; zero while they are not.
	Confirmed time.Time
	// Retired signed once and are trusted still, the oldest first.
	Retired []Retired
	// AttemptKey recognizes pods.
	AttemptKey []byte
	// Requested is what an administrator wrote to have the authority replaced now, and Handled the one of
	// these that has been. Any other text than before is a new request.
	Requested, Handled string
}

// Retired is an authority that signs no more.
type Retired struct {
	CertPEM []byte `json:"certificate"`
	// Until is when it is trusted no more: then nothing that it signed is good.
	Until time.Time `json:"until"`
}

// rotation is the part of an identity that is written as JSON.
type rotation struct {
	Confirmed *time.Time `json:"confirmed,omitempty"`
	Retired   []Retired  `json:"retired,omitempty"`
	Handled   string     `json:"handled,omitempty"`
}

// New makes an identity whose authority is good for validity.
func New(validity time.Duration) (*Identity, error) {
	authority, err := newAuthority(validity)
	if err != nil {
		return nil, err
	}
	key, err := newAttemptKey()
	if err != nil {
		return nil, err
	}
	return &Identity{Current: authority, AttemptKey: key}, nil
}

// newAuthority makes an authority, with a name that tells it from those before it.
func newAuthority(validity time.Duration) (*pki.Authority, error) {
	return pki.NewAuthority("rukpak-apiserver-ca@"+time.Now().UTC().Format("20060102T150405.000Z"), validity)
}

func newAttemptKey() ([]byte, error) {
	key := make([]byte, attemptKeySize)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make the key of attempts: %w", err)
	}
	return key, nil
}

// Trusted is every authority by which the server is to be trusted, PEM, the oldest first.
func (i *Identity) Trusted() []byte {
	var bundle []byte
	for _, r := range i.Retired {
		bundle = append(bundle, r.CertPEM...)
	}
	bundle = append(bundle, i.Current.CertPEM...)
	if i.Next != nil {
		bundle = append(bundle, i.Next.CertPEM...)
	}
	return bundle
}

// encode returns the parts of an identity, by their names.
func (i *Identity) encode() (map[string][]byte, error) {
	data := map[string][]byte{keyAuthority: i.Current.CertPEM, keyAuthorityKey: i.Current.KeyPEM, keyAttempt: i.AttemptKey}
	if i.Next != nil {
		data[keyNext], data[keyNextKey] = i.Next.CertPEM, i.Next.KeyPEM
	}
	r := rotation{Retired: i.Retired, Handled: i.Handled}
	if !i.Confirmed.IsZero() {
		r.Confirmed = &i.Confirmed
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the state of the rotation: %w", err)
	}
	data[keyRotation] = raw
	return data, nil
}

// decode makes an identity of its parts. Those of the first version of this server are three, without a rotation.
func decode(data map[string][]byte) (*Identity, error) {
	for _, key := range []string{keyAuthority, keyAuthorityKey} {
		if len(data[key]) == 0 {
			return nil, fmt.Errorf("%s is missing", key)
		}
	}
	current, err := pki.LoadAuthority(data[keyAuthority], data[keyAuthorityKey])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", keyAuthority, keyAuthorityKey, err)
	}
	if len(data[keyAttempt]) != attemptKeySize {
		return nil, fmt.Errorf("%s has %d bytes in place of %d", keyAttempt, len(data[keyAttempt]), attemptKeySize)
	}
	id := &Identity{Current: current, AttemptKey: data[keyAttempt]}
	if len(data[keyNext]) > 0 || len(data[keyNextKey]) > 0 {
		if id.Next, err = pki.LoadAuthority(data[keyNext], data[keyNextKey]); err != nil {
			return nil, fmt.Errorf("%s and %s: %w", keyNext, keyNextKey, err)
		}
	}
	if len(data[keyRotation]) == 0 {
		return id, nil
	}
	var r rotation
	if err := json.Unmarshal(data[keyRotation], &r); err != nil {
		return nil, fmt.Errorf("%s: %w", keyRotation, err)
	}
	for n, old := range r.Retired {
		if len(certificates(old.CertPEM)) != 1 {
			return nil, fmt.Errorf("%s: retired authority %d is not one certificate", keyRotation, n)
		}
	}
	id.Retired, id.Handled = r.Retired, r.Handled
	if r.Confirmed != nil {
		id.Confirmed = *r.Confirmed
	}
	return id, nil
}

// certificates returns the certificates of a bundle in PEM, and passes over what is none.
func certificates(bundle []byte) []*x509.Certificate {
	var found []*x509.Certificate
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return found
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			found = append(found, cert)
		}
	}
}

// holds reports whether a bundle has a certificate.
func holds(bundle []byte, cert *x509.Certificate) bool {
	return slices.ContainsFunc(certificates(bundle), cert.Equal)
}

// sameBundle reports whether two bundles hold the same certificates, in whatever order and with whatever between them.
func sameBundle(a, b []byte) bool {
	sorted := func(bundle []byte) [][]byte {
		var raw [][]byte
		for _, c := range certificates(bundle) {
			raw = append(raw, c.Raw)
		}
		slices.SortFunc(raw, bytes.Compare)
		return slices.CompactFunc(raw, bytes.Equal)
	}
	return slices.EqualFunc(sorted(a), sorted(b), bytes.Equal)
}

// Open returns the identity that is kept, and makes it where there is none. Of replicas that start at once one makes it, and the others take that.
func Open(ctx context.Context, keeper Keeper, validity time.Duration) (*Identity, error) {
	id, _, err := keeper.Load(ctx)
	if !errors.Is(err, ErrNotFound) {
		return id, err
	}
	if id, err = New(validity); err != nil {
		return nil, err
	}
	err = keeper.Save(ctx, id, "")
	if errors.Is(err, ErrConflict) {
		id, _, err = keeper.Load(ctx)
	}
	return id, err
}
