// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

// Field labels by which bundles can be selected, beside metadata.name and
// metadata.namespace.
const (
	FieldClass      = "spec.provisionerClassName"
	FieldSourceType = "spec.source.type"
	FieldPhase      = "status.phase"
)

// AddFieldLabelConversions lets the field selectors of Bundle through.
func AddFieldLabelConversions(scheme *runtime.Scheme) error {
	return scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("Bundle"), func(label, value string) (string, string, error) {
		switch label {
		case "metadata.name", "metadata.namespace", FieldClass, FieldSourceType, FieldPhase:
			return label, value, nil
		}
		return "", "", fmt.Errorf("field label %q is not supported: use metadata.name, metadata.namespace, %s, %s or %s", label, FieldClass, FieldSourceType, FieldPhase)
	})
}
