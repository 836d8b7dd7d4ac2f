// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rukpak-apiserver serves the API group rukpak.io.
package main

import (
	"os"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"rukpak.io/apiserver/pkg/cmd/etcdcerts"
	"rukpak.io/apiserver/pkg/cmd/server"
)

func main() {
	os.Exit(server.Main(genericapiserver.SetupSignalContext(), etcdcerts.NewCommand()))
}
