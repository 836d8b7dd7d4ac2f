// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package provisioner

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n"

// check puts files through the check as tarball does, from a folder on disk.
func check(t *testing.T, c Check, files map[string]string) error {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		at := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			must(t, os.Symlink(target, at))
			continue
		}
		must(t, os.WriteFile(at, []byte(text), 0o644))
	}
	var archive bytes.Buffer
	_, err := tarball.Pack(t.Context(), &archive, root, "", tarball.Limits{})
	must(t, err)
	if _, err := tarball.Verify(t.Context(), &archive, tarball.Limits{}, c.Visit); err != nil {
		return err
	}
	return c.Finish()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newCheck(t *testing.T, provisioner string) Check {
	t.Helper()
	c, err := New(provisioner, nil)
	must(t, err)
	return c
}

func TestBuiltIn(t *testing.T) {
	for provisioner, want := range map[string]bool{
		v1alpha1.ProvisionerRaw: true, v1alpha1.ProvisionerPlain: true, "example.com/mine": false, "": false,
	} {
		if got := BuiltIn(provisioner); got != want {
			t.Errorf("%q: got %v, want %v", provisioner, got, want)
		}
		if _, err := New(provisioner, nil); errors.Is(err, ErrNotBuiltIn) == want {
			t.Errorf("%q: New gave %v", provisioner, err)
		}
	}
}

func TestUnknownParametersAreNamed(t *testing.T) {
	parameters := map[string]string{"zone": "b", "depth": "3"}
	for _, provisioner := range []string{v1alpha1.ProvisionerRaw, v1alpha1.ProvisionerPlain} {
		_, err := New(provisioner, parameters)
		unknown, ok := errors.AsType[*ParameterError](err)
		if !ok || unknown.Parameter != "depth" || !strings.Contains(err.Error(), `"depth"`) {
			t.Errorf("%s: got %v, want a refusal of depth", provisioner, err)
		}
	}
	if err := ValidateParameters("example.com/mine", parameters); err != nil {
		t.Errorf("got %v for somebody else's parameters", err)
	}
}

func TestRawTakesAnything(t *testing.T) {
	for _, files := range []map[string]string{
		nil,
		{"manifests/a.yaml": "{"},
		{"x": "-> y"},
	} {
		must(t, check(t, newCheck(t, v1alpha1.ProvisionerRaw), files))
	}
}

func TestPlainTakes(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"yaml, yml and json, in subfolders": {
			"manifests/a.yaml":     configMap,
			"manifests/d/e/b.yml":  configMap,
			"manifests/d/c.json":   `{"apiVersion":"v1","kind":"A","metadata":{"name":"a"}}`,
			"manifests/README.md":  "{ not a manifest",
			"manifests/data.txt":   "-> a.yaml",
			"elsewhere/a.yaml":     "{ not a manifest",
			"manifests.yaml":       "{ not a manifest",
			"manifests/UPPER.YAML": "{ not a manifest",
		},
		"many documents, some empty": {"manifests/a.yaml": "---\n# nothing\n---\n" + configMap + "---\n\n--- # said\n" + configMap + "...\n---\nnull\n"},
		"directives":                 {"manifests/a.yaml": "# head\n%YAML 1.1\n---\n" + configMap + "...\n%YAML 1.1\n---\n" + configMap},
		"byte order mark and CRLF":   {"manifests/a.yaml": "\ufeff" + strings.ReplaceAll("---\n"+configMap+"---\n"+configMap, "\n", "\r\n")},
		"no newline at the end":      {"manifests/a.yaml": strings.TrimSpace(configMap)},
		"content on the marker line": {"manifests/a.yaml": "--- {apiVersion: v1, kind: A, metadata: {name: a}}\n"},
		"a marker inside a text":     {"manifests/a.yaml": configMap + "data:\n  a: |\n    ---\n    x\n  b: ---x\n"},
		"JSON in a YAML file":        {"manifests/a.yaml": "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"A\",\n\t\"metadata\": {\"name\": \"a\"}}\n"},
		"many JSON values":           {"manifests/a.json": `{"apiVersion":"a.b/v1beta1","kind":"A","metadata":{"name":"a"}} null {"apiVersion":"v1","kind":"A","metadata":{"generateName":"a-"}}`},
		"a List":                     {"manifests/a.yaml": "apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(configMap, "\n", "\n  ")},
		"an empty List beside":       {"manifests/a.yaml": configMap + "---\napiVersion: v1\nkind: ConfigMapList\nitems: []\n---\napiVersion: v1\nkind: List\nitems:\n"},
		"a kind that ends in List":   {"manifests/a.yaml": "apiVersion: a.b/v1\nkind: AccessList\nmetadata: {name: a}\n"},
		"names with colons":          {"manifests/a.yaml": "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: 'system:a', labels: {a: null}}\n"},
		"a long line":                {"manifests/a.yaml": configMap + "data: {a: " + strings.Repeat("x", 1<<20) + "}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, check(t, newCheck(t, v1alpha1.ProvisionerPlain), files))
		})
	}
}

