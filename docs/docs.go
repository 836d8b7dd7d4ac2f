// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs holds the pages that programs show parts of.
package docs

import _ "embed"

// Reasons is the page reasons.md: what the conditions of a bundle mean, and what to do.
//
//go:embed reasons.md
var Reasons string
