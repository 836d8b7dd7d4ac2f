// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

const serverUser = "system:serviceaccount:" + serverNamespace + ":" + serverName

// TestServersTokenIsGoodForItsPodsAlone tries what somebody would who has taken the server over. What the server
// makes itself passes the same policies in every other test.
func TestServersTokenIsGoodForItsPodsAlone(t *testing.T) {
	t.Parallel()
	s := begin(t)
	bystander := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bystander", Labels: map[string]string{"app.kubernetes.io/managed-by": "rukpak-apiserver"}},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(1)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "c", Image: nodeRegistry + "/no-such-image", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
		},
	}
	_, err := s.kube.CoreV1().Pods(s.ns).Create(s.ctx, bystander, metav1.CreateOptions{})
	s.must(err)
	mine := bystander.DeepCopy()
	mine.Name = "mine"
	impersonator := rest.CopyConfig(s.config)
	impersonator.Impersonate.UserName = serverUser
	server, err := kubernetes.NewForConfig(impersonator)
	s.must(err)
	for policy, try := range map[string]func() error{
		"rukpak-apiserver-creates-pods": func() error {
			_, err := server.CoreV1().Pods(s.ns).Create(s.ctx, mine, metav1.CreateOptions{})
			return err
		},
		"rukpak-apiserver-deletes-pods": func() error {
			return server.CoreV1().Pods(s.ns).Delete(s.ctx, bystander.Name, metav1.DeleteOptions{})
		},
		"rukpak-apiserver-creates-its-own": func() error {
			_, err := server.CoreV1().Secrets(serverNamespace).Create(s.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
			return err
		},
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), policy) {
			t.Errorf("the answer is %v, want a refusal by %s", err, policy)
		}
	}
}

// TestStagesAreMeasured unpacks an image by a real scheduler and a real node. The server may be killed by another test
// meanwhile, and counts from nothing then; bundles of others count too.
func TestStagesAreMeasured(t *testing.T) {
	t.Parallel()
	s := begin(t)
	client := s.scraper()
	digest, _ := s.push("v1", files{"file": "content"})
	s.bundle("app", s.class("c", v1alpha1.ProvisionerRaw, nil), digest)
	s.unpacked("app")
	s.eventually("each stage was measured", func() error {
		code, body, err := ask(s.ctx, client, http.MethodGet, s.service().url+"/metrics", nil)
		if err != nil || code != http.StatusOK {
			return fmt.Errorf("%d: %w: %.200s", code, err, body)
		}
		for _, stage := range []string{"scheduling", "pull", "walk", "upload", "commit"} {
			if !strings.Contains(string(body), `rukpak_unpack_stage_duration_seconds_count{stage="`+stage+`"}`) {
				return fmt.Errorf("%s was not", stage)
			}
		}
		return nil
	})
}

// scraper is a client that may read the server's metrics.
func (s *scope) scraper() *http.Client {
	s.Helper()
	s.account(s.ns, "scraper")
	roles, bindings := s.kube.RbacV1().ClusterRoles(), s.kube.RbacV1().ClusterRoleBindings()
	name := s.ns + "-scraper"
	_, err := roles.Create(s.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = bindings.Create(s.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.ns, Name: "scraper"}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		s, cancel := s.afterwards()
		defer cancel()
		s.must(errors.Join(bindings.Delete(s.ctx, name, metav1.DeleteOptions{}), roles.Delete(s.ctx, name, metav1.DeleteOptions{})))
	})
	return s.service().client(s.token(s.ns, "scraper", v1alpha1.TokenAudience, nil))
}
