// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Without a cluster nobody collects what a bundle owns, so no deletion waits for that, whichever kind is asked for.
func TestStandaloneDeletesAtOnce(t *testing.T) {
	t.Parallel()
	_, client := standalone(t)
	bundles := client.RukpakV1alpha1().Bundles("default")
	for _, how := range []metav1.DeletionPropagation{metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan, metav1.DeletePropagationBackground} {
		b, err := bundles.Create(t.Context(), uploadBundle("deleted", "raw"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := bundles.Delete(t.Context(), b.Name, metav1.DeleteOptions{PropagationPolicy: ptr.To(how)}); err != nil {
			t.Fatal(err)
		}
		if left, err := bundles.Get(t.Context(), b.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Fatalf("after a deletion %s it is there, with finalizers %v, err %v", how, left.Finalizers, err)
		}
	}
}
