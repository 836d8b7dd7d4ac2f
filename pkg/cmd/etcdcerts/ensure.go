// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcdcerts makes the certificates of an etcd cluster that serves rukpak-apiserver alone, keeps them in
// Secrets, and renews them long before they end.
//
// There are two authorities, so that a client of etcd can never pass for a member of it: one signs what members show to
// each other, the other what they show to clients and clients to them. Their keys are in one Secret that no pod of etcd
// or of the server mounts.
package etcdcerts

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rukpak.io/apiserver/pkg/pki"
)

const (
	// authorityValidity is long, since etcd and its clients read authorities only when they start.
	authorityValidity = 10 * 365 * 24 * time.Hour
	// leafValidity is short, since etcd and its clients read their own certificates for each connection anew.
	leafValidity = 90 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is renewed: with a run a day there are thirty tries.
	renewBefore = leafValidity / 3

	keyCA = "ca.crt"

	clientUser = "rukpak-apiserver"
)

// Config says whose certificates they are.
type Config struct {
	// Namespace is where etcd runs, and where the Secrets are.
	Namespace string
	// Name is that of the headless Service of etcd, and what the names of the Secrets begin with: NAME-ca, NAME-peer,
	// NAME-server, NAME-client.
	Name string
	// ClusterDomain is that of the cluster's DNS.
	ClusterDomain string
}

// Ensure makes what is missing, and makes anew what is broken, does not fit its authority or the names any more, or ends
// soon. It returns the names of the Secrets that it wrote. Of several that run at once, all but one may fail with
// a conflict; to run again is safe.
func Ensure(ctx context.Context, client kubernetes.Interface, c Config, now time.Time) ([]string, error) {
	e := &ensurer{secrets: secrets{client: client, namespace: c.Namespace}, now: now}
	clients, err := e.authority(ctx, c.Name+"-ca", "client-ca", c.Name+"-client-ca")
	if err != nil {
		return e.written, err
	}
	peers, err := e.authority(ctx, c.Name+"-ca", "peer-ca", c.Name+"-peer-ca")
	if err != nil {
		return e.written, err
	}
	names := c.members()
	local := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, l := range []leaf{
		{secret: c.Name + "-peer", authority: peers, names: names, issue: func() ([]byte, []byte, error) { return peers.Peer(names, local, leafValidity) }},
		// Both usages: etcd is a client of itself for its HTTP gateway.
		{secret: c.Name + "-server", authority: clients, names: names, issue: func() ([]byte, []byte, error) { return clients.Peer(names, local, leafValidity) }},
		{secret: c.Name + "-client", authority: clients, issue: func() ([]byte, []byte, error) { return clients.Client(clientUser, nil, leafValidity) }},
	} {
		if err := e.leaf(ctx, l); err != nil {
			return e.written, err
		}
	}
	return e.written, nil
}

// members are the names of all members. The wildcard lets their number change.
func (c Config) members() []string {
	service := c.Name + "." + c.Namespace + ".svc"
	return []string{"*." + service, "*." + service + "." + c.ClusterDomain, service, service + "." + c.ClusterDomain, "localhost"}
}

// leaf is a certificate that one side of a connection shows.
type leaf struct {
	secret    string
	authority *pki.Authority
	names     []string
	issue     func() (cert, key []byte, err error)
}

// ensurer is one run.
type ensurer struct {
	secrets
	now     time.Time
	written []string
}

// authority returns the authority that a Secret keeps under a key, and makes it where there is none. One that is there is
// never replaced: what has its certificates would stop to trust the rest at once.
func (e *ensurer) authority(ctx context.Context, secret, key, name string) (*pki.Authority, error) {
	current, err := e.get(ctx, secret, corev1.SecretTypeOpaque)
	if err != nil {
		return nil, err
	}
	cert, private := current.Data[key+".crt"], current.Data[key+".key"]
	if len(cert)+len(private) > 0 {
		a, err := pki.LoadAuthority(cert, private)
		if err != nil {
			return nil, fmt.Errorf("secret %s/%s: %s: %w", e.namespace, secret, key, err)
		}
		return a, nil
	}
	a, err := pki.NewAuthority(name, authorityValidity)
	if err != nil {
		return nil, err
	}
	return a, e.put(ctx, current, map[string][]byte{key + ".crt": a.CertPEM, key + ".key": a.KeyPEM})
}

// leaf renews a certificate that is not good any more.
func (e *ensurer) leaf(ctx context.Context, l leaf) error {
	current, err := e.get(ctx, l.secret, corev1.SecretTypeTLS)
	if err != nil {
		return err
	}
	if l.check(current.Data, e.now) == nil {
		return nil
	}
	cert, key, err := l.issue()
	if err != nil {
		return err
	}
	return e.put(ctx, current, map[string][]byte{keyCA: l.authority.CertPEM, corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key})
}

// check returns why a certificate has to be made anew.
func (l leaf) check(data map[string][]byte, now time.Time) error {
	if !bytes.Equal(data[keyCA], l.authority.CertPEM) {
		return errors.New("it is of another authority")
	}
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return err
	}
	if left := pair.Leaf.NotAfter.Sub(now); left < renewBefore {
		return fmt.Errorf("it ends in %v", left)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(l.authority.CertPEM)
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: usage, CurrentTime: now}); err != nil {
		return err
	}
	for _, name := range l.names {
		// The star itself is no valid host name; any first label stands for it.
		if name[0] == '*' {
			name = "any" + name[1:]
		}
		if err := pair.Leaf.VerifyHostname(name); err != nil {
			return err
		}
	}
	return nil
}

// secrets reads and writes the Secrets of one namespace.
type secrets struct {
	client    kubernetes.Interface
	namespace string
}

// kept is a Secret as it was read.
type kept struct {
	*corev1.Secret
	// exists is false where there is none yet.
	exists bool
}

// get returns a Secret, or an empty one to be created where there is none.
func (s secrets) get(ctx context.Context, name string, kind corev1.SecretType) (kept, error) {
	secret, err := s.client.CoreV1().Secrets(s.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return kept{Secret: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace, Labels: map[string]string{"app.kubernetes.io/part-of": "rukpak"}},
			Type:       kind,
		}}, nil
	}
	if err != nil {
		return kept{}, fmt.Errorf("read secret %s/%s: %w", s.namespace, name, err)
	}
	return kept{Secret: secret, exists: true}, nil
}

// put writes data to a Secret as it was read; one that somebody else has written meanwhile is a conflict.
func (e *ensurer) put(ctx context.Context, secret kept, data map[string][]byte) error {
	changed := secret.DeepCopy()
	if changed.Data == nil {
		changed.Data = map[string][]byte{}
	}
	maps.Copy(changed.Data, data)
	api := e.client.CoreV1().Secrets(e.namespace)
	var err error
	if secret.exists {
		_, err = api.Update(ctx, changed, metav1.UpdateOptions{})
	} else {
		_, err = api.Create(ctx, changed, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write secret %s/%s: %w", e.namespace, secret.Name, err)
	}
	e.written = append(e.written, secret.Name)
	return nil
}
