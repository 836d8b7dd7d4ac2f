// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// DefaultClass returns the class that a bundle without a class name gets: of those that are marked
// the newest and, of several made in the same second, the first by name. It is nil where none is marked.
func DefaultClass(classes []*ProvisionerClass) *ProvisionerClass {
	var chosen *ProvisionerClass
	for _, c := range classes {
		if c.Annotations[AnnotationIsDefaultClass] != "true" {
			continue
		}
		switch {
		case chosen == nil, chosen.CreationTimestamp.Before(&c.CreationTimestamp):
			chosen = c
		case chosen.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < chosen.Name:
			chosen = c
		}
	}
	return chosen
}
