// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// As many proofs as a pod may have stay, and what somebody else has put there does not.
func TestTrim(t *testing.T) {
	longest := Attempt{BundleUID: "u", Generation: 1<<63 - 1, Number: 1<<31 - 1, Nonce: NewNonce()}.Proof(make([]byte, 32))
	full := strings.TrimSuffix(strings.Repeat(longest+",", MaxMembers), ",")
	for name, test := range map[string]struct{ text, want string }{
		"one":      {longest, longest},
		"the most": {full, full},
		"too long": {strings.Repeat("a.b.c.d,", 5000), ""},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Annotations:   map[string]string{v1alpha1.AnnotationAttempt: test.text, "other": strings.Repeat("x", 1000)},
			ManagedFields: []metav1.ManagedFieldsEntry{{}},
		}}
		Trim(p)
		if got := p.Annotations[v1alpha1.AnnotationAttempt]; got != test.want || p.Annotations["other"] != "" || p.ManagedFields != nil {
			t.Errorf("%s: %d bytes of %d are left: %v", name, len(got), len(test.text), p.ManagedFields)
		}
	}
}

func TestTooManyProofs(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Bundle", Name: "b", UID: "u"}}}}
	key := make([]byte, 32)
	proof := Attempt{BundleUID: "u", Generation: 1, Number: 1, Nonce: "n"}.Proof(key)
	for others, ours := range map[int]bool{MaxMembers - 1: true, MaxMembers: false} {
		p.Annotations = map[string]string{v1alpha1.AnnotationAttempt: strings.Repeat("1.1.n.x,", others) + proof}
		if _, err := MadeFor(key, p); (err == nil) != ours {
			t.Errorf("behind %d others: %v", others, err)
		}
	}
}