func TestPlainRefuses(t *testing.T) {
	big := strings.Repeat("# comment\n", MaxDocument/10+1)
	tests := []struct {
		name     string
		file     string // below manifests/
		text     string
		document int
		reason   string
	}{
		{"no YAML", "a.yaml", configMap + "---\na: [\n", 2, "line 2"},
		{"where the document begins", "a.yaml", configMap + "---\n---\na: [\n", 3, "begins at line 6"},
		{"no JSON", "a.json", `{"apiVersion":"v1","kind":"A","metadata":{"name":"a"}} {`, 2, "unexpected EOF"},
		{"YAML in a JSON file", "a.json", configMap, 1, "invalid character"},
		{"a scalar", "d/a.yml", "hello\n", 1, "is a string, not an object"},
		{"a list", "a.json", "[]", 1, "is a list, not an object"},
		{"duplicate key, YAML", "a.yaml", configMap + "kind: B\n", 1, `"kind" already set`},
		{"duplicate key, nested", "a.yaml", configMap + "data: {x: a, x: b}\n", 1, `line 5: key "x" already set`},
		{"duplicate key, JSON", "a.json", `{"apiVersion":"v1","kind":"A","metadata":{"name":"a","name":"b"}}`, 1, `duplicate field "metadata.name"`},
		{"no apiVersion", "a.yaml", "kind: A\nmetadata: {name: a}\n", 1, "apiVersion: is missing"},
		{"no kind", "a.yaml", "apiVersion: v1\nmetadata: {name: a}\n", 1, "kind: is missing"},
		{"neither", "a.yaml", "values: {}\n", 1, "neither apiVersion nor kind"},
		{"apiVersion with too many slashes", "a.yaml", "apiVersion: a/b/c\nkind: A\n", 1, "apiVersion"},
		{"apiVersion without group", "a.yaml", "apiVersion: /v1\nkind: A\n", 1, "invalid group"},
		{"apiVersion with a bad group", "a.yaml", "apiVersion: a_b/v1\nkind: A\n", 1, "invalid group"},
		{"apiVersion with a bad version", "a.yaml", "apiVersion: apps/1\nkind: A\n", 1, "invalid version"},
		{"apiVersion is a number", "a.yaml", "apiVersion: 1\nkind: A\n", 1, "apiVersion: is a number"},
		{"kind with a blank", "a.yaml", "apiVersion: v1\nkind: Config Map\nmetadata: {name: a}\n", 1, "kind: invalid"},
		{"no metadata", "a.yaml", "apiVersion: v1\nkind: A\n", 1, "metadata: is missing"},
		{"metadata is a text", "a.yaml", "apiVersion: v1\nkind: A\nmetadata: a\n", 1, "metadata: is a string"},
		{"no name", "a.yaml", "apiVersion: v1\nkind: A\nmetadata: {labels: {}}\n", 1, "neither name nor generateName"},
		{"name is a number", "a.yaml", "apiVersion: v1\nkind: A\nmetadata: {name: 12}\n", 1, "metadata.name: is a number"},
		{"name is a path", "a.yaml", "apiVersion: v1\nkind: A\nmetadata: {name: a/b}\n", 1, "metadata.name: invalid"},
		{"bad namespace", "a.yaml", "apiVersion: v1\nkind: A\nmetadata: {name: a, namespace: A}\n", 1, "metadata.namespace: invalid"},
		{"label is a boolean", "a.yaml", "apiVersion: v1\nkind: A\nmetadata: {name: a, labels: {tier: true}}\n", 1, "metadata.labels[tier]: is a boolean"},
		{"annotations are a list", "a.yaml", "apiVersion: v1\nkind: A\nmetadata: {name: a, annotations: []}\n", 1, "metadata.annotations: is a list"},
		{"item of a List", "a.yaml", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: A, metadata: {name: a}}\n- {apiVersion: v1, kind: A, metadata: {}}\n", 1, "items[1]: metadata: has neither"},
		{"items are no list", "a.yaml", "apiVersion: v1\nkind: List\nitems: {}\n", 1, "items: is an object"},
		{"lists without end", "a.yaml", strings.Repeat("{apiVersion: v1, kind: List, items: [", 9) + strings.Repeat("]}", 9), 1, "lists inside each other"},
		{"a link", "a.yaml", "-> b.txt", 0, "symbolic link"},
		{"not UTF-8", "a.yaml", configMap + "# \xff\n", 1, "not UTF-8"},
		{"a document that is too large", "a.yaml", configMap + "---\n" + big, 2, "larger than 8388608 bytes"},
		{"a line that is too large", "a.yaml", "# " + strings.Repeat("x", MaxDocument), 1, "larger than 8388608 bytes"},
		{"a JSON value that is too large", "a.json", `{"a":"` + strings.Repeat("x", MaxDocument) + `"}`, 1, "larger than 8388608 bytes"},
		{"YAML of too many values", "a.yaml", "a: [" + strings.Repeat("1,", MaxValues) + "]", 1, "more than 150000 values"},
		{"JSON of too many values", "a.json", "[" + strings.Repeat("1,", MaxValues) + "1]", 1, "more than 150000 values"},
		{"aliases that explode", "a.yaml", bomb(), 1, "excessive aliasing"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			file := "manifests/" + test.file
			err := check(t, newCheck(t, v1alpha1.ProvisionerPlain), map[string]string{file: test.text, "manifests/0.yaml": configMap})
			refused, ok := errors.AsType[*ContentError](err)
			if !ok || refused.File != file || refused.Document != test.document || !strings.Contains(refused.Reason, test.reason) {
				t.Errorf("got %v, want %s, document %d: ... %s ...", err, file, test.document, test.reason)
			}
		})
	}
}

