// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"crypto/x509"
	"testing"
	"testing/synctest"
	"time"
)

var policy = Policy{Authority: 100 * time.Hour, Serving: 12 * time.Hour, Overlap: 6 * time.Hour}

// step advances and fails unless that is the step.
func step(t *testing.T, id *Identity, trusted func(*x509.Certificate) bool, want Step) {
	t.Helper()
	got, err := id.Advance(time.Now(), policy, trusted)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("the step is %q, want %q", got, want)
	}
}

func TestARotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := fresh(t, policy.Authority)
		old := id.Current
		step(t, id, no, StepNone)
		time.Sleep(policy.Authority - policy.Serving - policy.Overlap - time.Minute)
		step(t, id, no, StepNone)
		time.Sleep(2 * time.Minute)
		step(t, id, no, StepMade)
		next := id.Next
		if id.Current != old || !id.Confirmed.IsZero() {
			t.Error("the next authority signs before anybody trusts it")
		}
		time.Sleep(time.Hour)
		step(t, id, no, StepNone)
		step(t, id, yes, StepConfirmed)
		time.Sleep(policy.Overlap - time.Minute)
		step(t, id, yes, StepNone)
		time.Sleep(2 * time.Minute)
		step(t, id, yes, StepPromoted)
		if id.Current != next || id.Next != nil || len(id.Retired) != 1 || !bytes.Equal(id.Retired[0].CertPEM, old.CertPEM) {
			t.Fatalf("after that it is %+v", id)
		}
		// What the old one signed is good until its own end at the latest.
		time.Sleep(time.Until(old.Certificate().NotAfter) - time.Minute)
		step(t, id, yes, StepNone)
		time.Sleep(2 * time.Minute)
		step(t, id, yes, StepDropped)
		if len(id.Retired) != 0 || !bytes.Equal(id.Trusted(), next.CertPEM) {
			t.Error("the old authority is trusted still")
		}
		step(t, id, yes, StepNone)
	})
}

// An authority signs only after it was trusted all the time of the overlap.
func TestTrustThatIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := fresh(t, policy.Authority)
		id.Requested = "now"
		step(t, id, yes, StepMade)
		step(t, id, yes, StepConfirmed)
		time.Sleep(policy.Overlap + time.Minute)
		step(t, id, no, StepRevoked)
		step(t, id, no, StepNone)
		step(t, id, yes, StepConfirmed)
		time.Sleep(policy.Overlap - time.Minute)
		step(t, id, yes, StepNone)
		time.Sleep(2 * time.Minute)
		step(t, id, yes, StepPromoted)
	})
}

func TestARotationOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := fresh(t, policy.Authority)
		for _, request := range []string{"once", "twice"} {
			id.Requested = request
			step(t, id, yes, StepMade)
			step(t, id, yes, StepConfirmed)
			time.Sleep(policy.Overlap)
			step(t, id, yes, StepPromoted)
			step(t, id, yes, StepNone) // the same request is not another one
		}
		// Two were retired; each has its own time.
		if len(id.Retired) != 2 {
			t.Fatalf("%d are retired", len(id.Retired))
		}
		// Whoever read it just before may sign with the old one a last time.
		time.Sleep(time.Until(id.Retired[0].Until) - policy.margin())
		step(t, id, yes, StepNone)
		time.Sleep(policy.margin())
		step(t, id, yes, StepDropped)
		if len(id.Retired) != 1 {
			t.Errorf("%d are retired", len(id.Retired))
		}
	})
}

// A server that was away for long does not wait for the overlap: what the old authority signs is hardly good any more.
func TestAnAuthorityNearItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, away := range map[string]time.Duration{"nearly": policy.Authority - time.Hour, "over": 2 * policy.Authority} {
			id := fresh(t, policy.Authority)
			time.Sleep(away)
			step(t, id, no, StepMade)
			step(t, id, no, StepNone)
			step(t, id, yes, StepConfirmed)
			step(t, id, yes, StepPromoted)
			if left := time.Until(id.Current.Certificate().NotAfter); left < policy.Authority-time.Minute {
				t.Errorf("%s: the new authority ends in %v", name, left)
			}
		}
	})
}
