// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// patience is how long something may take to come about.
const patience = 2 * time.Minute

func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: still not so: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func newNamespace(t testing.TB) string {
	t.Helper()
	ns, err := shared.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// classFor makes the class of a store, once, and returns its name.
func classFor(t testing.TB, store string) string {
	t.Helper()
	class := &v1alpha1.ProvisionerClass{
		ObjectMeta:           metav1.ObjectMeta{Name: "bench-" + store},
		Provisioner:          v1alpha1.ProvisionerRaw,
		Store:                store,
		RevisionHistoryLimit: ptr.To[int32](0),
		Limits: &v1alpha1.ContentLimits{
			CompressedBytes: ptr.To(resource.MustParse("2Gi")), Bytes: ptr.To(resource.MustParse("2Gi")),
		},
	}
	_, err := shared.Rukpak.RukpakV1alpha1().ProvisionerClasses().Create(t.Context(), class, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return class.Name
}

// makeBundle makes a bundle that waits for an upload, unless it is there.
func makeBundle(t testing.TB, namespace, name, class string) {
	t.Helper()
	_, err := shared.Rukpak.RukpakV1alpha1().Bundles(namespace).Create(t.Context(), &v1alpha1.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.BundleSpec{ProvisionerClassName: class, Source: v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}
