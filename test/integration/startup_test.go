// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/test/integration/harness"
)

// TestServerHasThePermissionsThatItNeeds reads the log of the server that has those of artifacts/deploy.
func TestServerHasThePermissionsThatItNeeds(t *testing.T) {
	eventually(t, "permissions are checked", func() string {
		log := shared.server.Log()
		if strings.Contains(log, "lacks a permission") {
			t.Fatalf("log of the server: %s", log)
		}
		return missing(log, "The server has the permissions that it needs")
	})
	if log := shared.server.Log(); strings.Contains(log, "is forbidden: User") {
		t.Error("something was forbidden to the server; see its log")
	}
}

// TestSecondServerLeavesTheAPIServiceAlone runs a server beside the first, in a namespace of its own and with
// fewer permissions. It says what it lacks, and that the API is not its own.
func TestSecondServerLeavesTheAPIServiceAlone(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	must(shared.Kube.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: harness.ServiceName}}, metav1.CreateOptions{}))(t)
	copyPermissions(t, namespace, "resourcequotas")
	before := string(serverAuthority(t))
	s := must(shared.Server(t.Context(), t.TempDir(), harness.ServerOptions{Namespace: namespace, ServiceAccount: harness.ServiceName}))(t)
	if err := s.Begin(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	})
	for _, want := range []string{
		`list, watch resourcequotas in the whole cluster (quota)`,
		`it belongs to the service \"rukpak-apiserver\" in namespace \"rukpak-system\"`,
		"two servers cannot serve one API",
	} {
		eventually(t, "log of the second server", func() string {
			if !s.Running() {
				t.Fatalf("it ended: %s", s.Log())
			}
			if strings.Contains(s.Log(), want) {
				return ""
			}
			return "no " + want
		})
	}
	if strings.Contains(s.Log(), "pods in the whole cluster") {
		t.Error("a permission that is there is said to be missing")
	}
	if string(serverAuthority(t)) != before {
		t.Error("the second server has changed the caBundle of the APIService")
	}
}

// copyPermissions gives the server's service account of a namespace what artifacts/deploy gives the first
// one, without what it says of one resource.
func copyPermissions(t *testing.T, namespace, without string) {
	t.Helper()
	rbac := shared.Kube.RbacV1()
	subject := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: harness.ServiceName, Namespace: namespace}}
	own := must(rbac.ClusterRoles().Get(t.Context(), harness.ServiceName, metav1.GetOptions{}))(t)
	rules := slices.DeleteFunc(slices.Clone(own.Rules), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, without) })
	if len(rules) == len(own.Rules) {
		t.Fatalf("the ClusterRole says nothing of %s", without)
	}
	role := must(rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Rules: rules}, metav1.CreateOptions{}))(t)
	for _, name := range []string{role.Name, "system:auth-delegator"} {
		must(rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: namespace + "-"}, Subjects: subject,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		}, metav1.CreateOptions{}))(t)
	}
	local := must(rbac.Roles(harness.SystemNamespace).Get(t.Context(), harness.ServiceName, metav1.GetOptions{}))(t)
	must(rbac.Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: local.Name}, Rules: local.Rules}, metav1.CreateOptions{}))(t)
	for in, name := range map[string]string{namespace: local.Name, metav1.NamespaceSystem: "extension-apiserver-authentication-reader"} {
		must(rbac.RoleBindings(in).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: namespace + "-"}, Subjects: subject,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		}, metav1.CreateOptions{}))(t)
	}
}
