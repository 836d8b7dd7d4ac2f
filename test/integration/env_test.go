// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/test/integration/harness"
)

// patience bounds the wait for something that happens by itself.
const patience = harness.Patience

// eventually waits until check returns an empty string, which else says what is not yet as it should be.
func eventually(t *testing.T, what string, check func() string) {
	t.Helper()
	harness.Eventually(t, what, check)
}

// problem makes the answer of a check out of an error.
func problem(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// newNamespace makes a namespace in which pods can be made.
func newNamespace(t *testing.T) string {
	t.Helper()
	ns := must(shared.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "it-"},
	}, metav1.CreateOptions{}))(t)
	eventually(t, "default service account", func() string {
		_, err := shared.Kube.CoreV1().ServiceAccounts(ns.Name).Get(t.Context(), "default", metav1.GetOptions{})
		return problem(err)
	})
	return ns.Name
}

func bundles(namespace string) typed.BundleInterface {
	return shared.Rukpak.RukpakV1alpha1().Bundles(namespace)
}

// newClass makes a class of its own for a test.
func newClass(t *testing.T, provisioner string, change func(*v1alpha1.ProvisionerClass)) string {
	t.Helper()
	class := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "class-"}, Provisioner: provisioner}
	if change != nil {
		change(class)
	}
	return must(shared.Rukpak.RukpakV1alpha1().ProvisionerClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t).Name
}

// uploadBundle is a bundle that waits for an upload.
func uploadBundle(name, class string) *v1alpha1.Bundle {
	return &v1alpha1.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.BundleSpec{ProvisionerClassName: class, Source: v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}},
	}
}

// imageReference names an image that no node is there to pull.
const imageReference = "registry.invalid/app@sha256:" + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// imageBundle is a bundle that an unpack pod is made for.
func imageBundle(name, class string) *v1alpha1.Bundle {
	return &v1alpha1.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.BundleSpec{ProvisionerClassName: class, Source: v1alpha1.BundleSource{
			Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ImageSource{Reference: imageReference, Path: "/manifests"},
		}},
	}
}

func create(t *testing.T, namespace string, b *v1alpha1.Bundle) *v1alpha1.Bundle {
	t.Helper()
	return must(bundles(namespace).Create(t.Context(), b, metav1.CreateOptions{}))(t)
}

func get(t *testing.T, namespace, name string) *v1alpha1.Bundle {
	t.Helper()
	return must(bundles(namespace).Get(t.Context(), name, metav1.GetOptions{}))(t)
}

// user is a service account, since those log in at both ports in the same way.
type user struct {
	name, token string
}

func newUser(t *testing.T, namespace string, rules ...rbacv1.PolicyRule) user {
	t.Helper()
	account := must(shared.Kube.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "user-"},
	}, metav1.CreateOptions{}))(t)
	u := user{
		name:  "system:serviceaccount:" + namespace + ":" + account.Name,
		token: newToken(t, namespace, account.Name, authenticationv1.TokenRequestSpec{}),
	}
	if len(rules) > 0 {
		u.allow(t, namespace, rules...)
	}
	return u
}

func newToken(t *testing.T, namespace, account string, spec authenticationv1.TokenRequestSpec) string {
	t.Helper()
	return must(shared.Kube.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account,
		&authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{}))(t).Status.Token
}

// allow grants rules in a namespace, and returns once kube-apiserver knows. Grants come before the first
// request that needs them: our server remembers a refusal for some seconds.
func (u user) allow(t *testing.T, namespace string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := must(shared.Kube.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "role-"}, Rules: rules,
	}, metav1.CreateOptions{}))(t)
	must(shared.Kube.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "binding-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: u.name}},
	}, metav1.CreateOptions{}))(t)
	rule := rules[len(rules)-1]
	resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: u.name, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource, Subresource: subresource,
		},
	}}
	if len(rule.ResourceNames) > 0 {
		review.Spec.ResourceAttributes.Name = rule.ResourceNames[0]
	}
	eventually(t, "grant to "+u.name, func() string {
		answer, err := shared.Kube.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			return "not allowed: " + answer.Status.Reason
		}
		return problem(err)
	})
}

// rule is a rule about our resources.
func rule(resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{v1alpha1.GroupName}, Resources: []string{resource}, Verbs: verbs}
}

// coreRule is a rule about one object, or all, of Kubernetes' own.
func coreRule(resource, verb string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{verb}, ResourceNames: names}
}

// kubectl runs kubectl as an administrator and returns what it prints.
func kubectl(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := shared.Kubectl(ctx, shared.Dir, shared.Kubeconfig, args...)
	return output(cmd, stdin)
}

func output(cmd *exec.Cmd, stdin string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// mustKubectl runs kubectl, which has to succeed.
func mustKubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	stdout, stderr, err := kubectl(t, stdin, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}
