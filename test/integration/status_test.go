// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// Media types of patches.
const (
	mergePatch = "application/merge-patch+json"
	jsonPatch  = "application/json-patch+json"
	applyPatch = "application/apply-patch+yaml"
)

func encode(t *testing.T, v any) string {
	t.Helper()
	return string(must(json.Marshal(v))(t))
}

// forged is the status that an attacker would like a bundle to have.
func forged(victim *v1alpha1.Bundle) v1alpha1.BundleStatus {
	stolen := *victim.Status.Content
	stolen.Generation = 1
	return v1alpha1.BundleStatus{
		Phase: v1alpha1.BundleFailing, Content: &stolen, History: []v1alpha1.ContentStatus{stolen},
		ResolvedSource: &v1alpha1.ResolvedSource{Type: v1alpha1.SourceTypeUpload, Upload: &v1alpha1.ResolvedUpload{Username: "forged"}},
		Unpack:         &v1alpha1.UnpackStatus{Generation: 1, Attempt: 1, Nonce: "forged", PodName: "forged", PodUID: "forged"},
	}
}

func TestNobodyPointsABundleAtContentOfAnother(t *testing.T) {
	secret := store(t, "raw", noise("secret", 11, 1000))
	victim := get(t, secret.namespace, secret.name)
	own := store(t, "raw", noise("own", 12, 1000))
	attacker := newUser(t, own.namespace, rule("*", "*"))
	create(t, own.namespace, uploadBundle("empty", "raw"))

	for _, name := range []string{own.name, "empty"} {
		before := get(t, own.namespace, name)
		base := strings.TrimSuffix(contentPath(own.namespace, name), "/content")
		whole := before.DeepCopy()
		whole.ResourceVersion, whole.Status = "", forged(victim)
		// Which are not secret, and which a status may say.
		whole.Status.Conditions = before.Status.Conditions
		partly := map[string]any{"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "Bundle", "status": whole.Status}
		operations := []map[string]any{
			{"op": "add", "path": "/status/content", "value": whole.Status.Content},
			{"op": "add", "path": "/status/history", "value": whole.Status.History},
			{"op": "add", "path": "/status/unpack", "value": whole.Status.Unpack},
		}
		for _, test := range []struct{ name, method, path, mediaType, body string }{
			{"update of the status", http.MethodPut, base + "/status", "application/json", encode(t, whole)},
			{"update of the bundle", http.MethodPut, base, "application/json", encode(t, whole)},
			{"merge patch of the status", http.MethodPatch, base + "/status", mergePatch, encode(t, partly)},
			{"merge patch of the bundle", http.MethodPatch, base, mergePatch, encode(t, partly)},
			{"JSON patch of the status", http.MethodPatch, base + "/status", jsonPatch, encode(t, operations)},
			{"JSON patch of the bundle", http.MethodPatch, base, jsonPatch, encode(t, operations)},
			{"apply of the status", http.MethodPatch, base + "/status?fieldManager=attacker&force=true", applyPatch, encode(t, partly)},
			{"apply of the bundle", http.MethodPatch, base + "?fieldManager=attacker&force=true", applyPatch, encode(t, partly)},
		} {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				for _, w := range bothWays(t) {
					r := w.do(t, test.method, test.path, attacker.token, strings.NewReader(test.body), "Content-Type", test.mediaType)
					// It may be refused, or be taken without what it may not say.
					if r.code >= 500 || r.code == http.StatusForbidden {
						t.Fatalf("%s: answer is %d: %s", w.name, r.code, short(r.body))
					}
					now := get(t, own.namespace, name)
					a, b := now.Status, before.Status
					if !equality.Semantic.DeepEqual(a.Content, b.Content) || !equality.Semantic.DeepEqual(a.History, b.History) ||
						!equality.Semantic.DeepEqual(a.ResolvedSource, b.ResolvedSource) || !equality.Semantic.DeepEqual(a.Unpack, b.Unpack) {
						t.Errorf("%s: status is %s", w.name, encode(t, a))
					}
					if want := (map[string]v1alpha1.BundlePhase{own.name: v1alpha1.BundleUnpacked, "empty": v1alpha1.BundlePending})[name]; a.Phase != want {
						t.Errorf("%s: phase is %s, want %s", w.name, a.Phase, want)
					}
					w.do(t, http.MethodGet, contentPath(own.namespace, name)+"?digest="+victim.Status.Content.Digest, attacker.token, nil).expect(t, http.StatusNotFound)
				}
			})
		}
	}
	own.unchanged(t, direct(t))
	secret.unchanged(t, direct(t))
}

