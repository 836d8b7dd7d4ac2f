// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	imagesKey = "RUKPAK_IMAGE_LAYOUT" // the layout that is tested
	ownModule = "rukpak.io/apiserver"
	sbomType  = "application/vnd.cyclonedx+json"
)

// descriptor and manifest are those of the OCI image specification v1.1, as far as they are looked at: a manifest or an index.
type descriptor struct {
	Digest       string
	ArtifactType string
	Platform     struct{ OS, Architecture string }
}

type manifest struct {
	ArtifactType string
	Subject      *descriptor
	Layers       []descriptor
	Manifests    []descriptor
}

type layout string

func (l layout) path(digest string) string {
	return filepath.Join(string(l), "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
}

func (l layout) manifest(t *testing.T, path string) manifest {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return m
}

// programs unpacks the files of an image into a folder.
func (l layout) programs(t *testing.T, image manifest) []string {
	t.Helper()
	file, err := os.Open(l.path(image.Layers[0].Digest))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var paths []string
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return paths
		} else if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Base(header.Name))
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(out, archive); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
}

// TestImage checks that each image of the layout has a document that refers to it, follows the schema, and names just what
// is in the programs.
func TestImage(t *testing.T) {
	l := layout(os.Getenv(imagesKey))
	if l == "" {
		t.Skipf("%s is not set: make image-check", imagesKey)
	}
	schema := schema(t)
	outer := l.manifest(t, filepath.Join(string(l), "index.json"))
	if len(outer.Manifests) != 1 {
		t.Fatalf("the layout has %d images", len(outer.Manifests))
	}
	index := l.manifest(t, l.path(outer.Manifests[0].Digest))
	documents := map[string]manifest{} // by the image
	for _, d := range index.Manifests {
		if m := l.manifest(t, l.path(d.Digest)); m.ArtifactType == sbomType {
			if d.ArtifactType != sbomType || d.Platform.OS != "unknown" || m.Subject == nil {
				t.Fatalf("the document %+v is %+v in the index", m, d)
			}
			documents[m.Subject.Digest] = m
		}
	}
	images := 0
	for _, d := range index.Manifests {
		if d.Platform.OS == "unknown" {
			continue
		}
		images++
		t.Run(d.Platform.OS+"/"+d.Platform.Architecture, func(t *testing.T) {
			document, ok := documents[d.Digest]
			if !ok {
				t.Fatal("no document refers to the image")
			}
			path := l.path(document.Layers[0].Digest)
			validate(t, schema, path)
			compare(t, path, l.programs(t, l.manifest(t, l.path(d.Digest))), d.Platform.Architecture)
		})
	}
	if images == 0 || images != len(documents) {
		t.Errorf("%d documents for %d images", len(documents), images)
	}
}

func validate(t *testing.T, schema *jsonschema.Schema, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	document, err := jsonschema.UnmarshalJSON(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(document); err != nil {
		t.Error(err)
	}
}

// compare asks the go command, and not our own code, what is in the programs.
func compare(t *testing.T, path string, programs []string, arch string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var bom cdx.BOM
	if err := json.Unmarshal(data, &bom); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, d := range *bom.Dependencies {
		got[d.Ref] = *d.Dependencies
	}
	sums := map[string]string{} // by the reference
	for _, c := range *bom.Components {
		switch {
		case c.Hashes != nil:
			sums[c.BOMRef] = (*c.Hashes)[0].Value
		case c.Properties != nil:
			sums[c.BOMRef] = (*c.Properties)[0].Value
		default:
			sums[c.BOMRef] = ""
		}
	}
	for _, program := range programs {
		name := filepath.Base(program)
		want := fromGoVersion(t, program, sums)
		if got := got["program:"+name]; len(want) < 2 || !slices.Equal(got, want) {
			t.Errorf("%s is said to have %v, and has %v", name, got, want)
		}
		if sum, err := hash(program); err != nil || sums["program:"+name] != sum {
			t.Errorf("%s has the digest %s and is said to have %s (%v)", name, sum, sums["program:"+name], err)
		}
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range info.Settings {
			if s.Key == "GOARCH" && s.Value != arch {
				t.Errorf("%s is for %s", name, s.Value)
			}
		}
	}
	if len(got["image"]) != len(programs) {
		t.Errorf("the image is said to have %v, and has %v", got["image"], programs)
	}
}

// fromGoVersion are the references of what "go version -m" lists.
func fromGoVersion(t *testing.T, program string, sums map[string]string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "version", "-m", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(string(out), "\n")
	refs := []string{"pkg:golang/stdlib@" + first[strings.LastIndex(first, ": go")+len(": go"):]}
	for line := range strings.SplitSeq(rest, "\n") {
		switch f := strings.Fields(line); {
		case len(f) == 4 && f[0] == "dep":
			ref := "pkg:golang/" + strings.ToLower(f[1]) + "@" + strings.ReplaceAll(f[2], "+", "%2B")
			refs = append(refs, ref)
			if sums[ref] != f[3] {
				t.Errorf("%s is said to have the checksum %q, and has %q", ref, sums[ref], f[3])
			}
		case len(f) > 1 && f[0] == "mod" && f[1] != ownModule:
			t.Errorf("%s is of the module %s", program, f[1])
		}
	}
	slices.Sort(refs)
	return refs
}

// schema is that of CycloneDX 1.6, which comes with the library.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "schema")
	compiler := jsonschema.NewCompiler()
	for id, name := range map[string]string{
		"http://cyclonedx.org/schema/bom-1.6.schema.json":  "bom-1.6.schema.json",
		"http://cyclonedx.org/schema/spdx.schema.json":     "spdx.schema.json",
		"http://cyclonedx.org/schema/jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	} {
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		document, err := jsonschema.UnmarshalJSON(file)
		if err := errors.Join(err, file.Close(), compiler.AddResource(id, document)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := compiler.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}
