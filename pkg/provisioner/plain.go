// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package provisioner

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"rukpak.io/apiserver/pkg/tarball"
)

// manifestDir is the folder of a plain bundle that holds its manifests.
const manifestDir = "manifests/"

// plain takes content that holds valid Kubernetes manifests.
type plain struct {
	objects int
	// beside is the first file that would be a manifest if it were below manifestDir.
	beside string
}

// Visit checks a manifest. Everything else in the content is let through.
func (p *plain) Visit(e tarball.Entry, content io.Reader) error {
	if e.Type == tarball.TypeDirectory {
		return nil
	}
	var next func(source) documents
	switch path.Ext(e.Name) {
	case ".yaml", ".yml":
		next = yamlDocuments
	case ".json":
		next = jsonDocuments
	default:
		return nil
	}
	if !strings.HasPrefix(e.Name, manifestDir) {
		p.beside = cmp.Or(p.beside, e.Name)
		return nil
	}
	if e.Type != tarball.TypeFile {
		// What a link leads to need not have been looked at.
		return &ContentError{File: e.Name, Reason: "a manifest must be a regular file, this is a symbolic link"}
	}
	source := source{file: e.Name, r: content}
	for document, err := range next(source) {
		if err != nil {
			return err
		}
		n, err := objects(document.object)
		if err != nil {
			return source.refuse(document.number, "%s", err)
		}
		p.objects += n
	}
	return nil
}

// Finish refuses content without a manifest: an empty bundle that counts as
// success hides that the wrong image, or the wrong path of it, was named.
func (p *plain) Finish() error {
	if p.objects > 0 {
		return nil
	}
	reason := "the content holds no Kubernetes manifest: there is no object in any file " + manifestDir + "**/*.yaml, *.yml or *.json"
	if above, _, deeper := strings.Cut(p.beside, "/"+manifestDir); deeper {
		reason += fmt.Sprintf("; %q is too deep: the content has to be what is in %q", p.beside, above)
	} else if p.beside != "" {
		reason += fmt.Sprintf("; %q is not below %s: the folder has to contain %[2]s", p.beside, manifestDir)
	}
	return &ContentError{Reason: reason}
}

// source is a file that is read document by document.
type source struct {
	file string
	r    io.Reader
}

func (s source) refuse(document int, format string, args ...any) error {
	return &ContentError{File: s.file, Document: document, Reason: fmt.Sprintf(format, args...)}
}

// failed returns the error of reading the file. It is not the content's fault.
func (s source) failed(err error) error {
	return fmt.Errorf("read %s: %w", s.file, err)
}

func (s source) tooLarge(document int) error {
	return s.refuse(document, "is larger than %d bytes", MaxDocument)
}

// MaxDocument bounds one YAML document or JSON value, in bytes. The API server
// takes no object that is larger than 3 MiB.
const MaxDocument = 8 << 20

// MaxValues bounds the values, keys included, of one YAML document or JSON
// value, and thereby the memory that parsing it takes: about 30 MiB at worst.
// Manifests of 1 MiB have 50,000.
const MaxValues = 150_000

// errTooLarge ends the reading of a document that exceeds MaxDocument.
var errTooLarge = errors.New("document too large")
