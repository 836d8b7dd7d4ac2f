// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/source/registrytest"
)

// privateRegistry serves a registry that wants to know who asks, at the node's address, where
// TLS is spoken and its authority is not known yet.
func (s *scope) privateRegistry(options registrytest.Options) *registrytest.Registry {
	s.Helper()
	options.Address = net.JoinHostPort(s.nodeAddress(), "0")
	return registrytest.Serve(s.T, options)
}

// trust makes the node's container runtime trust the authority of a registry, as its administrator does.
func (s *scope) trust(host string, authority []byte) {
	s.Helper()
	folder := filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "containerd", "certs.d", host)
	s.must(os.MkdirAll(folder, 0o755))
	s.Cleanup(func() { s.must(os.RemoveAll(folder)) })
	file := filepath.Join(folder, "ca.crt")
	s.must(os.WriteFile(file, authority, 0o644))
	s.must(os.WriteFile(filepath.Join(folder, "hosts.toml"), fmt.Appendf(nil, "server = %q\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = %q\n",
		"https://"+host, "https://"+host, file), 0o644))
}

// pullSecret makes a pull secret, or replaces what is in it.
func (s *scope) pullSecret(name string, config []byte) {
	s.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: config},
	}
	_, err := s.kube.CoreV1().Secrets(s.ns).Create(s.ctx, secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = s.kube.CoreV1().Secrets(s.ns).Update(s.ctx, secret, metav1.UpdateOptions{})
	}
	s.must(err)
}

// withSecrets makes a bundle name pull secrets.
func withSecrets(names ...string) func(*v1alpha1.Bundle) {
	return func(b *v1alpha1.Bundle) {
		for _, name := range names {
			b.Spec.ImagePullSecrets = append(b.Spec.ImagePullSecrets, v1alpha1.LocalObjectReference{Name: name})
		}
	}
}

// TestPrivateRegistry has the kubelet pull from registries of both ways to say who one is, with
// credentials from everywhere they can come from.
func TestPrivateRegistry(t *testing.T) {
	t.Parallel()
	s := begin(t)
	account, err := s.kube.CoreV1().ServiceAccounts(s.ns).Create(s.ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "puller"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "tokens-right"}, {Name: "basic-right"}},
	}, metav1.CreateOptions{})
	s.must(err)
	as := func(b *v1alpha1.Bundle) { b.Spec.ServiceAccountName = account.Name }
	for way, options := range map[string]registrytest.Options{"basic": {}, "tokens": {Tokens: true}} {
		r := s.privateRegistry(options)
		s.trust(r.Host, r.Authority)
		r.Allow("puller", "right")
		tree := small(s.ns + way)
		digest := r.Push(t, "team/app:v1", s.image(tree.archive(), v1.Config{}))
		s.pullSecret(way+"-right", r.Config("puller", "right"))
		s.pullSecret(way+"-wrong", r.Config("puller", "wrong"))
		class := s.class(way, v1alpha1.ProvisionerRaw, patient)
		ofClass := s.class(way+"-class", v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
			c.Unpack = &v1alpha1.UnpackPolicy{PodTemplate: &v1alpha1.UnpackPodTemplate{ImagePullSecrets: []v1alpha1.LocalObjectReference{{Name: way + "-right"}}}}
			patient(c)
		})
		for _, c := range []struct {
			name, class string
			change      func(*v1alpha1.Bundle)
			reason      string
			words       []string
		}{
			{name: "of-bundle", class: class, change: withSecrets(way + "-right")},
			{name: "of-account", class: class, change: as},
			{name: "of-class", class: ofClass, change: func(*v1alpha1.Bundle) {}},
			{name: "wrong-then-account", class: class, change: func(b *v1alpha1.Bundle) { as(b); withSecrets(way + "-wrong")(b) }},
			{name: "wrong", class: class, change: withSecrets(way + "-wrong"), reason: v1alpha1.ReasonImagePullUnauthorized},
			{name: "none", class: class, change: func(*v1alpha1.Bundle) {}, reason: v1alpha1.ReasonImagePullUnauthorized},
			{name: "missing", class: class, change: withSecrets(way + "-later"), reason: v1alpha1.ReasonPullSecretMissing, words: []string{way + "-later"}},
		} {
			name := way + "-" + c.name
			s.bundle(name, c.class, digest, c.change)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := s.in(t)
				if c.reason != "" {
					s.says(name, metav1.ConditionUnknown, c.reason, append(c.words, r.Host)...)
					// The right credentials heal it.
					switch c.name {
					case "wrong", "none":
						s.update(name, func(b *v1alpha1.Bundle) { b.Spec.ImagePullSecrets = nil; withSecrets(way + "-right")(b) })
					case "missing":
						s.pullSecret(way+"-later", r.Config("puller", "right"))
					}
				}
				s.holds(s.unpacked(name), tree)
			})
		}
		t.Run(way+"-expired", func(t *testing.T) {
			t.Parallel()
			s.in(t).expires(r, way, class)
		})
	}
}

// patient lets attempts go on at short intervals for as long as a test takes to come and look.
func patient(c *v1alpha1.ProvisionerClass) {
	if c.Unpack == nil {
		c.Unpack = &v1alpha1.UnpackPolicy{}
	}
	c.Unpack.BackoffLimit = ptr.To[int32](100)
}

