// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"rukpak.io/apiserver/pkg/identity"
)

func TestKubeconfig(t *testing.T) {
	id, err := identity.New(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
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
			if err := o.writeKubeconfig(id.Current, id.Trusted()); err != nil {
				t.Fatal(err)
			}
			config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfigPath())
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != test.want || !bytes.Equal(config.CAData, id.Current.CertPEM) {
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

// The kubeconfig follows the authorities, and the login in it never gets old.
func TestKubeconfigFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := parse(t, "--standalone", "--data-dir="+t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		p := &process{Options: o, certificates: &certificates{own: true}}
		observe := p.observeStandalone()
		look := func(id *identity.Identity) *rest.Config {
			t.Helper()
			if err := observe(id); err != nil {
				t.Fatal(err)
			}
			config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfigPath())
			if err != nil {
				t.Fatal(err)
			}
			trusted, err := os.ReadFile(filepath.Join(o.pkiDir(), "ca.crt"))
			if err != nil || !bytes.Equal(trusted, id.Trusted()) || !bytes.Equal(config.CAData, id.Trusted()) {
				t.Errorf("the files do not hold what is trusted: %v", err)
			}
			return config
		}
		id, err := identity.New(10 * 365 * 24 * time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		first := look(id)
		time.Sleep(clientValidity / 2)
		if again := look(id); !bytes.Equal(again.CertData, first.CertData) {
			t.Error("a login that is good for long is written anew")
		}
		time.Sleep(clientValidity / 4)
		renewed := look(id)
		if bytes.Equal(renewed.CertData, first.CertData) {
			t.Error("a login that gets old is not written anew")
		}
		next, err := identity.New(time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		look(&identity.Identity{Current: id.Current, Next: next.Current})
		promoted := look(&identity.Identity{Current: next.Current, Retired: []identity.Retired{{CertPEM: id.Current.CertPEM}}})
		pair, err := tls.X509KeyPair(promoted.CertData, promoted.KeyData)
		if err != nil {
			t.Fatal(err)
		}
		if err := pair.Leaf.CheckSignatureFrom(next.Current.Certificate()); err != nil {
			t.Errorf("the login does not come from the new authority: %v", err)
		}
	})
}
