// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDefaultClass(t *testing.T) {
	class := func(name string, age time.Duration, isDefault string) *ProvisionerClass {
		return &ProvisionerClass{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age)),
			Annotations: map[string]string{AnnotationIsDefaultClass: isDefault},
		}}
	}
	for name, test := range map[string]struct {
		classes []*ProvisionerClass
		want    string
	}{
		"none":      {},
		"no answer": {classes: []*ProvisionerClass{class("a", 0, ""), class("b", 0, "false")}},
		"newest":    {classes: []*ProvisionerClass{class("a", time.Hour, "true"), class("b", time.Minute, "true"), class("c", time.Hour, "true")}, want: "b"},
		"by name":   {classes: []*ProvisionerClass{class("b", 0, "true"), class("a", 0, "true")}, want: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if c := DefaultClass(test.classes); c != nil {
				got = c.Name
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
