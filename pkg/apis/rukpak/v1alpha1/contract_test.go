// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "testing"

func TestDigested(t *testing.T) {
	for reference, want := range map[string]bool{
		"app": false, "app:1": false, "registry.example:5000/app": false, "registry.example:5000/app:1": false, "app@": false, "app@1": false,
		"app@sha256:00": true, "registry.example:5000/app:1@sha512:00": true,
	} {
		if got := Digested(reference); got != want {
			t.Errorf("of %q it says %v", reference, got)
		}
	}
}
