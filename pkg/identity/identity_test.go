// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"crypto/x509"
	"maps"
	"strings"
	"testing"
	"time"
)

func fresh(t *testing.T, validity time.Duration) *Identity {
	t.Helper()
	id, err := New(validity)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func encoded(t *testing.T, id *Identity) map[string][]byte {
	t.Helper()
	data, err := id.encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// In the middle of a rotation an identity has everything.
func whole(t *testing.T) *Identity {
	t.Helper()
	id := fresh(t, time.Hour)
	id.Next = fresh(t, time.Hour).Current
	id.Confirmed = time.Date(2026, 11, 30, 1, 2, 3, 4, time.UTC)
	id.Retired = []Retired{{CertPEM: fresh(t, time.Hour).Current.CertPEM, Until: id.Confirmed.Add(time.Hour)}}
	id.Handled = "please"
	return id
}

func TestAnIdentityIsKeptWhole(t *testing.T) {
	for name, id := range map[string]*Identity{"at rest": fresh(t, time.Hour), "in a rotation": whole(t)} {
		t.Run(name, func(t *testing.T) {
			data := encoded(t, id)
			got, err := decode(data)
			if err != nil {
				t.Fatal(err)
			}
			if again := encoded(t, got); !maps.EqualFunc(data, again, bytes.Equal) {
				t.Errorf("it is another: %s", again[keyRotation])
			}
			if !got.Confirmed.Equal(id.Confirmed) || !bytes.Equal(got.Trusted(), id.Trusted()) {
				t.Error("it is another")
			}
		})
	}
}

func TestTrusted(t *testing.T) {
	id := whole(t)
	got := certificates(id.Trusted())
	want := append(certificates(id.Retired[0].CertPEM), id.Current.Certificate(), id.Next.Certificate())
	if len(got) != len(want) {
		t.Fatalf("%d are trusted", len(got))
	}
	for i := range want {
		if !got[i].Equal(want[i]) {
			t.Errorf("%d is %s", i, got[i].Subject)
		}
	}
}

// The first version kept three parts.
func TestAnIdentityOfTheFirstVersion(t *testing.T) {
	data := encoded(t, fresh(t, time.Hour))
	delete(data, keyRotation)
	id, err := decode(data)
	if err != nil || id.Next != nil || len(id.Retired) > 0 {
		t.Errorf("got %+v, %v", id, err)
	}
}

func TestWhatIsNoIdentity(t *testing.T) {
	other := fresh(t, time.Hour)
	for name, test := range map[string]struct {
		change func(map[string][]byte)
		says   string
	}{
		"no certificate":       {func(d map[string][]byte) { delete(d, keyAuthority) }, "ca.crt is missing"},
		"no key":               {func(d map[string][]byte) { delete(d, keyAuthorityKey) }, "ca.key is missing"},
		"the key of another":   {func(d map[string][]byte) { d[keyAuthorityKey] = other.Current.KeyPEM }, "ca.key"},
		"no key of attempts":   {func(d map[string][]byte) { delete(d, keyAttempt) }, "attempt.key has 0 bytes"},
		"next without its key": {func(d map[string][]byte) { delete(d, keyNextKey) }, "next.key"},
		"next, the key alone":  {func(d map[string][]byte) { delete(d, keyNext) }, "next.crt"},
		"no JSON":              {func(d map[string][]byte) { d[keyRotation] = []byte("{") }, "rotation.json"},
		"retired is nothing":   {func(d map[string][]byte) { d[keyRotation] = []byte(`{"retired":[{"certificate":"eA=="}]}`) }, "retired authority 0"},
	} {
		t.Run(name, func(t *testing.T) {
			data := encoded(t, whole(t))
			test.change(data)
			if _, err := decode(data); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want it to say %q", err, test.says)
			}
		})
	}
}

func TestSameBundle(t *testing.T) {
	a, b := fresh(t, time.Hour).Current.CertPEM, fresh(t, time.Hour).Current.CertPEM
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, []byte("\n# a comment\n")) }
	for name, test := range map[string]struct {
		x, y []byte
		same bool
	}{
		"nothing":        {nil, nil, true},
		"the same":       {join(a, b), join(a, b), true},
		"another order":  {join(a, b), join(b, a), true},
		"one twice":      {join(a, b, a), join(a, b), true},
		"one less":       {join(a, b), a, false},
		"one more":       {a, join(a, b), false},
		"another":        {a, b, false},
		"nothing, once":  {nil, a, false},
		"what is no PEM": {[]byte("x"), nil, true},
	} {
		if got := sameBundle(test.x, test.y); got != test.same {
			t.Errorf("%s: %v", name, got)
		}
	}
	if cert := certificates(a)[0]; !holds(join(b, a), cert) || holds(b, cert) {
		t.Error("holds is wrong")
	}
}

func TestPolicy(t *testing.T) {
	day := 24 * time.Hour
	for name, test := range map[string]struct {
		policy Policy
		says   string // empty if it is good
	}{
		"as usual":               {Policy{3 * 365 * day, 90 * day, 30 * day}, ""},
		"as short as can be":     {Policy{9 * time.Second, 5 * time.Second, 2 * time.Second}, ""},
		"a long leaf":            {Policy{3 * 365 * day, 91 * day, 30 * day}, "--serving-cert-validity"},
		"a short leaf":           {Policy{3 * 365 * day, time.Second, 30 * day}, "--serving-cert-validity"},
		"a short overlap":        {Policy{3 * 365 * day, 90 * day, time.Second}, "--ca-overlap"},
		"a short authority":      {Policy{149 * day, 90 * day, 30 * day}, "--ca-validity: 3576h0m0s is less than 3600h0m0s"},
		"nothing is said at all": {Policy{}, "--ca-overlap"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.policy.Validate()
			if (err != nil) != (test.says != "") || (err != nil && !strings.Contains(err.Error(), test.says)) {
				t.Errorf("got %v", err)
			}
			if err == nil && (test.policy.Interval() <= 0 || test.policy.Interval() > 30*time.Second) {
				t.Errorf("looks every %v", test.policy.Interval())
			}
		})
	}
}

// yes and no are what clients trust.
func yes(*x509.Certificate) bool { return true }
func no(*x509.Certificate) bool  { return false }
