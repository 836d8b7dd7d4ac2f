// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"rukpak.io/apiserver/pkg/apis/rukpak"
)

func TestUsage(t *testing.T) {
	u := newUsage()
	b := func(namespace, class string, current int64, history ...int64) rukpak.Bundle {
		b := rukpak.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: rukpak.BundleSpec{ProvisionerClassName: class}}
		if current > 0 {
			b.Status.Content = &rukpak.ContentStatus{Size: current}
		}
		for _, size := range history {
			b.Status.History = append(b.Status.History, rukpak.ContentStatus{Size: size})
		}
		return b
	}
	u.observe([]rukpak.Bundle{b("gone", "plain", 1)})
	u.observe([]rukpak.Bundle{b("a", "plain", 10, 1, 2), b("a", "plain", 20), b("a", "raw", 5), b("b", "plain", 7), b("empty", "plain", 0)})
	want := `
# HELP rukpak_content_namespace_bundles [ALPHA] Bundles that have content.
# TYPE rukpak_content_namespace_bundles gauge
rukpak_content_namespace_bundles{class="plain",namespace="a"} 2
rukpak_content_namespace_bundles{class="plain",namespace="b"} 1
rukpak_content_namespace_bundles{class="raw",namespace="a"} 1
# HELP rukpak_content_namespace_bytes [ALPHA] Content that bundles have, current and in history. The same bytes of two bundles count twice.
# TYPE rukpak_content_namespace_bytes gauge
rukpak_content_namespace_bytes{class="plain",namespace="a"} 33
rukpak_content_namespace_bytes{class="plain",namespace="b"} 7
rukpak_content_namespace_bytes{class="raw",namespace="a"} 5
`
	if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "rukpak_content_namespace_bundles", "rukpak_content_namespace_bytes"); err != nil {
		t.Error(err)
	}
}
