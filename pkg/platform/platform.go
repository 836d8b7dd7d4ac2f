// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform reads the platforms of images as people write them:
// OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, with the names that Go and the OCI
// image index specification ("platform") have for them.
package platform

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
)

// Linux is the operating system of unpack pods, and the only one.
const Linux = "linux"

// maxLength bounds the text of a platform, in bytes. Its architecture is a node label's value.
const maxLength = 63

// Platform is what an image is made for. The zero value is none.
type Platform struct {
	OS, Architecture string
	// Variant of the architecture, as in linux/arm/v7; empty means its baseline.
	Variant string
}

// Own is the platform of this program, with linux as its operating system.
func Own() Platform { return Platform{OS: Linux, Architecture: runtime.GOARCH} }

// IsZero tells whether p is none.
func (p Platform) IsZero() bool { return p == Platform{} }

// String writes p as Parse reads it, "" for none.
func (p Platform) String() string {
	s := p.OS + "/" + p.Architecture
	switch {
	case p.IsZero():
		return ""
	case p.Variant != "":
		return s + "/" + p.Variant
	}
	return s
}

var part = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$`)

// aliases are names that people write and that neither Go nor an index uses.
var aliases = map[string]string{"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "i386": "386", "armhf": "arm"}

// Parse reads a platform of linux.
func Parse(s string) (Platform, error) {
	parts := strings.Split(s, "/")
	if len(parts) < 2 || len(parts) > 3 || len(s) > maxLength {
		return Platform{}, errors.New("must be linux/ARCHITECTURE or linux/ARCHITECTURE/VARIANT, as in linux/arm64")
	}
	if parts[0] != Linux {
		return Platform{}, fmt.Errorf("the operating system %q is not linux, which unpack pods run on", parts[0])
	}
	if known, ok := aliases[parts[1]]; ok {
		return Platform{}, fmt.Errorf("the architecture %q is called %s", parts[1], known)
	}
	for _, p := range parts[1:] {
		if !part.MatchString(p) {
			return Platform{}, fmt.Errorf("%q is no name of an architecture or a variant: lower-case letters, digits, and dots, dashes and underscores inside", p)
		}
	}
	p := Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}