func TestABundleIsBornWithoutStatus(t *testing.T) {
	secret := store(t, "raw", noise("secret", 13, 1000))
	victim := get(t, secret.namespace, secret.name)
	namespace := newNamespace(t)
	attacker := newUser(t, namespace, rule("*", "*"))
	b := uploadBundle("thief", "raw")
	b.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Bundle"}
	b.Spec.Source.Upload = &v1alpha1.UploadSource{Digest: victim.Status.Content.Digest}
	b.Status = forged(victim)
	list := "/apis/rukpak.io/v1alpha1/namespaces/" + namespace + "/bundles"
	direct(t).do(t, http.MethodPost, list, attacker.token, strings.NewReader(encode(t, b)), "Content-Type", "application/json").expect(t, http.StatusCreated)
	if s := get(t, namespace, "thief").Status; s.Content != nil || len(s.History) > 0 || s.ResolvedSource != nil || s.Unpack != nil {
		t.Errorf("status is %s", encode(t, s))
	}
	for _, w := range bothWays(t) {
		w.do(t, http.MethodGet, contentPath(namespace, "thief"), attacker.token, nil).expect(t, http.StatusConflict)
		w.do(t, http.MethodGet, contentPath(namespace, "thief")+"?digest="+victim.Status.Content.Digest, attacker.token, nil).expect(t, http.StatusNotFound)
		// To know the digest is not to have the bytes.
		w.do(t, http.MethodPut, contentPath(namespace, "thief"), attacker.token, bytes.NewReader(canonical(t, noise("other", 1, 1)))).expect(t, http.StatusUnprocessableEntity)
	}
}

// TestStatusOfSomebodyElsesProvisioner has the phase follow what a controller says, since nothing else does.
func TestStatusOfSomebodyElsesProvisioner(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, uploadBundle("app", newClass(t, "example.com/charts", nil)))
	eventually(t, "bundle waits for its provisioner", func() string {
		return missing(encode(t, get(t, namespace, "app").Status.Conditions), "WaitingForProvisioner")
	})
	controller := newUser(t, namespace, rule("bundles/status", "patch"))
	status := strings.TrimSuffix(contentPath(namespace, "app"), "/content") + "/status"
	for _, test := range []struct {
		unpacked metav1.ConditionStatus
		phase    v1alpha1.BundlePhase
	}{
		{metav1.ConditionUnknown, v1alpha1.BundleUnpacking},
		{metav1.ConditionFalse, v1alpha1.BundleFailing},
	} {
		patch := map[string]any{
			"metadata": map[string]any{"labels": map[string]string{"smuggled": "yes"}},
			"spec":     map[string]any{"suspend": true},
			"status": map[string]any{"phase": "Unpacked", "conditions": []metav1.Condition{{
				Type: v1alpha1.ConditionUnpacked, Status: test.unpacked, Reason: "Fetching", LastTransitionTime: metav1.Now(),
			}}},
		}
		aggregated(t).do(t, http.MethodPatch, status, controller.token, strings.NewReader(encode(t, patch)), "Content-Type", mergePatch).expect(t, http.StatusOK)
		b := get(t, namespace, "app")
		if b.Status.Phase != test.phase {
			t.Errorf("phase is %s with Unpacked %s, want %s", b.Status.Phase, test.unpacked, test.phase)
		}
		if b.Spec.Suspend || len(b.Labels) > 0 || b.Generation != 1 {
			t.Errorf("a write of the status changed the rest: %s", encode(t, b))
		}
	}
	for name, body := range map[string]string{
		"status.conditions[0].status": `{"status":{"conditions":[{"type":"Unpacked","status":"Perhaps","reason":"A","lastTransitionTime":"2026-01-01T00:00:00Z","message":""}]}}`,
		"status.observedGeneration":   `{"status":{"observedGeneration":7}}`,
	} {
		aggregated(t).do(t, http.MethodPatch, status, controller.token, strings.NewReader(body), "Content-Type", mergePatch).
			expect(t, http.StatusUnprocessableEntity, name)
	}
}

// missing says that a text does not hold another.
func missing(text, want string) string {
	if strings.Contains(text, want) {
		return ""
	}
	return "no " + want + " in: " + text
}
