// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the tests on a real cluster with a real node, which `make e2e`
// brings up. They run on the machine of the node, as root: they push images to the
// registry of the node, kill the server's process, and look into its volume.
package e2e
