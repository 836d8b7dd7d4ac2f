// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chart tests the Helm chart as its users meet it: installed, upgraded, taken away and installed again on a real cluster. The API
// is there once in a cluster, so these tests need one without it, and run alone: "make e2e-chart".
package chart
