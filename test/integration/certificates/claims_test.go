// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"rukpak.io/apiserver/pkg/aggregation"
)

// claims makes a CustomResourceDefinition of the server's API group, whose objects cannot be reached.
func (w *world) claims(t *testing.T) {
	crds := w.dynamic.Resource(aggregation.CRDs)
	schema := map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}
	must(crds.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets.rukpak.io"},
		"spec": map[string]any{
			"group": "rukpak.io", "scope": "Namespaced", "names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget"},
			"versions": []any{map[string]any{"name": "v1alpha1", "served": true, "storage": true, "schema": schema}},
		},
	}}, metav1.CreateOptions{}))(t)
	// unhealthy says whether the check of the leader fails, which is one of the replicas.
	unhealthy := func(ctx context.Context) error {
		bundle, err := w.caBundle(ctx)
		if err != nil {
			return err
		}
		var errs []error
		for _, r := range w.servers {
			_, err := w.fetch(ctx, r, w.admin(t, bundle), "/healthz")
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	eventually(t, "health says so", func(ctx context.Context) error {
		if err := unhealthy(ctx); err == nil || !strings.Contains(err.Error(), "[-]rukpak-api-claims failed") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	eventually(t, "an event says so", func(ctx context.Context) error {
		events, err := w.Kube.EventsV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=APIClaimed"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == "widgets.rukpak.io" && strings.Contains(e.Note, "cannot be reached") {
				return nil
			}
		}
		return fmt.Errorf("%d events", len(events.Items))
	})
	if err := w.available(t.Context()); err != nil {
		t.Error(err)
	}
	if err := crds.Delete(t.Context(), "widgets.rukpak.io", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "health is good again", unhealthy)
}
