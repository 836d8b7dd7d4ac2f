// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package aggregation

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rukpak.io/apiserver/pkg/pki"
)

func authority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority("a", 1000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func leaf(t *testing.T, a *pki.Authority, host string) []byte {
	t.Helper()
	cert, _, err := a.Serving([]string{host}, nil, 90*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestTrust(t *testing.T) {
	const host = "server.team.svc"
	a, b := authority(t), authority(t)
	good := leaf(t, a, host)
	away := errors.New("away")
	for name, test := range map[string]struct {
		served []byte
		view   View
		read   error
		own    bool
		says   string // empty if all is well
	}{
		"it fits":               {served: good, view: View{CABundle: a.CertPEM}},
		"it fits one of two":    {served: good, view: View{CABundle: append(b.CertPEM[:len(b.CertPEM):len(b.CertPEM)], a.CertPEM...)}},
		"another authority":     {served: good, view: View{CABundle: b.CertPEM}, says: "not to be trusted"},
		"another name":          {served: leaf(t, a, "localhost"), view: View{CABundle: a.CertPEM}, says: host},
		"no authority":          {served: good, own: true, says: "no caBundle"},
		"those of the system":   {served: good},
		"everybody is trusted":  {served: good, own: true, view: View{Insecure: true}},
		"nobody asks":           {served: good, own: true, view: View{Absent: true}},
		"they ask others":       {served: good, own: true, view: View{Foreign: "theirs", CABundle: b.CertPEM}},
		"it cannot be read":     {served: good, read: away, says: "away"},
		"nothing is served":     {says: "no certificate is served"},
		"what is served is bad": {served: []byte("-----BEGIN CERTIFICATE-----\neHh4\n-----END CERTIFICATE-----\n"), says: "read the certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			trust := NewTrust(TrustConfig{
				Served: func() []byte { return test.served }, Host: host, Own: test.own,
				Read: func(context.Context) (View, error) { return test.view, test.read },
			})
			err := trust.Look(t.Context())
			if (err != nil) != (test.says != "") || (err != nil && !strings.Contains(err.Error(), test.says)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A chain comes with what is served.
func TestTrustOfAChain(t *testing.T) {
	root, err := pki.NewAuthority("root", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	served := append(leaf(t, root, "server.team.svc"), root.CertPEM...)
	trust := NewTrust(TrustConfig{
		Served: func() []byte { return served }, Host: "server.team.svc",
		Read: func(context.Context) (View, error) { return View{CABundle: root.CertPEM}, nil },
	})
	if err := trust.Look(t.Context()); err != nil {
		t.Error(err)
	}
	if got := trust.CABundle(); string(got) != string(root.CertPEM) {
		t.Error("what kube-apiserver trusts is not told")
	}
}

func TestHealthOfCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := authority(t), authority(t)
		served := leaf(t, a, "server.team.svc")
		view, err := View{CABundle: a.CertPEM}, error(nil)
		trust := NewTrust(TrustConfig{
			Served: func() []byte { return served }, Host: "server.team.svc", Grace: time.Minute,
			Read: func(context.Context) (View, error) { return view, err },
		})
		expect := func(when string, ready, healthy bool) {
			t.Helper()
			if got := trust.Ready(nil); (got == nil) != ready {
				t.Errorf("%s: ready is %v", when, got)
			}
			if got := trust.Healthy(nil); (got == nil) != healthy {
				t.Errorf("%s: healthy is %v", when, got)
			}
		}
		look := func() { _ = trust.Look(t.Context()) }
		expect("before the first look", true, true)
		look()
		expect("all is well", true, true)
		view.CABundle = b.CertPEM
		look()
		time.Sleep(30 * time.Second)
		look()
		expect("while somebody may mend it", true, true)
		time.Sleep(time.Minute)
		look()
		expect("when nobody did", false, false)
		// kube-apiserver being away changes nothing of what was seen.
		err = errors.New("away")
		look()
		expect("nobody sees it", false, false)
		view.CABundle, err = a.CertPEM, nil
		look()
		expect("it is mended", true, true)
		time.Sleep(82 * time.Hour)
		expect("near its end", true, false)
		time.Sleep(10 * time.Hour)
		expect("after it", false, false)
	})
}
