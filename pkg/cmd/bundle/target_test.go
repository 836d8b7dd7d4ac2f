// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"io"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned/fake"
)

func TestTargets(t *testing.T) {
	digest := func(begin string) string { return "sha256:" + begin + strings.Repeat("0", 64-len(begin)) }
	b := &v1alpha1.Bundle{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "ns"}, Status: v1alpha1.BundleStatus{
		Content: &v1alpha1.ContentStatus{Digest: digest("aaaa1")},
		History: []v1alpha1.ContentStatus{{Digest: digest("bbbb1")}, {Digest: digest("bbbb2")}},
	}}
	bundles := fake.NewClientset(b).RukpakV1alpha1().Bundles("ns")
	for _, test := range []struct{ arg, name, digest, problem string }{
		{"app", "app", "", ""},
		{"bundle.rukpak.io/app", "app", "", ""},
		{"bundle/app@-1", "app", digest("bbbb1"), ""},
		{"app@0", "app", digest("aaaa1"), ""},
		{"app@-2", "app", digest("bbbb2"), ""},
		{"app@-3", "app", "", "has only 3 contents"},
		{"app@aaaa", "app", digest("aaaa1"), ""},
		{"app@sha256:bbbb2", "app", digest("bbbb2"), ""},
		{"app@bbbb", "app", "", "more than one"},
		{"app@cccc", "app", "", "no content whose digest begins with cccc"},
		{"app@" + digest("dddd"), "app", digest("dddd"), ""},
		{"app@one", "app", "", "is no revision"},
		{"app@1", "app", "", "is no revision"},
		{"app@", "", "", "names no revision"},
		{"@-1", "", "", "is no name"},
		{"a/b", "", "", "is no name"},
	} {
		t.Run(test.arg, func(t *testing.T) {
			got, err := parseTarget(test.arg)
			found := ""
			if err == nil {
				found, err = newSession(streamsTo(io.Discard)).digest(t.Context(), got, bundles)
			}
			if test.problem != "" {
				if err == nil || !strings.Contains(err.Error(), test.problem) {
					t.Errorf("%q, %v", found, err)
				}
				return
			}
			if err != nil || got.name != test.name || found != test.digest {
				t.Errorf("%s, %s, %v", got.name, found, err)
			}
		})
	}
}
