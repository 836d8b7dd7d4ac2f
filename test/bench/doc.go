// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench measures the server on a real cluster, which `make bench` brings up, and prints the figures as
// a table. It asserts no time: it fails only when something does not work.
//
// Every figure is a ratio of two sides that are measured in turn, ABBA, in one run, since the machine is seldom
// alone. What the server is compared with is a pod with a bare Go server (package bare) on the same
// node, a ConfigMap, the standard library, and a bare pod.
package bench
