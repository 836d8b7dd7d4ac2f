// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package printing turns objects into the tables that kubectl get shows.
package printing

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Table makes a table of an object or a list: columns, unless options say that no headers are wanted, and
// one row an object, with the cells that row gives.
func Table(object, options runtime.Object, columns []metav1.TableColumnDefinition, row func(runtime.Object) ([]any, error)) (*metav1.Table, error) {
	t := &metav1.Table{}
	if opt, ok := options.(*metav1.TableOptions); !ok || !opt.NoHeaders {
		t.ColumnDefinitions = columns
	}
	add := func(obj runtime.Object) error {
		cells, err := row(obj)
		if err != nil {
			return err
		}
		t.Rows = append(t.Rows, metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: obj}})
		return nil
	}
	if meta.IsListType(object) {
		list, err := meta.ListAccessor(object)
		if err != nil {
			return nil, err
		}
		t.ResourceVersion = list.GetResourceVersion()
		t.Continue = list.GetContinue()
		t.RemainingItemCount = list.GetRemainingItemCount()
		return t, meta.EachListItem(object, add)
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	t.ResourceVersion = accessor.GetResourceVersion()
	return t, add(object)
}

// Age is the time since t, as people read it.
func Age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}
