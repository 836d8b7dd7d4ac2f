// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/aggregation"
	"rukpak.io/apiserver/pkg/identity"
)

// CertificateOptions are the flags of the server's own authority, and of one that is brought along.
type CertificateOptions struct {
	// Policy says how long the server's own authority and its certificates are good for.
	Policy identity.Policy
	// CAFile has the authorities of a serving certificate that is not the server's own.
	CAFile string
}

func newCertificateOptions() CertificateOptions {
	const day = 24 * time.Hour
	return CertificateOptions{Policy: identity.Policy{Authority: 3 * 365 * day, Serving: identity.MaxServing, Overlap: 30 * day}}
}

func (o *CertificateOptions) addFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.Policy.Authority, "ca-validity", o.Policy.Authority, "Life of the server's own authority. The next one is made, and trusted, long before its end.")
	fs.DurationVar(&o.Policy.Serving, "serving-cert-validity", o.Policy.Serving, "Life of the serving certificate that the server's own authority signs, which is renewed after two thirds of it without a restart. At most 90 days.")
	fs.DurationVar(&o.Policy.Overlap, "ca-overlap", o.Policy.Overlap, "How long a new authority is trusted before it signs. Clients that keep a copy of the caBundle have that time to take it anew.")
	fs.StringVar(&o.CAFile, "tls-ca-file", o.CAFile, "Authorities of the certificate in --tls-cert-file, PEM: for unpack pods and for the caBundle of the APIService. Without it that caBundle is somebody else's business, and pods trust what it holds.")
}

func (o *CertificateOptions) validate(certFile string) error {
	errs := []error{o.Policy.Validate()}
	if o.CAFile != "" && certFile == "" {
		errs = append(errs, errors.New("--tls-ca-file is of use with --tls-cert-file alone"))
	}
	return utilerrors.NewAggregate(errs)
}

// certificates is what the server serves with, and what it is trusted by.
type certificates struct {
	policy identity.Policy
	// own means that the serving certificate comes from the server's own authority.
	own      bool
	keeper   identity.Keeper
	follower *identity.Follower
	// brought is the authority that was brought along with a certificate; nil if none was.
	brought *authorityFile
	// apiService is nil when standalone, as is claims.
	apiService *aggregation.APIService
	claims     *aggregation.Claims
	trust      *aggregation.Trust
}

// bundle is what the server is to be trusted by, PEM; empty if that is not known.
func (c *certificates) bundle() []byte {
	switch {
	case c.own:
		return c.follower.Identity().Trusted()
	case c.brought != nil:
		return c.brought.bundle()
	}
	return c.trust.CABundle()
}

// publishes reports whether the caBundle of the APIService is this server's business.
func (c *certificates) publishes() bool { return c.apiService != nil && (c.own || c.brought != nil) }

// applyIdentity finds the server's authority, and makes it serve with a certificate of that one if no other is brought along.
func (p *process) applyIdentity(ctx context.Context) error {
	secure := p.Recommended.SecureServing
	c := &certificates{policy: p.Certificates.Policy, own: secure.ServerCert.CertKey.CertFile == ""}
	p.certificates = c
	if p.Certificates.CAFile != "" {
		var err error
		if c.brought, err = newAuthorityFile(p.Certificates.CAFile); err != nil {
			return fmt.Errorf("--tls-ca-file: %w", err)
		}
	}
	c.trust = p.newTrust()
	config := identity.FollowerConfig{Policy: c.policy, Observe: observeIdentity}
	if p.Standalone {
		c.keeper = identity.NewFileKeeper(p.pkiDir(), writeFile)
		config.Observe = p.observeStandalone()
		if client := &p.Recommended.Authentication.ClientCert; client.ClientCA == "" {
			client.ClientCA = p.trustedFile()
		}
	} else {
		if err := p.joinCluster(); err != nil {
			return err
		}
		c.keeper = identity.NewSecretKeeper(p.kube, p.Namespace, identitySecret)
	}
	if c.own {
		var err error
		config.Names = serviceNames(p.ServiceName, p.Namespace)
		if config.Addresses, err = p.addresses(ctx); err != nil {
			return err
		}
		config.Issued = func(cert []byte) error { return writeFile(filepath.Join(p.pkiDir(), "serving.crt"), cert) }
	}
	config.Keeper = c.keeper
	var err error
	if c.follower, err = identity.Follow(ctx, config); err != nil {
		return err
	}
	if c.own {
		secure.ServerCert.GeneratedCert = c.follower
		// Earlier versions kept the key in a file.
		if err := os.Remove(filepath.Join(p.pkiDir(), "serving.key")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the key of an earlier certificate: %w", err)
		}
	}
	p.config.AddReadyzChecks(healthz.NamedCheck("rukpak-certificates", c.trust.Ready))
	p.config.AddHealthzChecks(healthz.NamedCheck("rukpak-certificates", c.trust.Healthy))
	if c.claims != nil {
		p.config.AddHealthzChecks(healthz.NamedCheck("rukpak-api-claims", c.claims.Check))
	}
	return nil
}

