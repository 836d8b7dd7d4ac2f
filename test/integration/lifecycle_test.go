// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// dependent makes a ConfigMap that a bundle owns.
func dependent(t *testing.T, owner *v1alpha1.Bundle) string {
	t.Helper()
	return must(shared.Kube.CoreV1().ConfigMaps(owner.Namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "dependent-",
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Bundle", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: ptr.To(true),
			}},
		},
	}, metav1.CreateOptions{}))(t).Name
}

func TestDeletionCascades(t *testing.T) {
	for mode, survives := range map[string]bool{"foreground": false, "background": false, "orphan": true} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			b := create(t, namespace, uploadBundle("app", "raw"))
			name := dependent(t, b)
			mustKubectl(t, "", "delete", "bundle", "app", "-n", namespace, "--cascade="+mode, "--timeout=50s")
			if _, err := bundles(namespace).Get(t.Context(), "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the bundle is there: %v", err)
			}
			config := func() (*corev1.ConfigMap, error) {
				return shared.Kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
			}
			if survives {
				if c := must(config())(t); len(c.OwnerReferences) > 0 || c.DeletionTimestamp != nil {
					t.Errorf("the orphan is %+v", c.ObjectMeta)
				}
				return
			}
			eventually(t, "dependent is deleted", func() string {
				if _, err := config(); !apierrors.IsNotFound(err) {
					return "it is there"
				}
				return ""
			})
		})
	}
}

func TestBundleGoesWithItsOwner(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	owner := must(shared.Kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{}))(t)
	b := uploadBundle("app", "raw")
	b.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
	create(t, namespace, b)
	if err := shared.Kube.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "bundle is collected", func() string {
		if _, err := bundles(namespace).Get(t.Context(), "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return "it is there"
		}
		return ""
	})
}

func TestBundlesGoWithTheirNamespace(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	create(t, namespace, uploadBundle("app", "raw"))
	create(t, namespace, imageBundle("image", "raw"))
	if err := shared.Kube.CoreV1().Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "namespace is gone", func() string {
		ns, err := shared.Kube.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return ""
		case err != nil:
			return err.Error()
		}
		return encode(t, ns.Status)
	})
	if _, err := bundles(namespace).Get(t.Context(), "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the bundle is there: %v", err)
	}
	if _, err := bundles(namespace).Create(t.Context(), uploadBundle("late", "raw"), metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a bundle in a namespace that is gone is answered with %v", err)
	}
}

func TestQuotaOfBundles(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	const counted = corev1.ResourceName("count/bundles.rukpak.io")
	quotas := shared.Kube.CoreV1().ResourceQuotas(namespace)
	must(quotas.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "bundles"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{counted: resource.MustParse("1")}},
	}, metav1.CreateOptions{}))(t)
	eventually(t, "quota is counted", func() string {
		q := must(quotas.Get(t.Context(), "bundles", metav1.GetOptions{}))(t)
		if _, ok := q.Status.Used[counted]; !ok {
			return "status is " + encode(t, q.Status)
		}
		return ""
	})
	create(t, namespace, uploadBundle("one", "raw"))
	_, err := bundles(namespace).Create(t.Context(), uploadBundle("two", "raw"), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: bundles") {
		t.Errorf("a bundle beyond the quota is answered with %v", err)
	}
}
