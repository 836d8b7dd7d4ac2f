// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stores measures the server as a process behind a kube-apiserver: how fast content is read and written
// with each kind of content store, and what many bundles cost. `make bench-stores` runs it. It asserts
// no time: it fails only when something does not work.
//
// What reads are compared with is a bare Go TLS server, and http.FileServer without TLS, in a process of their
// own. Server and clients share the machine, so figures are to be compared within one run alone.
package stores
