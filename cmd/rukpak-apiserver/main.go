// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rukpak-apiserver serves the API group rukpak.io.
package main

import (
	"os"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"

	"rukpak.io/apiserver/pkg/cmd/etcdcerts"
	"rukpak.io/apiserver/pkg/cmd/server"
)

func main() {
	cmd := server.NewCommand(genericapiserver.SetupSignalContext())
	cmd.AddCommand(etcdcerts.NewCommand())
	os.Exit(cli.Run(cmd))
}
