// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"

	"rukpak.io/apiserver/pkg/pki"
)

func same(a, b *identity) bool {
	return bytes.Equal(a.authority.CertPEM, b.authority.CertPEM) && bytes.Equal(a.authority.KeyPEM, b.authority.KeyPEM) && bytes.Equal(a.attemptKey, b.attemptKey)
}

func TestFileIdentity(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first, err := fileIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{keyAuthority, keyAuthorityKey, keyAttempt} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	if again, err := fileIdentity(dir); err != nil || !same(first, again) {
		t.Errorf("it is another after a restart: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, keyAttempt)); err != nil {
		t.Fatal(err)
	}
	if again, err := fileIdentity(dir); err != nil || same(first, again) {
		t.Errorf("what was half made is not made anew: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, keyAttempt), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fileIdentity(dir); err == nil || !strings.Contains(err.Error(), keyAttempt) {
		t.Errorf("a damaged key: %v", err)
	}
	if _, err := fileIdentity(filepath.Join(dir, keyAttempt)); err == nil {
		t.Error("a file is taken for a folder")
	}
}

func TestReplicasShareOneIdentity(t *testing.T) {
	// A client answers one request at a time, so each replica has its own, of one cluster.
	cluster := fake.NewClientset()
	const replicas = 3
	var looked, group sync.WaitGroup
	looked.Add(replicas)
	found := make([]*identity, replicas)
	for i := range found {
		client := fake.NewClientset()
		client.PrependReactor("*", "secrets", clienttesting.ObjectReaction(cluster.Tracker()))
		client.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			// All replicas have looked before the first makes the Secret.
			looked.Done()
			looked.Wait()
			return false, nil, nil
		})
		group.Go(func() {
			id, err := clusterIdentity(t.Context(), client, "rukpak-system", "pki")
			if err != nil {
				t.Error(err)
				return
			}
			found[i] = id
		})
	}
	group.Wait()
	for i, id := range found {
		if id == nil || !same(id, found[0]) {
			t.Errorf("replica %d has another identity", i)
		}
	}
	if again, err := clusterIdentity(t.Context(), cluster, "rukpak-system", "pki"); err != nil || !same(again, found[0]) {
		t.Errorf("it is another after a restart: %v", err)
	}
}

func TestAnIdentityThatCannotBe(t *testing.T) {
	good, err := newIdentity()
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(verb string) func(*fake.Clientset) {
		return func(c *fake.Clientset) {
			c.PrependReactor(verb, "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no leader") })
		}
	}
	for name, test := range map[string]struct {
		data    map[string][]byte // of the Secret; none if nil
		prepare func(*fake.Clientset)
		says    []string
	}{
		"no authority":      {data: map[string][]byte{keyAttempt: good[keyAttempt]}, says: []string{"rukpak-system/pki", "delete it"}},
		"a short key":       {data: map[string][]byte{keyAuthority: good[keyAuthority], keyAuthorityKey: good[keyAuthorityKey], keyAttempt: []byte("x")}, says: []string{keyAttempt, "delete it"}},
		"cannot be read":    {prepare: refuse("get"), says: []string{"read the secret rukpak-system/pki", "no leader"}},
		"cannot be written": {prepare: refuse("create"), says: []string{"make the secret rukpak-system/pki", "no leader"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			if test.data != nil {
				client = fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "rukpak-system", Name: "pki"}, Data: test.data})
			}
			if test.prepare != nil {
				test.prepare(client)
			}
			_, err := clusterIdentity(t.Context(), client, "rukpak-system", "pki")
			for _, part := range test.says {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want it to say %q", err, part)
				}
			}
		})
	}
}

func TestServingFiles(t *testing.T) {
	authority, err := pki.NewAuthority("ca", authorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	names := serviceNames("server", "team")
	files := newServingFiles(t.TempDir(), authority, names, []net.IP{net.IPv4(10, 0, 0, 1)})
	read := func() *tls.Certificate {
		pair, err := tls.LoadX509KeyPair(files.cert, files.key)
		if err != nil {
			t.Fatal(err)
		}
		return &pair
	}
	if err := files.issue(); err != nil {
		t.Fatal(err)
	}
	leaf := read().Leaf
	for _, host := range []string{"server.team.svc", "server.team.svc.cluster.local", "localhost", "10.0.0.1"} {
		if err := leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.Sleep(time.Until(time.Now().Add(time.Minute)))
		if err := files.issue(); err != nil {
			t.Fatal(err)
		}
		young := read().Leaf.SerialNumber
		go files.renew(ctx)
		time.Sleep(servingValidity / 2)
		synctest.Wait()
		if read().Leaf.SerialNumber.Cmp(young) != 0 {
			t.Error("it is renewed long before its time")
		}
		time.Sleep(servingValidity / 3)
		synctest.Wait()
		now := read().Leaf
		if now.SerialNumber.Cmp(young) == 0 || time.Until(now.NotAfter) < servingValidity/2 {
			t.Errorf("it was not renewed: it ends %v", now.NotAfter)
		}
		cancel()
		synctest.Wait()
	})
}

func TestOwnAddresses(t *testing.T) {
	t.Setenv("POD_IP", "")
	if got, err := ownAddresses(); err != nil || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	t.Setenv("POD_IP", "10.1.2.3")
	if got, err := ownAddresses(); err != nil || !slices.ContainsFunc(got, net.IPv4(10, 1, 2, 3).Equal) {
		t.Errorf("got %v, %v", got, err)
	}
	t.Setenv("POD_IP", "here")
	if _, err := ownAddresses(); err == nil || !strings.Contains(err.Error(), "POD_IP") {
		t.Errorf("got %v", err)
	}
}

func TestPodIdentity(t *testing.T) {
	t.Setenv("POD_NAME", "rukpak-apiserver-0")
	if got := podIdentity(); got != "rukpak-apiserver-0" {
		t.Errorf("got %s", got)
	}
	t.Setenv("POD_NAME", "")
	if got := podIdentity(); got == "" {
		t.Error("without a pod it has no name")
	}
}

func TestKubeconfig(t *testing.T) {
	for name, test := range map[string]struct{ address, want string }{
		"one address":    {"127.0.0.2", "https://127.0.0.2:6444"},
		"every address":  {"0.0.0.0", "https://127.0.0.1:6444"},
		"another family": {"::1", "https://[::1]:6444"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(t, "--standalone", "--bind-address="+test.address, "--data-dir="+t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			id, err := fileIdentity(o.pkiDir())
			if err != nil {
				t.Fatal(err)
			}
			if err := o.writeKubeconfig(id); err != nil {
				t.Fatal(err)
			}
			config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfigPath())
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != test.want || !bytes.Equal(config.CAData, id.authority.CertPEM) {
				t.Errorf("it leads to %s", config.Host)
			}
			pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
			if err != nil {
				t.Fatal(err)
			}
			if s := pair.Leaf.Subject; s.CommonName != standaloneUser || !slices.Equal(s.Organization, []string{"system:masters"}) {
				t.Errorf("it logs in as %v", s)
			}
			if info, err := os.Stat(o.kubeconfigPath()); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}
