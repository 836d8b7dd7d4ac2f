// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bytesize"
	"rukpak.io/apiserver/pkg/registry/printing"
)

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "name of the bundle"},
	{Name: "Class", Type: "string", Description: "the ProvisionerClass"},
	{Name: "Source", Type: "string", Description: "where the content comes from"},
	{Name: "Phase", Type: "string", Description: "summary of the conditions"},
	{Name: "Digest", Type: "string", Description: "start of the digest of the content that is served"},
	{Name: "Size", Type: "string", Description: "size of the content that is served"},
	{Name: "Age", Type: "string", Description: "time since creation"},
	{Name: "Files", Type: "string", Priority: 1, Description: "number of files in the content"},
	{Name: "Reference", Type: "string", Priority: 1, Description: "the image that is asked for"},
	{Name: "Reason", Type: "string", Priority: 1, Description: "reason of the condition Ready"},
	{Name: "Message", Type: "string", Priority: 1, Description: "message of the condition Ready"},
}

// digestDigits is how many digits of a digest the narrow table shows.
const digestDigits = 12

type table struct{}

func (table) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return printing.Table(object, options, columns, row)
}

func row(object runtime.Object) ([]any, error) {
	b, ok := object.(*rukpak.Bundle)
	if !ok {
		return nil, fmt.Errorf("cannot print a %T as a bundle", object)
	}
	digest, size, files := "", "", ""
	if c := b.Status.Content; c != nil {
		digest = strings.TrimPrefix(c.Digest, "sha256:")
		digest = digest[:min(digestDigits, len(digest))]
		size, files = bytesize.Short(c.Size), fmt.Sprint(c.Files)
	}
	reference := ""
	if b.Spec.Source.Image != nil {
		reference = b.Spec.Source.Image.Reference
	}
	reason, message := "", ""
	if ready := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		reason, message = ready.Reason, ready.Message
	}
	return []any{
		b.Name, b.Spec.ProvisionerClassName, string(b.Spec.Source.Type), string(b.Status.Phase), digest, size,
		printing.Age(b.CreationTimestamp), files, reference, reason, message,
	}, nil
}
