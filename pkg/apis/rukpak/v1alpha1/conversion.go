// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/conversion"

	"rukpak.io/apiserver/pkg/apis/rukpak"
)

// Convert_rukpak_Bundle_To_v1alpha1_Bundle fills in where the contents of the bundle are read in this version of
// the API, in every answer, whether it is an object, a list or an event of a watch.
func Convert_rukpak_Bundle_To_v1alpha1_Bundle(in *rukpak.Bundle, out *Bundle, s conversion.Scope) error {
	if err := autoConvert_rukpak_Bundle_To_v1alpha1_Bundle(in, out, s); err != nil {
		return err
	}
	uri := "/apis/" + SchemeGroupVersion.String() + "/namespaces/" + in.Namespace + "/bundles/" + in.Name + "/content"
	// What is behind pointers is shared with the object that is converted.
	if out.Status.Content != nil {
		content := *out.Status.Content
		content.URI = uri
		out.Status.Content = &content
	}
	out.Status.History = slices.Clone(out.Status.History)
	for i := range out.Status.History {
		out.Status.History[i].URI = uri + "?digest=" + out.Status.History[i].Digest
	}
	return nil
}
