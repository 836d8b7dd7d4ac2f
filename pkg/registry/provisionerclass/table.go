// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package provisionerclass

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/registry/printing"
)

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "name of the class; that of the default class says so"},
	{Name: "Provisioner", Type: "string", Description: "who handles the bundles of the class"},
	{Name: "Store", Type: "string", Description: "the content store that holds the bytes"},
	{Name: "Mode", Type: "string", Description: "how content is got out of images"},
	{Name: "Age", Type: "string", Description: "time since creation"},
	{Name: "Compressed", Type: "string", Priority: 1, Description: "largest size of a stored archive"},
	{Name: "Uncompressed", Type: "string", Priority: 1, Description: "largest size of an uncompressed archive"},
	{Name: "Files", Type: "string", Priority: 1, Description: "largest number of files"},
}

type table struct{}

func (table) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return printing.Table(object, options, columns, row)
}

func row(object runtime.Object) ([]any, error) {
	c, ok := object.(*rukpak.ProvisionerClass)
	if !ok {
		return nil, fmt.Errorf("cannot print a %T as a class", object)
	}
	name := c.Name
	if c.Annotations[v1alpha1.AnnotationIsDefaultClass] == "true" {
		name += " (default)"
	}
	mode, compressed, uncompressed, files := "", "", "", ""
	if c.Unpack != nil {
		mode = string(c.Unpack.Mode)
	}
	if l := c.Limits; l != nil {
		if l.CompressedBytes != nil {
			compressed = l.CompressedBytes.String()
		}
		if l.Bytes != nil {
			uncompressed = l.Bytes.String()
		}
		if l.Files != nil {
			files = fmt.Sprint(*l.Files)
		}
	}
	return []any{name, c.Provisioner, c.Store, mode, printing.Age(c.CreationTimestamp), compressed, uncompressed, files}, nil
}
