// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Command openapi-schema prints the OpenAPI v2 document of the API types, from which
// the apply configurations are generated.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"rukpak.io/apiserver/pkg/generated/openapi"
)

func main() {
	definitions := spec.Definitions{}
	ref := func(name string) spec.Ref { return spec.MustCreateRef("#/definitions/" + name) }
	for name, definition := range openapi.GetOpenAPIDefinitions(ref) {
		schema := definition.Schema
		// A definition may carry its v2 form as an extension, where v3 can say more.
		if v2, ok := schema.Extensions[common.ExtensionV2Schema].(spec.Schema); ok {
			schema = v2
		}
		definitions[name] = schema
	}
	document := spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger:     "2.0",
		Info:        &spec.Info{InfoProps: spec.InfoProps{Title: "rukpak.io", Version: "v1alpha1"}},
		Definitions: definitions,
	}}
	if err := json.NewEncoder(os.Stdout).Encode(document); err != nil {
		fmt.Fprintln(os.Stderr, "openapi-schema:", err)
		os.Exit(1)
	}
}
