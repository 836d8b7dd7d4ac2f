// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdcerts

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"rukpak.io/apiserver/pkg/pki"
)

var config = Config{Namespace: "rukpak-system", Name: "rukpak-etcd", ClusterDomain: "cluster.local"}

const member = "rukpak-etcd-2.rukpak-etcd.rukpak-system.svc"

func read(t *testing.T, client kubernetes.Interface, name string) *corev1.Secret {
	t.Helper()
	secret, err := client.CoreV1().Secrets(config.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func ensure(t *testing.T, client kubernetes.Interface, now time.Time) []string {
	t.Helper()
	written, err := Ensure(t.Context(), client, config, now)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(written)
	return slices.Compact(written)
}

var all = []string{"rukpak-etcd-ca", "rukpak-etcd-client", "rukpak-etcd-peer", "rukpak-etcd-server"}

func TestMakesWhatIsMissingAndNothingElse(t *testing.T) {
	client := fake.NewClientset()
	if got := ensure(t, client, time.Now()); !slices.Equal(got, all) {
		t.Errorf("the first run wrote %v", got)
	}
	if got := ensure(t, client, time.Now()); len(got) > 0 {
		t.Errorf("the second run wrote %v", got)
	}
	if err := client.CoreV1().Secrets(config.Namespace).Delete(t.Context(), "rukpak-etcd-peer", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := ensure(t, client, time.Now()); !slices.Equal(got, []string{"rukpak-etcd-peer"}) {
		t.Errorf("without the peers' secret it wrote %v", got)
	}
}

func TestRenews(t *testing.T) {
	leafs := []string{"rukpak-etcd-client", "rukpak-etcd-peer", "rukpak-etcd-server"}
	other, err := pki.NewAuthority("other", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := other.Peer([]string{member}, nil, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		after  time.Duration
		config Config
		data   map[string][]byte // of the server's secret
		want   []string
	}{
		"not while there is time":  {after: leafValidity - renewBefore - time.Hour, config: config},
		"when a third is left":     {after: leafValidity - renewBefore + time.Hour, config: config, want: leafs},
		"after the end":            {after: 2 * leafValidity, config: config, want: leafs},
		"when the names change":    {config: Config{Namespace: config.Namespace, Name: config.Name, ClusterDomain: "example"}, want: []string{"rukpak-etcd-peer", "rukpak-etcd-server"}},
		"what cannot be read":      {config: config, data: map[string][]byte{corev1.TLSCertKey: []byte("?")}, want: []string{"rukpak-etcd-server"}},
		"what another signed":      {config: config, data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}, want: []string{"rukpak-etcd-server"}},
		"what has no authority":    {config: config, data: map[string][]byte{keyCA: nil}, want: []string{"rukpak-etcd-server"}},
		"a key of another's":       {config: config, data: map[string][]byte{corev1.TLSPrivateKeyKey: key}, want: []string{"rukpak-etcd-server"}},
		"not what others added to": {config: config, data: map[string][]byte{"note": []byte("kept")}},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			ensure(t, client, time.Now())
			if c.data != nil {
				secret := read(t, client, "rukpak-etcd-server")
				maps.Copy(secret.Data, c.data)
				if _, err := client.CoreV1().Secrets(config.Namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			authority := read(t, client, "rukpak-etcd-ca").Data
			written, err := Ensure(t.Context(), client, c.config, time.Now().Add(c.after))
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(written)
			if !slices.Equal(written, c.want) {
				t.Errorf("it wrote %v, not %v", written, c.want)
			}
			if !maps.EqualFunc(read(t, client, "rukpak-etcd-ca").Data, authority, slices.Equal) {
				t.Error("the authorities changed")
			}
		})
	}
}

func TestRefusesABrokenAuthority(t *testing.T) {
	client := fake.NewClientset()
	ensure(t, client, time.Now())
	secret := read(t, client, "rukpak-etcd-ca")
	secret.Data["peer-ca.key"] = []byte("?")
	if _, err := client.CoreV1().Secrets(config.Namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if written, err := Ensure(t.Context(), client, config, time.Now()); err == nil || len(written) > 0 {
		t.Errorf("it wrote %v, and ended with %v", written, err)
	}
}

func TestRefusesToReplaceAuthoritiesThatAreLost(t *testing.T) {
	client := fake.NewClientset()
	ensure(t, client, time.Now())
	remove := func(names ...string) {
		for _, name := range names {
			if err := client.CoreV1().Secrets(config.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove("rukpak-etcd-ca")
	if written, err := Ensure(t.Context(), client, config, time.Now()); err == nil || len(written) > 0 {
		t.Errorf("it wrote %v, and ended with %v", written, err)
	}
	remove("rukpak-etcd-client", "rukpak-etcd-peer", "rukpak-etcd-server")
	if got := ensure(t, client, time.Now()); !slices.Equal(got, all) {
		t.Errorf("with nothing left it wrote %v", got)
	}
}

// TestReplacesTheAuthorities goes through the steps. In each, those that have read their authorities before it and those that
// have read them since connect to each other.
func TestReplacesTheAuthorities(t *testing.T) {
	client := fake.NewClientset()
	ensure(t, client, time.Now())
	step := func(value string) {
		secret := read(t, client, "rukpak-etcd-ca")
		secret.Annotations = map[string]string{RotateAnnotation: value}
		if _, err := client.CoreV1().Secrets(config.Namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	connects := func(trusted, shown *corev1.Secret) bool {
		_, pool := pair(t, trusted)
		cert, _ := pair(t, shown)
		_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err == nil
	}
	kinds := []string{"rukpak-etcd-peer", "rukpak-etcd-server", "rukpak-etcd-client"}
	at := map[string]map[string]*corev1.Secret{}
	note := func(when string) {
		at[when] = map[string]*corev1.Secret{}
		for _, kind := range kinds {
			at[when][kind] = read(t, client, kind)
		}
	}
	note("before")
	for _, value := range []string{RotateBegin, RotateFinish} {
		step(value)
		if got := ensure(t, client, time.Now()); !slices.Equal(got, all) {
			t.Errorf("%s wrote %v", value, got)
		}
		if got := ensure(t, client, time.Now()); len(got) > 0 {
			t.Errorf("%s again wrote %v", value, got)
		}
		note(value)
	}
	for _, kind := range kinds {
		for _, c := range []struct {
			trusted, shown string
			want           bool
		}{
			{"before", RotateBegin, true},
			{RotateBegin, "before", true},
			{RotateBegin, RotateFinish, true},
			{RotateFinish, RotateFinish, true},
			{"before", RotateFinish, false},
			{RotateFinish, "before", false},
		} {
			if got := connects(at[c.trusted][kind], at[c.shown][kind]); got != c.want {
				t.Errorf("%s: who trusts what there was at %q takes what there is at %q: %t", kind, c.trusted, c.shown, got)
			}
		}
	}
	step("now")
	if _, err := Ensure(t.Context(), client, config, time.Now()); err == nil || !strings.Contains(err.Error(), RotateAnnotation) {
		t.Errorf("a step that there is not: %v", err)
	}
}

// pair is what one side of a connection has of its secret, as etcd and its clients use it.
func pair(t *testing.T, secret *corev1.Secret) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	p, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(secret.Data[keyCA])
	return p, pool
}

func TestWhoMayConnectToWhom(t *testing.T) {
	client := fake.NewClientset()
	ensure(t, client, time.Now())
	for _, c := range []struct {
		from, to string
		allowed  bool
	}{
		{"client", "server", true},
		{"peer", "peer", true},
		{"server", "server", true},
		{"client", "peer", false},
		{"server", "peer", false},
		{"peer", "server", false},
	} {
		t.Run(c.from+" to "+c.to, func(t *testing.T) {
			cert, clients := pair(t, read(t, client, "rukpak-etcd-"+c.to))
			own, _ := pair(t, read(t, client, "rukpak-etcd-"+c.from))
			// Each client trusts what the server's secret names: what matters is whom the server takes.
			err := handshake(t, &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert},
				&tls.Config{Certificates: []tls.Certificate{own}, RootCAs: clients, ServerName: member})
			if (err == nil) != c.allowed {
				t.Errorf("the connection ends with %v", err)
			}
		})
	}
}

// handshake returns what the server says of a connection.
func handshake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if conn, err := tls.Dial("tcp", listener.Addr().String(), client); err == nil {
			conn.Close()
		}
	}()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).HandshakeContext(t.Context())
}
