// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Command sbom prints what is in a container image of Go programs as a CycloneDX 1.6 document in JSON. It takes
// it from the programs themselves, in which the Go linker has put down the modules that they are made of, and not from
// go.mod, in which more stands. The same programs give the same bytes.
//
//	sbom NAME VERSION DIGEST PLATFORM PROGRAM...
//
// NAME is the image's, DIGEST that of its manifest, PLATFORM as in linux/arm64, each PROGRAM a file.
package main

import (
	"fmt"
	"os"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if len(os.Args) < 6 {
		fmt.Fprintln(os.Stderr, "usage: sbom NAME VERSION DIGEST PLATFORM PROGRAM...")
		os.Exit(2)
	}
	if err := run(image{name: os.Args[1], version: os.Args[2], digest: os.Args[3], platform: os.Args[4]}, os.Args[5:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(i image, programs []string) error {
	bom, err := describe(i, programs)
	if err != nil {
		return err
	}
	return cdx.NewBOMEncoder(os.Stdout, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
}
