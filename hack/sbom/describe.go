// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sumProperty is the checksum of a module as it stands in go.sum.
const sumProperty = "rukpak.io/go.sum"

// image is what the document is about.
type image struct{ name, version, digest, platform string }

// describe makes the document. A program is a component that depends on its modules; how those depend on one another
// does not stand in it.
func describe(i image, programs []string) (*cdx.BOM, error) {
	bom := cdx.NewBOM()
	bom.SerialNumber = serial(i.digest)
	_, arch, _ := strings.Cut(i.platform, "/")
	whole := cdx.Component{
		Type: cdx.ComponentTypeContainer, BOMRef: "image", Name: i.name, Version: i.version,
		PackageURL: fmt.Sprintf("pkg:oci/%s@%s?arch=%s", i.name, escape(i.digest), arch),
	}
	bom.Metadata = &cdx.Metadata{Component: &whole}
	var applications []cdx.Component
	modules := map[string]cdx.Component{}
	dependencies := []cdx.Dependency{}
	var roots []string
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, err
		}
		sum, err := hash(path)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(path)
		applications = append(applications, cdx.Component{
			Type: cdx.ComponentTypeApplication, BOMRef: "program:" + name, Name: name, Version: i.version,
			Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}},
		})
		roots = append(roots, "program:"+name)
		var needs []string
		for _, m := range libraries(info) {
			modules[m.BOMRef] = m
			needs = append(needs, m.BOMRef)
		}
		slices.Sort(needs)
		dependencies = append(dependencies, cdx.Dependency{Ref: "program:" + name, Dependencies: &needs})
	}
	components := applications
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		components = append(components, modules[ref])
	}
	bom.Components = &components
	dependencies = append([]cdx.Dependency{{Ref: "image", Dependencies: &roots}}, dependencies...)
	bom.Dependencies = &dependencies
	return bom, nil
}

// libraries are the modules of a program, and the standard library.
func libraries(info *debug.BuildInfo) []cdx.Component {
	// "go1.26.8 X:experiment" where it was built with one.
	version, _, _ := strings.Cut(strings.TrimPrefix(info.GoVersion, "go"), " ")
	all := []cdx.Component{library("stdlib", version, "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, library(m.Path, m.Version, m.Sum))
	}
	return all
}

// library is a module; its package URL is written as the type golang of the purl specification says.
func library(path, version, sum string) cdx.Component {
	url := "pkg:golang/" + strings.ToLower(path) + "@" + escape(version)
	c := cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: url, Name: path, Version: version, PackageURL: url}
	if sum != "" {
		c.Properties = &[]cdx.Property{{Name: sumProperty, Value: sum}}
	}
	return c
}

// escape writes a part of a package URL.
func escape(text string) string { return strings.NewReplacer("+", "%2B", ":", "%3A").Replace(text) }

// serial is the number of the document, the same for the same image: a UUID of version 8 (RFC 9562) out of its digest.
func serial(digest string) string {
	b := sha256.Sum256([]byte("sbom of " + digest))
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

func hash(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