// expires lets credentials end after a bundle was unpacked with them: what there is goes on being
// served, and nothing else is had until they are renewed.
func (s *scope) expires(r *registrytest.Registry, way, class string) {
	s.Helper()
	name := way + "-expired"
	r.Allow("passing", "today")
	s.pullSecret(name, r.Config("passing", "today"))
	before, after := small(s.ns+name+"1"), small(s.ns+name+"2")
	first := r.Push(s.T, "passing/app:v1", s.image(before.archive(), v1.Config{}))
	second := r.Push(s.T, "passing/app:v2", s.image(after.archive(), v1.Config{}))
	s.bundle(name, class, first, withSecrets(name))
	old := s.unpacked(name)
	r.Forbid("passing")
	s.update(name, func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = second })
	s.says(name, metav1.ConditionUnknown, v1alpha1.ReasonImagePullUnauthorized, r.Host)
	s.holds(old, before)
	r.Allow("passing", "tomorrow")
	s.pullSecret(name, r.Config("passing", "tomorrow"))
	s.holds(s.unpacked(name), after)
}

// TestRegistryIsNotTrusted heals as soon as the node trusts the registry's authority.
func TestRegistryIsNotTrusted(t *testing.T) {
	t.Parallel()
	s := begin(t)
	r := s.privateRegistry(registrytest.Options{Tokens: true})
	r.Allow("puller", "right")
	tree := small(s.ns)
	digest := r.Push(t, "app:v1", s.image(tree.archive(), v1.Config{}))
	s.pullSecret("right", r.Config("puller", "right"))
	s.bundle("app", s.class("patient", v1alpha1.ProvisionerRaw, patient), digest, withSecrets("right"))
	s.says("app", metav1.ConditionUnknown, v1alpha1.ReasonRegistryNotTrusted, r.Host, "certificate signed by unknown authority")
	s.trust(r.Host, r.Authority)
	s.holds(s.unpacked("app"), tree)
}

// TestPrivateRegistryByTheServer has the server itself pull, with credentials and an authority of its own.
func TestPrivateRegistryByTheServer(t *testing.T) {
	t.Parallel()
	s := begin(t)
	r := s.privateRegistry(registrytest.Options{Tokens: true, TokenUses: 2})
	r.Allow("server", "right")
	tree := small(s.ns)
	digest := r.Push(t, "team/app:v1", s.image(tree.archive(), v1.Config{}))
	folder := t.TempDir()
	config, authority := filepath.Join(folder, "config.json"), filepath.Join(folder, "ca.crt")
	s.must(os.WriteFile(config, r.Config("server", "wrong"), 0o600))
	s.must(os.WriteFile(authority, r.Authority, 0o600))
	alone := s.standalone("--direct-registry-config="+config, "--direct-ca-file="+authority)
	alone.bundle("app", "raw", digest)
	alone.says("app", metav1.ConditionUnknown, v1alpha1.ReasonImagePullUnauthorized, r.Host, "credentials")
	s.must(os.WriteFile(config, r.Config("server", "right"), 0o600))
	alone.update("app", func(b *v1alpha1.Bundle) { b.Annotations = map[string]string{v1alpha1.AnnotationRetry: "now"} })
	alone.holds(alone.unpacked("app"), tree)
}

// TestImageOfAnotherTenant has one tenant's pods leave an image on the node, and another, who has no
// credentials for it, ask for it under every pull policy.
func TestImageOfAnotherTenant(t *testing.T) {
	t.Parallel()
	s := begin(t)
	r := s.privateRegistry(registrytest.Options{Tokens: true})
	s.trust(r.Host, r.Authority)
	r.Allow("owner-of-image", "right")
	tree := small(s.ns)
	digest := r.Push(t, "tenant/app:v1", s.image(tree.archive(), v1.Config{}))
	tagged := r.Host + "/tenant/app:v1"
	class := s.class("lax", v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{AllowedPullPolicies: []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}}
		patient(c)
	})
	s.pullSecret("right", r.Config("owner-of-image", "right"))
	for by, reference := range map[string]string{"digest": digest, "tag": tagged} {
		s.bundle("owner-"+by, class, reference, withSecrets("right"))
		s.holds(s.unpacked("owner-"+by), tree)
	}
	other := *s
	other.ns = s.ns + "-other"
	other.makeNamespace(other.ns)
	other.pullSecret("right", r.Config("owner-of-image", "right"))
	for by, reference := range map[string]string{"digest": digest, "tag": tagged} {
		for _, policy := range []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever} {
			name := "other-" + by + "-" + map[corev1.PullPolicy]string{corev1.PullAlways: "always", corev1.PullIfNotPresent: "present", corev1.PullNever: "never"}[policy]
			with := func(b *v1alpha1.Bundle) { b.Spec.Source.Image.PullPolicy = policy }
			other.bundle(name, class, reference, with)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := other.in(t)
				reason := v1alpha1.ReasonImagePullUnauthorized
				if policy == corev1.PullNever {
					reason = v1alpha1.ReasonImageNotFound // whether it is there is not told
				}
				b := s.says(name, metav1.ConditionUnknown, reason)
				if b.Status.Content != nil {
					t.Error("there is content")
				}
				// It is there for whoever has the credentials.
				s.update(name, withSecrets("right"))
				s.holds(s.unpacked(name), tree)
			})
		}
	}
}
