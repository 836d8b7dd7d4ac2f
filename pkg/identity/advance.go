// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/x509"
	"fmt"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

const (
	// MaxServing bounds the life of a serving certificate.
	MaxServing = 90 * 24 * time.Hour
	// minServing and minOverlap leave a replica time to look and to sign. Certificates count in seconds.
	minServing = 5 * time.Second
	minOverlap = 2 * time.Second
	// maxInterval bounds the pause between two looks at what is kept.
	maxInterval = 30 * time.Second
)

// Policy says how long things are good for.
type Policy struct {
	// Authority is the life of an authority.
	Authority time.Duration
	// Serving is the life of a certificate that an authority signs, which is renewed after two thirds of it.
	Serving time.Duration
	// Overlap is how long an authority is known to be trusted before it signs.
	Overlap time.Duration
}

// Validate returns what is wrong with a policy, with the names of the flags.
func (p Policy) Validate() error {
	var errs []error
	if p.Serving < minServing || p.Serving > MaxServing {
		errs = append(errs, fmt.Errorf("--serving-cert-validity: %v is not between %v and %v", p.Serving, minServing, MaxServing))
	}
	if p.Overlap < minOverlap {
		errs = append(errs, fmt.Errorf("--ca-overlap: %v is less than %v", p.Overlap, minOverlap))
	}
	// An authority has to be the current one before the one after it is due.
	if least := p.Serving + 2*p.Overlap; len(errs) == 0 && p.Authority < least {
		errs = append(errs, fmt.Errorf("--ca-validity: %v is less than %v, which is --serving-cert-validity and twice --ca-overlap", p.Authority, least))
	}
	return utilerrors.NewAggregate(errs)
}

// Interval is the pause between two looks at what is kept.
func (p Policy) Interval() time.Duration { return min(maxInterval, p.Overlap/8, p.Serving/24) }

// margin is what is added to the life of the last certificate of an authority: for clocks that differ, and for a
// replica that read what is kept just before the authority was retired.
func (p Policy) margin() time.Duration { return min(p.Overlap, time.Hour) }

// pressing is how little life of an authority is left when the next one can no longer wait until it has been trusted long enough.
func (p Policy) pressing() time.Duration { return p.Serving / 6 }

// Step is one change of an identity, said in words; empty when nothing is to be done.
type Step string

// The steps of a rotation.
const (
	StepNone      Step = ""
	StepMade      Step = "made the next authority, which does not sign yet"
	StepConfirmed Step = "the next authority is trusted by clients"
	StepRevoked   Step = "the next authority is no longer trusted by clients: waiting again"
	StepPromoted  Step = "the next authority signs from now on"
	StepDropped   Step = "an old authority is no longer trusted"
)

// Advance takes the next step if its time has come. trusted says whether clients are seen to trust an authority now.
func (i *Identity) Advance(now time.Time, p Policy, trusted func(*x509.Certificate) bool) (Step, error) {
	if i.drop(now) {
		return StepDropped, nil
	}
	if i.Next == nil {
		if !i.due(now, p) {
			return StepNone, nil
		}
		next, err := newAuthority(p.Authority)
		if err != nil {
			return StepNone, err
		}
		i.Next, i.Confirmed, i.Handled = next, time.Time{}, i.Requested
		return StepMade, nil
	}
	switch ok := trusted(i.Next.Certificate()); {
	case !ok && i.Confirmed.IsZero():
		return StepNone, nil
	case !ok:
		i.Confirmed = time.Time{}
		return StepRevoked, nil
	case i.Confirmed.IsZero():
		i.Confirmed = now
		return StepConfirmed, nil
	case now.Sub(i.Confirmed) < p.Overlap && i.Current.Certificate().NotAfter.Sub(now) > p.pressing():
		return StepNone, nil
	}
	i.Retired = append(i.Retired, Retired{CertPEM: i.Current.CertPEM, Until: now.Add(p.Serving + p.margin())})
	i.Current, i.Next, i.Confirmed = i.Next, nil, time.Time{}
	return StepPromoted, nil
}

// due reports whether the current authority has to be replaced: while it is still good for a whole life of what it
// signs and for the overlap, or because somebody asks for it.
func (i *Identity) due(now time.Time, p Policy) bool {
	if i.Requested != "" && i.Requested != i.Handled {
		return true
	}
	return i.Current.Certificate().NotAfter.Sub(now) < p.Serving+p.Overlap
}

// drop removes authorities whose time is over.
func (i *Identity) drop(now time.Time) bool {
	var kept []Retired
	for _, r := range i.Retired {
		if now.Before(r.Until) && now.Before(lastDay(r.CertPEM)) {
			kept = append(kept, r)
		}
	}
	dropped := len(kept) < len(i.Retired)
	i.Retired = kept
	return dropped
}

func lastDay(certPEM []byte) time.Time {
	if found := certificates(certPEM); len(found) > 0 {
		return found[0].NotAfter
	}
	return time.Time{}
}
