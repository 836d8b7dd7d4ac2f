// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestProfilesNeedAGrant binds the role that is shipped. That nobody gets a profile without a credential is
// part of TestNothingIsAnsweredWithoutACredential.
func TestProfilesNeedAGrant(t *testing.T) {
	t.Parallel()
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(must(os.ReadFile(filepath.Join(shared.Root, "artifacts/monitoring/pprof-rbac.yaml")))(t), role); err != nil {
		t.Fatal(err)
	}
	role.Name, role.GenerateName = "", "profiler-"
	namespace := newNamespace(t)
	granted := newUserOf(t, namespace, role)
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/heap"} {
		direct(t).do(t, http.MethodGet, path, "", nil).expect(t, http.StatusUnauthorized)
		direct(t).do(t, http.MethodGet, path, newUser(t, namespace, rule("*", "*")).token, nil).expect(t, http.StatusForbidden)
		direct(t).do(t, http.MethodGet, path, newScraper(t, namespace).token, nil).expect(t, http.StatusForbidden)
		direct(t).do(t, http.MethodGet, path, granted.token, nil).expect(t, http.StatusOK)
	}
	direct(t).do(t, http.MethodGet, "/metrics", granted.token, nil).expect(t, http.StatusForbidden)
}

// newUserOf is a user who is bound to a role of the cluster.
func newUserOf(t *testing.T, namespace string, role *rbacv1.ClusterRole) user {
	t.Helper()
	u := newUser(t, namespace)
	made := must(shared.Kube.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}))(t)
	must(shared.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: made.Name + "-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: made.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: u.name}},
	}, metav1.CreateOptions{}))(t)
	return u
}
