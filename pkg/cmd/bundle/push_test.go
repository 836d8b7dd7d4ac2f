// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

// A folder is sent unless the bundle has what it holds, and can serve it: what was lost is put back.
func TestPushSendsWhatIsNotServed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	summary, err := tarball.Pack(t.Context(), io.Discard, dir, "", tarball.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	const available, unpacked = v1alpha1.ConditionContentAvailable, v1alpha1.ConditionUnpacked
	for _, test := range []struct {
		name       string
		conditions map[string]metav1.ConditionStatus
		generation int64
		sent       bool
	}{
		{"served", map[string]metav1.ConditionStatus{available: metav1.ConditionTrue, unpacked: metav1.ConditionTrue}, 1, false},
		{"lost", map[string]metav1.ConditionStatus{available: metav1.ConditionFalse, unpacked: metav1.ConditionTrue}, 1, true},
		{"not taken for unpacked", map[string]metav1.ConditionStatus{available: metav1.ConditionTrue, unpacked: metav1.ConditionUnknown}, 1, true},
		{"nothing is said of it", nil, 1, true},
		{"of an earlier spec", map[string]metav1.ConditionStatus{available: metav1.ConditionTrue, unpacked: metav1.ConditionTrue}, 2, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &v1alpha1.Bundle{
				TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Bundle"},
				ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team", Generation: test.generation},
				Spec:       v1alpha1.BundleSpec{Source: v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}},
				Status:     v1alpha1.BundleStatus{Content: &v1alpha1.ContentStatus{Generation: 1, UncompressedDigest: summary.UncompressedDigest}},
			}
			for kind, status := range test.conditions {
				b.Status.Conditions = append(b.Status.Conditions, metav1.Condition{Type: kind, Status: status})
			}
			sent := false
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/bundles/app") {
					sent = true
					http.Error(w, "no more than that is asked here", http.StatusForbidden)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				if err := json.NewEncoder(w).Encode(b); err != nil {
					t.Error(err)
				}
			}))
			t.Cleanup(server.Close)
			_, stderr, code := run(t, "push", "app", dir, "-s", server.URL, "-n", "team")
			if sent != test.sent || strings.Contains(stderr, "has this content already") == test.sent || (code == ExitOK) == test.sent {
				t.Errorf("sent is %v, and it ends with %d: %s", sent, code, stderr)
			}
		})
	}
}
