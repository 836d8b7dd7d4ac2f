// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package provisioner

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// maxNesting bounds lists inside lists.
const maxNesting = 4

// objects checks a manifest and returns how many objects it holds: one, or
// those of a list.
func objects(manifest any) (int, error) { return objectsWithin(manifest, maxNesting) }

func objectsWithin(manifest any, nesting int) (int, error) {
	object, ok := fields(manifest)
	if !ok {
		return 0, fmt.Errorf("is %s, not an object", kindOf(manifest))
	}
	kind, err := checkType(object)
	if err != nil {
		return 0, err
	}
	if items, ok := object["items"]; ok && strings.HasSuffix(kind, "List") {
		return listed(items, nesting)
	}
	return 1, checkMetadata(object["metadata"])
}

func listed(items any, nesting int) (int, error) {
	if nesting == 0 {
		return 0, fmt.Errorf("has more than %d lists inside each other", maxNesting)
	}
	list, ok := items.([]any)
	if !ok && items != nil {
		return 0, fmt.Errorf("items: is %s, not a list", kindOf(items))
	}
	total := 0
	for i, item := range list {
		n, err := objectsWithin(item, nesting-1)
		if err != nil {
			return 0, fmt.Errorf("items[%d]: %w", i, err)
		}
		total += n
	}
	return total, nil
}

// checkType checks apiVersion and kind, and returns the latter.
func checkType(object map[string]any) (string, error) {
	apiVersion, err := text(object, "apiVersion")
	if err != nil {
		return "", err
	}
	kind, err := text(object, "kind")
	if err != nil {
		return "", err
	}
	switch {
	case apiVersion == "" && kind == "":
		return "", errors.New("has neither apiVersion nor kind")
	case apiVersion == "":
		return "", errors.New("apiVersion: is missing")
	case kind == "":
		return "", errors.New("kind: is missing")
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return "", fmt.Errorf("apiVersion: %w", err)
	}
	if wrong := validation.IsDNS1035Label(gv.Version); len(wrong) > 0 {
		return "", fmt.Errorf("apiVersion: invalid version in %q: %s", apiVersion, wrong[0])
	}
	if strings.Contains(apiVersion, "/") {
		if wrong := validation.IsDNS1123Subdomain(gv.Group); len(wrong) > 0 {
			return "", fmt.Errorf("apiVersion: invalid group in %q: %s", apiVersion, wrong[0])
		}
	}
	if wrong := validation.IsDNS1035Label(strings.ToLower(kind)); len(wrong) > 0 {
		return "", fmt.Errorf("kind: invalid value %q: %s", kind, wrong[0])
	}
	return kind, nil
}

// checkMetadata checks that an object has a name, or asks for one, and what
// every API server would refuse in the rest of its metadata.
func checkMetadata(metadata any) error {
	if metadata == nil {
		return errors.New("metadata: is missing")
	}
	object, ok := fields(metadata)
	if !ok {
		return fmt.Errorf("metadata: is %s, not an object", kindOf(metadata))
	}
	given := map[string]string{}
	for _, field := range []string{"name", "generateName", "namespace"} {
		value, err := text(object, field)
		if err != nil {
			return fmt.Errorf("metadata.%w", err)
		}
		given[field] = value
	}
	if given["name"] == "" && given["generateName"] == "" {
		return errors.New("metadata: has neither name nor generateName")
	}
	if wrong := content.IsPathSegmentName(given["name"]); len(wrong) > 0 {
		return fmt.Errorf("metadata.name: invalid value %q: %s", given["name"], wrong[0])
	}
	if wrong := content.IsPathSegmentPrefix(given["generateName"]); len(wrong) > 0 {
		return fmt.Errorf("metadata.generateName: invalid value %q: %s", given["generateName"], wrong[0])
	}
	if namespace := given["namespace"]; namespace != "" {
		if wrong := validation.IsDNS1123Label(namespace); len(wrong) > 0 {
			return fmt.Errorf("metadata.namespace: invalid value %q: %s", namespace, wrong[0])
		}
	}
	for _, field := range []string{"labels", "annotations"} {
		if err := checkTexts(object[field]); err != nil {
			return fmt.Errorf("metadata.%s%w", field, err)
		}
	}
	return nil
}

// checkTexts checks labels or annotations, whose values are often given as
// numbers or booleans by mistake.
func checkTexts(value any) error {
	if value == nil {
		return nil
	}
	object, ok := fields(value)
	if !ok {
		return fmt.Errorf(": is %s, not an object", kindOf(value))
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		switch object[key].(type) {
		case string, nil:
		default:
			return fmt.Errorf("[%s]: is %s, not a string", key, kindOf(object[key]))
		}
	}
	return nil
}

// fields returns the fields of an object. The YAML parser allows keys of every
// type; like kubectl, this takes numbers and booleans for texts.
func fields(value any) (map[string]any, bool) {
	switch object := value.(type) {
	case map[string]any:
		return object, true
	case map[any]any:
		named := make(map[string]any, len(object))
		for key, value := range object {
			named[fmt.Sprint(key)] = value
		}
		return named, true
	default:
		return nil, false
	}
}

// text returns a field that is a string; one that is missing or null is empty.
func text(object map[string]any, field string) (string, error) {
	switch value := object[field].(type) {
	case nil:
		return "", nil
	case string:
		return value, nil
	default:
		return "", fmt.Errorf("%s: is %s, not a string", field, kindOf(value))
	}
}

// kindOf names the type of a JSON value.
func kindOf(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case []any:
		return "a list"
	case map[string]any, map[any]any:
		return "an object"
	default:
		return "a number"
	}
}
