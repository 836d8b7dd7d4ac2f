// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of causes in a Status, for programs.
const (
	// CauseFileNotFound means that the content has no such file or directory.
	CauseFileNotFound metav1.CauseType = "FileNotFound"
	// CauseLinkLoop means that symbolic links on the path lead in a circle.
	CauseLinkLoop metav1.CauseType = "LinkLoop"
)

// Digested tells whether an image reference names its image by digest, of whichever algorithm. Such a reference names the
// same for ever, and there is nothing to refresh.
func Digested(reference string) bool {
	_, digest, found := strings.Cut(reference, "@")
	return found && strings.Contains(digest, ":")
}
