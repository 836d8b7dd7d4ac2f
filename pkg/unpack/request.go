// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"crypto/sha256"
	"fmt"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// echo is how status says that the value of an annotation was acted upon: the value, or the digest of one that is too long to be
// said again. Such a one was there before its length was bounded.
func echo(value string) string {
	if len(value) <= v1alpha1.MaxRequestBytes {
		return value
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(value)))
}

// asked tells whether the value of an annotation asks for what has not been done. Handled is what status says; earlier
// versions said any value as it is.
func asked(value, handled string) bool {
	return value != "" && value != handled && echo(value) != handled
}