// newTrust compares what is served with what kube-apiserver trusts.
func (p *process) newTrust() *aggregation.Trust {
	c := p.certificates
	config := aggregation.TrustConfig{
		Host: serviceNames(p.ServiceName, p.Namespace)[0], Own: c.own, Grace: 2 * c.policy.Interval(),
		Served: func() []byte {
			cert, _ := p.config.SecureServing.Cert.CurrentCertKeyContent()
			return cert
		},
	}
	if c.own {
		config.Near = c.policy.Serving / 6
	}
	if !p.Standalone {
		config.Read = func(ctx context.Context) (aggregation.View, error) { return c.apiService.Read(ctx) }
	}
	return aggregation.NewTrust(config)
}

// joinAggregation makes what knows of the APIService.
func (p *process) joinAggregation(config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make the client of APIServices: %w", err)
	}
	light, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make the client of CustomResourceDefinitions: %w", err)
	}
	c := p.certificates
	c.apiService = aggregation.New(client, p.ServiceName, p.Namespace)
	c.claims = aggregation.NewClaims(c.apiService, light, p.kube, podIdentity())
	return nil
}

// observeIdentity shows when the authorities end.
func observeIdentity(id *identity.Identity) error {
	aggregation.ObserveExpiration(aggregation.CertificateAuthority, id.Current.Certificate())
	if id.Next == nil {
		aggregation.ObserveExpiration(aggregation.CertificateNextAuthority, nil)
	} else {
		aggregation.ObserveExpiration(aggregation.CertificateNextAuthority, id.Next.Certificate())
	}
	return nil
}

// tolerated is how many looks in a row may fail before that is an error.
const tolerated = 3

// follow follows what other replicas and administrators do to the authority, until ctx ends. It is the
// business of every replica.
func (c *certificates) follow(ctx context.Context) error {
	log := klog.FromContext(ctx)
	backoff := func() wait.Backoff {
		return wait.Backoff{Duration: min(500*time.Millisecond, c.policy.Interval()), Factor: 2, Cap: c.policy.Interval(), Steps: 20, Jitter: 0.1}
	}
	again, failures, said := backoff(), 0, ""
	for {
		pause := wait.Jitter(c.policy.Interval(), 0.1)
		err := c.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			again, failures, said = backoff(), 0, ""
		default:
			pause = again.Step()
			// For a moment it is so at the start, until the replica that leads has set the caBundle.
			if failures++; failures >= tolerated && err.Error() != said {
				said = err.Error()
				log.Error(err, "The certificates are not as they should be")
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// look looks at all certificates once.
func (c *certificates) look(ctx context.Context) error {
	errs := []error{c.follower.Sync(ctx)}
	if c.brought != nil {
		errs = append(errs, c.brought.reload())
	}
	return errors.Join(append(errs, c.trust.Look(ctx))...)
}

// rotate replaces the server's own authority in time and keeps the caBundle of the APIService right, until ctx
// ends. It is the business of one replica.
func (c *certificates) rotate(ctx context.Context) error {
	if c.own {
		r := &identity.Rotator{Keeper: c.keeper, Audience: c.audience(), Policy: c.policy, Known: c.follower.Identity}
		return r.Run(ctx)
	}
	if c.brought == nil || c.apiService == nil {
		return nil
	}
	wait.JitterUntilWithContext(ctx, func(ctx context.Context) {
		published, err := c.apiService.Look(ctx)
		if err == nil {
			_, err = published.Ensure(ctx, c.brought.bundle())
		}
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot set the authority of the APIService")
		}
	}, c.policy.Interval(), 0.1, true)
	return nil
}

// audience is who has to trust the next authority before it signs.
func (c *certificates) audience() identity.Audience {
	if c.apiService != nil {
		return c.apiService
	}
	return kubeconfigAudience{}
}

// kubeconfigAudience is whoever reads the kubeconfig of a standalone server, which is written anew with every
// change of the authority before that is signed with. Nothing is to be published beside.
type kubeconfigAudience struct{}

func (kubeconfigAudience) Look(context.Context) (identity.Published, error) {
	return identity.Published{Nobody: true}, nil
}
