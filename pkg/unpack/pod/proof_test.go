// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

func TestMade(t *testing.T) {
	p := testParams(v1alpha1.UnpackModeImageVolume, byDigestIn, "/")
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		key    string
		ours   bool
	}{
		"as made":           {ours: true},
		"other key":         {key: "fedcba9876543210fedcba9876543210"},
		"no annotation":     {change: func(p *corev1.Pod) { p.Annotations = nil }},
		"no owner":          {change: func(p *corev1.Pod) { p.OwnerReferences = nil }},
		"other bundle":      {change: func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" }},
		"other kind":        {change: func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Job" }},
		"later generation":  {change: replaceProof("3.2.", "4.2.")},
		"later attempt":     {change: replaceProof("3.2.", "3.3.")},
		"shifted digits":    {change: replaceProof("3.2.", "32..")},
		"other nonce":       {change: replaceProof("abcdefghijklmnop", "abcdefghijklmnoq")},
		"cut mac":           {change: func(p *corev1.Pod) { trimProof(p, 4) }},
		"empty mac":         {change: func(p *corev1.Pod) { trimProof(p, 43) }},
		"not base64":        {change: func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationAttempt] += "!" }},
		"generation no int": {change: replaceProof("3.2.", "x.2.")},
	} {
		t.Run(name, func(t *testing.T) {
			pod := Build(p)
			if test.change != nil {
				test.change(pod)
			}
			key := p.Key
			if test.key != "" {
				key = []byte(test.key)
			}
			got, err := Made(key, pod)
			if test.ours {
				if err != nil || got != AttemptOf(p.Bundle) {
					t.Fatalf("got %+v, %v", got, err)
				}
				return
			}
			if !errors.Is(err, ErrNotOurs) {
				t.Fatalf("got %+v, %v", got, err)
			}
		})
	}
}

func replaceProof(old, with string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations[v1alpha1.AnnotationAttempt] = strings.Replace(p.Annotations[v1alpha1.AnnotationAttempt], old, with, 1)
	}
}

func trimProof(p *corev1.Pod, n int) {
	proof := p.Annotations[v1alpha1.AnnotationAttempt]
	p.Annotations[v1alpha1.AnnotationAttempt] = proof[:len(proof)-n]
}

func TestName(t *testing.T) {
	nonce := NewNonce()
	for _, bundle := range []string{
		"app", "a", "app.v1.2", strings.Repeat("a", 253), strings.Repeat("a.", 126) + "a",
		strings.Repeat("a", 45) + "." + strings.Repeat("b", 100), "1.0", strings.Repeat("a", 44) + "-.-" + "b",
	} {
		name := Name(bundle, nonce)
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			t.Errorf("Name(%q) = %q: %v", bundle, name, problems)
		}
		if !strings.HasSuffix(name, nonce) {
			t.Errorf("Name(%q) = %q does not end with the nonce", bundle, name)
		}
	}
	long := strings.Repeat("a", 200)
	if a, b := Name(long+"1", NewNonce()), Name(long+"2", NewNonce()); a == b {
		t.Errorf("two bundles share the name %s", a)
	}
}

func TestNonces(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		n := NewNonce()
		if len(n) != 16 || seen[n] || len(validation.IsDNS1123Label(n)) > 0 {
			t.Fatalf("nonce %q", n)
		}
		seen[n] = true
	}
}
