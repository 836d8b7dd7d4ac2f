// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"rukpak.io/apiserver/pkg/aggregation"
	"rukpak.io/apiserver/pkg/identity"
)

func TestCertificateFlags(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		says      string // empty if they are good
	}{
		"none":                      {nil, ""},
		"short":                     {[]string{"--serving-cert-validity=6s", "--ca-overlap=4s", "--ca-validity=15s"}, ""},
		"a long leaf":               {[]string{"--serving-cert-validity=2161h"}, "--serving-cert-validity"},
		"a CA that ends before":     {[]string{"--ca-validity=2400h"}, "--ca-validity"},
		"a CA and no certificate":   {[]string{"--tls-ca-file=x"}, "--tls-ca-file"},
		"a CA and its certificate":  {[]string{"--tls-ca-file=x", "--tls-cert-file=x", "--tls-private-key-file=x"}, ""},
		"a certificate without one": {[]string{"--tls-cert-file=x", "--tls-private-key-file=x"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, append([]string{"--unpack-image=x"}, test.arguments...)...)
			if (err != nil) != (test.says != "") || (err != nil && !strings.Contains(err.Error(), test.says)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAuthorityFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca.crt")
	if _, err := newAuthorityFile(path); err == nil {
		t.Error("a file that is not there is taken")
	}
	pem := newIdentity(t).Trusted()
	write := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write([]byte("x"))
	if _, err := newAuthorityFile(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file without a certificate: %v", err)
	}
	write(pem)
	f, err := newAuthorityFile(path)
	if err != nil || !bytes.Equal(f.bundle(), pem) {
		t.Fatal(err)
	}
	write(nil)
	if err := f.reload(); err == nil || !bytes.Equal(f.bundle(), pem) {
		t.Errorf("what was good is not kept: %v", err)
	}
	other := newIdentity(t).Trusted()
	write(other)
	if err := f.reload(); err != nil || !bytes.Equal(f.bundle(), other) {
		t.Errorf("a change is not followed: %v", err)
	}
}

func newIdentity(t *testing.T) *identity.Identity {
	t.Helper()
	id, err := identity.New(1000 * time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// newCertificates are those of a server behind an APIService.
func newCertificates() *certificates {
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": aggregation.Name},
		"spec": map[string]any{"service": map[string]any{"name": "server", "namespace": "team"}},
	}})
	return &certificates{policy: newCertificateOptions().Policy, apiService: aggregation.New(client, "server", "team")}
}

func published(t *testing.T, c *certificates) []byte {
	t.Helper()
	v, err := c.apiService.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return v.CABundle
}

// Whose certificate is served decides what pods trust, and whether the caBundle of the APIService is touched.
func TestWhatPodsTrust(t *testing.T) {
	id := newIdentity(t)
	brought := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(brought, newIdentity(t).Trusted(), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := newAuthorityFile(brought)
	if err != nil {
		t.Fatal(err)
	}
	foreign := newIdentity(t).Trusted()
	for name, test := range map[string]struct {
		own      bool
		brought  *authorityFile
		want     []byte
		replaced bool
	}{
		"its own":                 {own: true, want: id.Trusted(), replaced: true},
		"one that is brought":     {brought: file, want: file.bundle(), replaced: true},
		"one of the APIService's": {want: foreign},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCertificates()
				c.own, c.brought = test.own, test.brought
				if look, err := c.apiService.Look(t.Context()); err != nil || look.Replace(t.Context(), foreign) != nil {
					t.Fatal(err)
				}
				c.keeper = identity.NewFileKeeper(t.TempDir(), writeFile)
				if err := c.keeper.Save(t.Context(), id, ""); err != nil {
					t.Fatal(err)
				}
				if c.follower, err = identity.Follow(t.Context(), identity.FollowerConfig{Keeper: c.keeper, Policy: c.policy, Names: []string{"server.team.svc"}}); err != nil {
					t.Fatal(err)
				}
				c.trust = aggregation.NewTrust(aggregation.TrustConfig{
					Host: "server.team.svc", Read: c.apiService.Read,
					Served: func() []byte { cert, _ := c.follower.CurrentCertKeyContent(); return cert },
				})
				ctx, cancel := context.WithCancel(t.Context())
				go func() { _ = c.follow(ctx) }()
				go func() { _ = c.rotate(ctx) }()
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if got := c.bundle(); !bytes.Equal(got, test.want) {
					t.Errorf("pods trust %s", got)
				}
				if got := published(t, c); !bytes.Equal(got, test.want) || bytes.Equal(got, foreign) == test.replaced {
					t.Errorf("kube-apiserver trusts %s", got)
				}
				if c.publishes() != test.replaced {
					t.Error("it is not known whose business that is")
				}
				// Somebody applies the manifest again.
				look, err := c.apiService.Look(ctx)
				if err != nil || look.Replace(ctx, nil) != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := published(t, c); (len(got) > 0) != test.replaced {
					t.Errorf("then kube-apiserver trusts %s", got)
				}
				cancel()
				time.Sleep(time.Minute)
				synctest.Wait()
			})
		})
	}
}
