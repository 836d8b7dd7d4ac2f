// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// scale sets how many replicas of the server there are.
func (s *scope) scale(replicas int32) error {
	_, err := s.kube.AppsV1().StatefulSets(serverNamespace).UpdateScale(s.ctx, serverName, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: serverNamespace, Name: serverName},
		Spec:       autoscalingv1.ScaleSpec{Replicas: replicas},
	}, metav1.UpdateOptions{})
	return err
}

// TestServerAway takes the server away: the rest of the cluster goes on, and what has to wait for
// the server goes on as soon as it is back.
func TestServerAway(t *testing.T) {
	s := begin(t)
	tree := small(s.ns)
	digest, _ := s.push("v1", tree)
	s.bundle("app", "plain", digest)
	before := s.unpacked("app")
	unrelated := s.ns + "-unrelated"
	s.makeNamespace(unrelated)

	s.Cleanup(func() {
		s, cancel := s.afterwards()
		defer cancel()
		s.must(s.scale(1))
		s.answers() // others want it
	})
	s.must(s.scale(0))
	s.eventually("the server is away", func() error {
		return gone(s.kube.CoreV1().Pods(serverNamespace).Get(s.ctx, serverPod, metav1.GetOptions{}))
	})
	s.kubectl("", "get", "pods")
	s.kubectl("", "create", "configmap", "meanwhile")
	s.eventually("reading bundles says that the server is away", func() error {
		_, err := s.api().Get(s.ctx, "app", metav1.GetOptions{})
		if !apierrors.IsServiceUnavailable(err) {
			return fmt.Errorf("the answer is %v", err)
		}
		return nil
	})
	s.eventually("discovery of the group is stale", func() error {
		_, _, err := s.kube.Discovery().ServerGroupsAndResources()
		failed := (*discovery.ErrGroupDiscoveryFailed)(nil)
		if !errors.As(err, &failed) {
			return fmt.Errorf("discovery ends with %v", err)
		}
		if failed.Groups[v1alpha1.SchemeGroupVersion] == nil {
			return fmt.Errorf("discovery fails for others: %v", failed.Groups)
		}
		return nil
	})
	s.must(s.kube.CoreV1().Namespaces().Delete(s.ctx, unrelated, metav1.DeleteOptions{}))
	s.eventually("the deletion of a namespace waits for the server, and says so", func() error {
		ns, err := s.kube.CoreV1().Namespaces().Get(s.ctx, unrelated, metav1.GetOptions{})
		if err != nil {
			return final("namespace %s: %w", unrelated, err)
		}
		for _, c := range ns.Status.Conditions {
			if c.Type == corev1.NamespaceDeletionDiscoveryFailure && c.Status == corev1.ConditionTrue && strings.Contains(c.Message, v1alpha1.GroupName) {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", ns.Status.Conditions)
	})

	s.must(s.scale(1))
	s.eventually("the namespace goes as soon as the server is back", func() error {
		return gone(s.kube.CoreV1().Namespaces().Get(s.ctx, unrelated, metav1.GetOptions{}))
	})
	after := s.unpacked("app")
	if after.Status.Content.Digest != before.Status.Content.Digest || after.Status.Unpack.Attempt != before.Status.Unpack.Attempt {
		t.Errorf("the bundle was unpacked anew: %+v", after.Status)
	}
	s.holds(after, tree)
}
