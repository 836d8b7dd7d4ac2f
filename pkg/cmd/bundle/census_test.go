// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"fmt"
	"io"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned/fake"
)

// The doctor names bundles that wait for a class, and those that are not refreshed, some of many.
func TestCensus(t *testing.T) {
	refused := metav1.Condition{Type: v1alpha1.ConditionRefreshed, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonImageNotFound}
	classless := func(name string) *v1alpha1.Bundle {
		return &v1alpha1.Bundle{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}, Spec: v1alpha1.BundleSpec{ProvisionerClassName: "plian"},
			Status: v1alpha1.BundleStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonClassMissing}}},
		}
	}
	trying := served()
	trying.Status = v1alpha1.BundleStatus{
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonUnpacking}},
		Unpack:     &v1alpha1.UnpackStatus{Generation: trying.Generation, Attempt: 2, Failures: 2, Reason: v1alpha1.ReasonImageNotFound},
	}
	waits := trying.DeepCopy()
	waits.Status.Unpack.Attempt, waits.Status.Unpack.Failures = 1, 0
	for _, test := range []struct {
		name    string
		bundles []*v1alpha1.Bundle
		level   level
		says    []string
	}{
		{"all is well", []*v1alpha1.Bundle{served()}, levelOK, []string{"1 bundle in all namespaces, none fails"}},
		{"tried again", []*v1alpha1.Bundle{trying}, levelWarning, []string{"not unpacked, 1 of 1 bundle in all namespaces: team/app (ImageNotFound, 2 attempts failed so far)", "describe NAME"}},
		{"waits in vain", []*v1alpha1.Bundle{waits}, levelWarning, []string{"not unpacked, 1 of 1 bundle in all namespaces: team/app (ImageNotFound)"}},
		{"no class", []*v1alpha1.Bundle{classless("app")}, levelWarning, []string{`the class does not exist, of 1 of 1 bundle in all namespaces: team/app ("plian")`, "make that class"}},
		{"not refreshed", []*v1alpha1.Bundle{served(refused)}, levelWarning, []string{"not refreshed, and served as before, 1 of 1 bundle in all namespaces: team/app (ImageNotFound)", "refresh NAME"}},
		{"many", []*v1alpha1.Bundle{classless("a"), classless("b"), classless("c"), classless("d"), classless("e"), classless("f"), classless("g")}, levelWarning, []string{"and 2 more"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := fake.NewClientset()
			for _, b := range test.bundles {
				if err := client.Tracker().Add(b); err != nil {
					t.Fatal(err)
				}
			}
			found := (&examination{session: newSession(streamsTo(io.Discard)), rukpak: client, in: "team"}).bundlesState(t.Context())
			if len(found) != 1 || found[0].level != test.level {
				t.Fatalf("it finds %+v", found)
			}
			for _, want := range test.says {
				if !strings.Contains(fmt.Sprint(found[0]), want) {
					t.Errorf("it says %+v, and not %q", found[0], want)
				}
			}
		})
	}
}
