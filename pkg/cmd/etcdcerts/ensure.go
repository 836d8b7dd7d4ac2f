// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcdcerts makes the certificates of an etcd cluster that serves rukpak-apiserver alone, keeps them in
// Secrets, and renews them long before they end.
//
// There are two authorities, so that a client of etcd can never pass for a member of it: one signs what members show to
// each other, the other what they show to clients and clients to them. Their keys are in one Secret that no pod of etcd
// or of the server mounts.
//
// Authorities are replaced in two steps, between which all that reads them is restarted, one after the other: the
// annotation RotateAnnotation of their Secret says which step it is. With RotateBegin there are new ones, which are
// trusted beside the old ones, and sign nothing. With RotateFinish they sign everything and are trusted alone.
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
	"slices"
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

	// nextPrefix is what the keys of an authority begin with that is to take the place of another.
	nextPrefix = "next-"
)

// RotateAnnotation of the Secret NAME-ca says how far the replacement of the authorities is to be. Without it, or with the
// value of a step that is done, they stay as they are.
const (
	RotateAnnotation = "rukpak.io/rotate-ca"
	RotateBegin      = "begin"
	RotateFinish     = "finish"
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
// soon, and takes the step of a replacement of the authorities that RotateAnnotation asks for. It returns the names of the Secrets that it wrote. Of several that run at once, all but one may fail with
// a conflict; to run again is safe.
func Ensure(ctx context.Context, client kubernetes.Interface, c Config, now time.Time) ([]string, error) {
	e := &ensurer{secrets: secrets{client: client, namespace: c.Namespace}, now: now}
	clients, peers, err := e.authorities(ctx, c.Name)
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
	authority authority
	names     []string
	issue     func() (cert, key []byte, err error)
}

// ensurer is one run.
type ensurer struct {
	secrets
	now     time.Time
	written []string
}

// authority is what signs.
type authority struct {
	*pki.Authority
	// trusted is its certificate, and that of the one which is to take its place if there is one.
	trusted []byte
}

// authorities returns that of clients and that of members, as their Secret keeps them. They are made where the Secret is
// missing, and otherwise replaced only in the steps of its annotation: what trusts one alone trusts nothing of another.
func (e *ensurer) authorities(ctx context.Context, name string) (clients, peers authority, err error) {
	current, err := e.get(ctx, name+"-ca", corev1.SecretTypeOpaque)
	if err != nil {
		return authority{}, authority{}, err
	}
	if !current.exists {
		if err := e.nothingSigned(ctx, name); err != nil {
			return authority{}, authority{}, err
		}
	}
	data := maps.Clone(current.Data)
	if data == nil {
		data = map[string][]byte{}
	}
	step := current.Annotations[RotateAnnotation]
	for _, a := range []struct {
		key  string
		into *authority
	}{{"client-ca", &clients}, {"peer-ca", &peers}} {
		if *a.into, err = advance(data, a.key, name+"-"+a.key, step); err != nil {
			return authority{}, authority{}, fmt.Errorf("secret %s/%s-ca: %w", e.namespace, name, err)
		}
	}
	if maps.EqualFunc(data, current.Data, bytes.Equal) {
		return clients, peers, nil
	}
	return clients, peers, e.put(ctx, current, data)
}

// nothingSigned is an error where there are certificates whose authorities are lost. With new ones in their place, etcd
// would come apart as soon as the kubelets have written the files.
func (e *ensurer) nothingSigned(ctx context.Context, name string) error {
	for _, kind := range []string{"-peer", "-server", "-client"} {
		secret, err := e.get(ctx, name+kind, corev1.SecretTypeTLS)
		if err != nil {
			return err
		}
		if secret.exists {
			return fmt.Errorf("secret %s/%s-ca is gone, whose authorities have signed %s%s: put it back, or delete the Secrets %s-peer, %s-server and %s-client as well, "+
				"run this again, and delete all pods of etcd at once", e.namespace, name, name, kind, name, name, name)
		}
	}
	return nil
}

// advance returns the authority that data keep under a key, made where there is none, and takes the step that is asked for.
func advance(data map[string][]byte, key, name, step string) (authority, error) {
	if len(data[key+".crt"])+len(data[key+".key"]) == 0 {
		if err := create(data, key, name); err != nil {
			return authority{}, err
		}
	}
	next := nextPrefix + key
	prepared := len(data[next+".crt"])+len(data[next+".key"]) > 0
	switch step {
	case "":
	case RotateBegin:
		if !prepared {
			if err := create(data, next, name); err != nil {
				return authority{}, err
			}
			prepared = true
		}
	case RotateFinish:
		if prepared {
			for _, part := range []string{".crt", ".key"} {
				data[key+part] = data[next+part]
				delete(data, next+part)
			}
			prepared = false
		}
	default:
		return authority{}, fmt.Errorf("annotation %s is %q, neither %s nor %s", RotateAnnotation, step, RotateBegin, RotateFinish)
	}
	a, err := load(data, key)
	if err != nil || !prepared {
		return a, err
	}
	n, err := load(data, next)
	a.trusted = slices.Concat(a.trusted, n.trusted)
	return a, err
}

func create(data map[string][]byte, key, name string) error {
	a, err := pki.NewAuthority(name, authorityValidity)
	if err != nil {
		return err
	}
	data[key+".crt"], data[key+".key"] = a.CertPEM, a.KeyPEM
	return nil
}

func load(data map[string][]byte, key string) (authority, error) {
	a, err := pki.LoadAuthority(data[key+".crt"], data[key+".key"])
	if err != nil {
		return authority{}, fmt.Errorf("%s: %w", key, err)
	}
	return authority{Authority: a, trusted: a.CertPEM}, nil
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
	data := map[string][]byte{keyCA: l.authority.trusted, corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}
	for name, value := range current.Data {
		if data[name] == nil {
			data[name] = value // of somebody else
		}
	}
	return e.put(ctx, current, data)
}

// check returns why a certificate has to be made anew.
func (l leaf) check(data map[string][]byte, now time.Time) error {
	if !bytes.Equal(data[keyCA], l.authority.trusted) {
		return errors.New("other authorities are trusted")
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
	changed.Data = data
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
