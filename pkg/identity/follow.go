// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"
)

// loadTimeout bounds one read of what is kept.
const loadTimeout = 10 * time.Second

// FollowerConfig says what a Follower follows and signs.
type FollowerConfig struct {
	Keeper Keeper
	Policy Policy
	// Names and Addresses are what the certificate is good for. Without any, none is signed.
	Names     []string
	Addresses []net.IP
	// Observe is called with the identity at every look, before it is signed with; nil if nobody cares. What fails is
	// tried again at the next.
	Observe func(*Identity) error
	// Issued is called with every new certificate, PEM; nil if nobody cares.
	Issued func(certPEM []byte) error
}

// Follower is the identity as one replica knows it, and the replica's serving certificate, whose key never leaves the process.
// A certificate is signed right after a look at what is kept and at no other time: so nothing is signed by an
// authority that was retired a while ago. It is a dynamiccertificates.CertKeyContentProvider.
type Follower struct {
	config  FollowerConfig
	current atomic.Pointer[Identity]
	serving atomic.Pointer[servingPair]

	mu        sync.Mutex
	listeners []dynamiccertificates.Listener
}

type servingPair struct {
	certPEM, keyPEM []byte
	leaf            *x509.Certificate
	renew           time.Time
}

var _ dynamiccertificates.CertKeyContentProvider = &Follower{}

// Follow takes the identity that is kept, which is made where there is none, and signs the first certificate.
func Follow(ctx context.Context, config FollowerConfig) (*Follower, error) {
	f := &Follower{config: config}
	id, err := Open(ctx, config.Keeper, config.Policy.Authority)
	if err != nil {
		return nil, err
	}
	return f, f.adopt(ctx, id)
}

// Identity returns the identity as it was when it was last looked at. It is not to be changed.
func (f *Follower) Identity() *Identity { return f.current.Load() }

// Sync looks at the identity once.
func (f *Follower) Sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	id, _, err := f.config.Keeper.Load(ctx)
	if err != nil {
		return fmt.Errorf("read the server's own authority: %w", err)
	}
	return f.adopt(ctx, id)
}

// adopt makes id the identity of this replica.
func (f *Follower) adopt(ctx context.Context, id *Identity) error {
	before := f.current.Swap(id)
	if before != nil && !holds(id.Trusted(), before.Current.Certificate()) {
		klog.FromContext(ctx).Info("The server's own authority was replaced by another, not by a rotation")
	}
	var errs []error
	if f.config.Observe != nil {
		errs = append(errs, f.config.Observe(id))
	}
	if len(f.config.Names)+len(f.config.Addresses) > 0 {
		errs = append(errs, f.sign(ctx, id))
	}
	return errors.Join(errs...)
}

// sign signs a certificate if there is none, or the one that is there gets old or comes from another authority.
func (f *Follower) sign(ctx context.Context, id *Identity) error {
	old := f.serving.Load()
	if old != nil && time.Now().Before(old.renew) && old.leaf.CheckSignatureFrom(id.Current.Certificate()) == nil {
		return nil
	}
	now := time.Now()
	certPEM, keyPEM, err := id.Current.Serving(f.config.Names, f.config.Addresses, f.config.Policy.Serving)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("read the certificate that was just signed: %w", err)
	}
	life := pair.Leaf.NotAfter.Sub(now)
	f.serving.Store(&servingPair{certPEM: certPEM, keyPEM: keyPEM, leaf: pair.Leaf, renew: now.Add(life * 2 / 3)})
	klog.FromContext(ctx).V(2).Info("Signed a serving certificate", "authority", id.Current.Certificate().Subject.CommonName, "end", pair.Leaf.NotAfter)
	f.mu.Lock()
	listeners := f.listeners
	f.mu.Unlock()
	for _, l := range listeners {
		l.Enqueue()
	}
	if f.config.Issued != nil {
		return f.config.Issued(certPEM)
	}
	return nil
}

// Name names the certificate in logs.
func (f *Follower) Name() string { return "serving certificate of the server's own authority" }

// CurrentCertKeyContent returns the certificate and its key, PEM.
func (f *Follower) CurrentCertKeyContent() (certPEM, keyPEM []byte) {
	s := f.serving.Load()
	if s == nil {
		return nil, nil
	}
	return s.certPEM, s.keyPEM
}

// AddListener adds somebody who is told of new certificates.
func (f *Follower) AddListener(l dynamiccertificates.Listener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners = append(f.listeners[:len(f.listeners):len(f.listeners)], l)
}
