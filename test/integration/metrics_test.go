// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newScraper is a user who may read the metrics of our server.
func newScraper(t *testing.T, namespace string) user {
	t.Helper()
	u := newUser(t, namespace)
	role := must(shared.Kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "scraper-"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{}))(t)
	must(shared.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "scraper-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: u.name}},
	}, metav1.CreateOptions{}))(t)
	return u
}

// metric sums the series of a metric of our server, all but those that have a label.
func metric(t *testing.T, w way, scraper user, name, without string) float64 {
	t.Helper()
	sum := 0.0
	body := w.do(t, http.MethodGet, "/metrics", scraper.token, nil).expect(t, http.StatusOK).body
	for line := range strings.Lines(string(body)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' || without != "" && strings.Contains(rest, without) {
			continue
		}
		sum += must(strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64))(t)
	}
	return sum
}
