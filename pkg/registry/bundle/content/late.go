// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"rukpak.io/apiserver/pkg/apis/rukpak"
)

// tookTooLong stands before the words of an error that is a deadline, which say nothing to who did not set it.
const tookTooLong = "it took too long"

// Late makes of an error of the storage of the API that is a deadline an answer: the same request may succeed once etcd is fast again. Other errors,
// and none, stay what they are. The namespace is the one in ctx.
func Late(ctx context.Context, doing, name string, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	b := &rukpak.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: genericapirequest.NamespaceValue(ctx), Name: name}}
	return unavailable(doing, b, err)
}