// bomb is a document of lists of aliases of lists of aliases.
func bomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 8), i-1)
	}
	return b.String()
}

// TestAliasesOfALargeTextAreCheap reads a document that is 1 GiB when each
// alias is written out.
func TestAliasesOfALargeTextAreCheap(t *testing.T) {
	text := "apiVersion: v1\nkind: A\nmetadata: {name: a}\na: &a " + strings.Repeat("x", 1<<20) + "\nb: [*a" + strings.Repeat(",*a", 1023) + "]\n"
	e := tarball.Entry{Name: "manifests/a.yaml", Type: tarball.TypeFile}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	must(t, newCheck(t, v1alpha1.ProvisionerPlain).Visit(e, strings.NewReader(text)))
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
		t.Errorf("%d bytes were allocated for a document of %d", got, len(text))
	}
}

func TestPlainRefusesContentWithoutManifests(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"nothing":          nil,
		"elsewhere":        {"a.yaml": configMap},
		"other files":      {"manifests/a.txt": configMap},
		"comments":         {"manifests/a.yaml": "# nothing\n---\n"},
		"an empty List":    {"manifests/a.yaml": "apiVersion: v1\nkind: List\nitems: []\n"},
		"behind a link":    {"manifests": "-> m", "m/a.yaml": configMap},
		"an empty file":    {"manifests/a.yaml": "", "manifests/b.json": ""},
		"a similar folder": {"manifests-old/a.yaml": configMap},
	} {
		err := check(t, newCheck(t, v1alpha1.ProvisionerPlain), files)
		refused, ok := errors.AsType[*ContentError](err)
		if !ok || refused.File != "" || !strings.Contains(err.Error(), "no Kubernetes manifest") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Where manifests lie in another place it says which, and where they have to be.
func TestPlainNamesManifestsInAnotherPlace(t *testing.T) {
	for file, want := range map[string]string{
		"a.yaml":               `"a.yaml" is not below manifests/: the folder has to contain manifests/`,
		"app/manifests/a.yaml": `"app/manifests/a.yaml" is too deep: the content has to be what is in "app"`,
	} {
		err := check(t, newCheck(t, v1alpha1.ProvisionerPlain), map[string]string{file: configMap, "readme.md": "text"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", file, err)
		}
	}
}

// TestErrorsOfTheReaderAreNotTheContents keeps a broken connection from being
// told to the user as a bad manifest.
func TestErrorsOfTheReaderAreNotTheContents(t *testing.T) {
	broken := errors.New("broken")
	for _, name := range []string{"manifests/a.yaml", "manifests/a.json"} {
		e := tarball.Entry{Name: name, Type: tarball.TypeFile}
		r := io.MultiReader(strings.NewReader(`{"apiVersion": "v1",`), iotest.ErrReader(broken))
		err := newCheck(t, v1alpha1.ProvisionerPlain).Visit(e, r)
		if _, refused := errors.AsType[*ContentError](err); refused || !errors.Is(err, broken) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestLargeFilesAreStreamed reads a file of many documents and fails if it is
// kept in memory.
func TestLargeFilesAreStreamed(t *testing.T) {
	document := configMap + "data:\n  a: " + strings.Repeat("x", 60_000) + "\n---\n"
	const documents = 1000
	e := tarball.Entry{Name: "manifests/a.yaml", Type: tarball.TypeFile}
	c := &plain{}
	var live uint64
	atEnd := func() {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		live = stats.HeapAlloc
	}
	must(t, c.Visit(e, &repeat{text: document, times: documents, atEnd: atEnd}))
	if c.objects != documents {
		t.Errorf("got %d objects, want %d", c.objects, documents)
	}
	if size := uint64(len(document) * documents); live > size/4 {
		t.Errorf("%d bytes are live at the end of a file of %d", live, size)
	}
}

// repeat yields a text many times.
type repeat struct {
	text  string
	times int
	atEnd func()
	rest  string
}

func (r *repeat) Read(p []byte) (int, error) {
	if r.rest == "" {
		if r.times == 0 {
			r.atEnd()
			return 0, io.EOF
		}
		r.times--
		r.rest = r.text
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func FuzzPlain(f *testing.F) {
	for _, seed := range []string{
		configMap, "---\n" + configMap + "...\n%YAML 1.1\n---\nnull\n", "\ufeff--- {a: b}", `{"apiVersion":"v1"} [1]`,
		"apiVersion: v1\nkind: List\nitems: [{}, null]\n", "a: &a [*a]", "? - a\n: b\n", "--- |\n a\n", "\t", "<<: {a: b}",
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, text string, yaml bool) {
		name := "manifests/a.json"
		if yaml {
			name = "manifests/a.yaml"
		}
		e := tarball.Entry{Name: name, Type: tarball.TypeFile, Size: int64(len(text))}
		whole := newCheck(t, v1alpha1.ProvisionerPlain)
		want := whole.Visit(e, strings.NewReader(text))
		if want != nil {
			if _, ok := errors.AsType[*ContentError](want); !ok {
				t.Fatalf("got %v, want a *ContentError", want)
			}
		}
		// The verdict does not depend on how the bytes come.
		slow := newCheck(t, v1alpha1.ProvisionerPlain)
		if got := slow.Visit(e, iotest.OneByteReader(strings.NewReader(text))); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("byte by byte: got %v, want %v", got, want)
		}
	})
}
