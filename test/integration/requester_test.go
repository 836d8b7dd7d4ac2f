// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// asUser sends an object as a user, through kube-apiserver.
func (u user) asUser(t *testing.T, method, path string, v any, mediaType string) reply {
	t.Helper()
	return aggregated(t).do(t, method, path, u.token, strings.NewReader(encode(t, v)), "Content-Type", mediaType)
}

func bundlePath(namespace string, name ...string) string {
	return strings.Join(append([]string{"/apis/rukpak.io/v1alpha1/namespaces/" + namespace + "/bundles"}, name...), "/")
}

func typedBundle(b *v1alpha1.Bundle) *v1alpha1.Bundle {
	b.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Bundle"}
	return b
}

func TestABundleGivesNobodyAnIdentityOrASecret(t *testing.T) {
	namespace := newNamespace(t)
	writer := rule("bundles", "create", "update", "patch", "get")
	account := func(b *v1alpha1.Bundle) { b.Spec.ServiceAccountName = "deployer" }
	secrets := func(b *v1alpha1.Bundle) {
		b.Spec.ImagePullSecrets = []v1alpha1.LocalObjectReference{{Name: "mine"}, {Name: "theirs"}}
	}
	for _, test := range []struct {
		name   string
		rules  []rbacv1.PolicyRule
		change func(*v1alpha1.Bundle)
		says   string // empty means that it is accepted
	}{
		{"nothing", nil, nil, `spec.serviceAccountName`},
		{"use of the account", []rbacv1.PolicyRule{coreRule("serviceaccounts", "use", "default")}, nil, ""},
		{"use of another account", []rbacv1.PolicyRule{coreRule("serviceaccounts", "use", "default")}, account, `"deployer"`},
		{"use of the named account", []rbacv1.PolicyRule{coreRule("serviceaccounts", "use", "deployer")}, account, ""},
		{"impersonation is something else", []rbacv1.PolicyRule{coreRule("serviceaccounts", "impersonate", "default")}, nil, `spec.serviceAccountName`},
		{"one of two secrets", []rbacv1.PolicyRule{coreRule("serviceaccounts", "use"), coreRule("secrets", "get", "mine")}, secrets, `spec.imagePullSecrets[1]`},
		{"both secrets", []rbacv1.PolicyRule{coreRule("serviceaccounts", "use"), coreRule("secrets", "get", "mine", "theirs")}, secrets, ""},
		{"list of secrets", []rbacv1.PolicyRule{coreRule("serviceaccounts", "use"), coreRule("secrets", "list")}, secrets, `spec.imagePullSecrets[0]`},
		{"pods cover the account", []rbacv1.PolicyRule{coreRule("pods", "create")}, account, ""},
		{"pods cover the secrets", []rbacv1.PolicyRule{coreRule("pods", "create")}, secrets, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			u := newUser(t, namespace, append([]rbacv1.PolicyRule{writer}, test.rules...)...)
			b := typedBundle(imageBundle("", "raw"))
			b.GenerateName = "app-"
			b.Spec.Suspend = true
			if test.change != nil {
				test.change(b)
			}
			r := u.asUser(t, http.MethodPost, bundlePath(namespace), b, "application/json")
			if test.says == "" {
				r.expect(t, http.StatusCreated)
				return
			}
			r.expect(t, http.StatusForbidden)
			if got := r.status(t).Message; !strings.Contains(got, test.says) || !strings.Contains(got, u.name) {
				t.Errorf("message is %q, want it to name %s and the user", got, test.says)
			}
		})
	}
}

func TestAChangeIsAskedAboutAgain(t *testing.T) {
	namespace := newNamespace(t)
	b := imageBundle("app", "raw")
	b.Spec.Suspend = true
	b.Spec.ServiceAccountName = "deployer"
	create(t, namespace, b)
	u := newUser(t, namespace, rule("bundles", "create", "update", "patch", "get"), coreRule("serviceaccounts", "use", "default"))
	patch := func(body string) reply {
		t.Helper()
		return aggregated(t).do(t, http.MethodPatch, bundlePath(namespace, "app"), u.token, strings.NewReader(body), "Content-Type", mergePatch)
	}
	// What is not run otherwise is nobody's business.
	patch(`{"metadata":{"labels":{"a":"b"}}}`).expect(t, http.StatusOK)
	patch(`{"spec":{"suspend":true}}`).expect(t, http.StatusOK)
	// The image of another account's pull secrets would come to whoever chooses the image.
	patch(`{"spec":{"source":{"image":{"path":"/etc"}}}}`).expect(t, http.StatusForbidden, "spec.serviceAccountName")
	patch(`{"spec":{"imagePullSecrets":[{"name":"theirs"}]}}`).expect(t, http.StatusForbidden)
	patch(`{"spec":{"serviceAccountName":"default","imagePullSecrets":[{"name":"theirs"}]}}`).expect(t, http.StatusForbidden, "spec.imagePullSecrets[0]")
	patch(`{"spec":{"serviceAccountName":"default","source":{"image":{"path":"/etc"}}}}`).expect(t, http.StatusOK)
	patch(`{"spec":{"serviceAccountName":"deployer"}}`).expect(t, http.StatusForbidden, "spec.serviceAccountName")
}

func TestPullPolicyIsForTheClassToAllow(t *testing.T) {
	namespace := newNamespace(t)
	lax := newClass(t, v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{AllowedPullPolicies: []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent}}
	})
	for _, test := range []struct {
		class   string
		policy  corev1.PullPolicy
		allowed bool
	}{
		{"raw", corev1.PullAlways, true},
		{"raw", corev1.PullIfNotPresent, false},
		{"raw", corev1.PullNever, false},
		{"no-such-class", corev1.PullIfNotPresent, false},
		{lax, corev1.PullIfNotPresent, true},
		{lax, corev1.PullNever, false},
	} {
		t.Run(test.class+"/"+string(test.policy), func(t *testing.T) {
			// The server may not have heard of the class yet.
			eventually(t, "verdict", func() string {
				b := imageBundle("", test.class)
				b.GenerateName, b.Spec.Suspend, b.Spec.Source.Image.PullPolicy = "app-", true, test.policy
				_, err := bundles(namespace).Create(t.Context(), b, metav1.CreateOptions{})
				switch {
				case test.allowed:
					return problem(err)
				case err == nil:
					t.Fatal("it was accepted")
				}
				return missing(err.Error(), "spec.source.image.pullPolicy")
			})
		})
	}
}
