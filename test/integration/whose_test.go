// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// TestOthersDoNotSpeakForTheServer has somebody who may write the status of a bundle say that it is not unpacked: nobody
// believes it, and nothing is unpacked again. What he has to say beside is kept.
func TestOthersDoNotSpeakForTheServer(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, imageBundle("app", "raw"))
	_, token := attempt(t, namespace, "app", 1)
	content := canonical(t, noise("a", 1, 10))
	direct(t).do(t, http.MethodPut, contentPath(namespace, "app"), token, bytes.NewReader(content)).expect(t, http.StatusCreated)
	before := get(t, namespace, "app")
	writer := newUser(t, namespace, rule("bundles/status", "patch", "update"))
	path := strings.TrimSuffix(contentPath(namespace, "app"), "/content") + "/status"

	lies := []metav1.Condition{{Type: "example.com/Scanned", Status: metav1.ConditionTrue, Reason: "Clean", LastTransitionTime: metav1.Now()}}
	for kind, status := range map[string]metav1.ConditionStatus{
		v1alpha1.ConditionUnpacked: metav1.ConditionFalse, v1alpha1.ConditionReady: metav1.ConditionUnknown,
		v1alpha1.ConditionContentAvailable: metav1.ConditionFalse, v1alpha1.ConditionStalled: metav1.ConditionTrue,
		v1alpha1.ConditionStorageFull: metav1.ConditionTrue, v1alpha1.ConditionRefreshed: metav1.ConditionFalse,
	} {
		lies = append(lies, metav1.Condition{Type: kind, Status: status, Reason: "ContentLost", LastTransitionTime: metav1.Now()})
	}
	whole := before.DeepCopy()
	whole.ResourceVersion, whole.Status.Conditions, whole.Status.Provisioner = "", lies, "example.com/own"
	whole.Status.LastHandledRetry, whole.Status.ObservedGeneration = "x", 0
	patch := map[string]any{"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "Bundle", "status": map[string]any{
		"conditions": lies, "provisioner": "example.com/own", "lastHandledRefresh": "x", "refresh": map[string]any{"failures": 7},
	}}
	for _, test := range []struct{ name, method, query, mediaType, body string }{
		{"update", http.MethodPut, "", "application/json", encode(t, whole)},
		{"merge patch", http.MethodPatch, "", mergePatch, encode(t, patch)},
		{"apply", http.MethodPatch, "?fieldManager=other&force=true", applyPatch, encode(t, patch)},
	} {
		t.Run(test.name, func(t *testing.T) {
			aggregated(t).do(t, test.method, path+test.query, writer.token, strings.NewReader(test.body), "Content-Type", test.mediaType).expect(t, http.StatusOK)
			now := get(t, namespace, "app")
			if !meta.IsStatusConditionTrue(now.Status.Conditions, "example.com/Scanned") {
				t.Errorf("what is his to say was not kept: %s", encode(t, now.Status.Conditions))
			}
			meta.RemoveStatusCondition(&now.Status.Conditions, "example.com/Scanned")
			// They are a map by their types, so a writer may put them in an order of his own.
			byType := func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) }
			slices.SortFunc(now.Status.Conditions, byType)
			slices.SortFunc(before.Status.Conditions, byType)
			if !equality.Semantic.DeepEqual(now.Status, before.Status) {
				t.Errorf("status is %s, was %s", encode(t, now.Status), encode(t, before.Status))
			}
		})
	}
}

// TestClassIsMadeAnewForAnotherProvisioner: what one provisioner has let pass is not what another would.
func TestClassIsMadeAnewForAnotherProvisioner(t *testing.T) {
	class := newClass(t, v1alpha1.ProvisionerRaw, nil)
	s := store(t, class, noise("data", 1, 1000))
	again := func(provisioner string) {
		t.Helper()
		classes := shared.Rukpak.RukpakV1alpha1().ProvisionerClasses()
		if err := classes.Delete(t.Context(), class, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		must(classes.Create(t.Context(), &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: provisioner}, metav1.CreateOptions{}))(t)
	}
	says := func(status metav1.ConditionStatus, reason string) {
		t.Helper()
		eventually(t, "Unpacked is "+string(status)+" for "+reason, func() string {
			b := get(t, s.namespace, s.name)
			c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked)
			if c.Status != status || c.Reason != reason || !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionContentAvailable) {
				return encode(t, b.Status)
			}
			return ""
		})
		s.unchanged(t, direct(t))
	}
	again(v1alpha1.ProvisionerPlain)
	says(metav1.ConditionUnknown, "WaitingForUpload")
	direct(t).do(t, http.MethodPut, s.path(), s.user.token, bytes.NewReader(s.content)).expect(t, http.StatusUnprocessableEntity, "manifests/")
	again("example.com/own")
	says(metav1.ConditionUnknown, "WaitingForProvisioner")
	again(v1alpha1.ProvisionerRaw)
	says(metav1.ConditionUnknown, "WaitingForUpload")
	direct(t).do(t, http.MethodPut, s.path(), s.user.token, bytes.NewReader(s.content)).expect(t, http.StatusOK)
	says(metav1.ConditionTrue, "Unpacked")
}
