// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// yamlTree makes 64 MiB of YAML in 2,000 files. It is as large sets of manifests
// are: most of it schemas, whose descriptions come up again and again, then
// workloads with names, numbers and a digest now and then.
func yamlTree(b *testing.B) string {
	b.Helper()
	root := b.TempDir()
	g := newYAML()
	const files, size = 2000, 64 << 20
	for i := range files {
		var doc strings.Builder
		for doc.Len() < size/files {
			if g.IntN(3) == 0 {
				g.workload(&doc)
			} else {
				g.schema(&doc)
			}
		}
		dir := filepath.Join(root, fmt.Sprintf("dir-%02d", i%40))
		must(b, os.MkdirAll(dir, 0o755))
		must(b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("manifest-%04d.yaml", i)), []byte(doc.String())[:size/files], 0o644))
	}
	return root
}

type yaml struct {
	*rand.Rand
	words     []string
	sentences []string
}

func newYAML() *yaml {
	g := &yaml{Rand: rand.New(rand.NewPCG(3, 4))}
	syllables := strings.Fields("ad be ca do el fi gu ha in jo ka le mo ne or pa qu ra so ti un ve wo xi yo za bre cha dri fle gro")
	for range 5000 {
		word := ""
		for range 2 + g.IntN(3) {
			word += syllables[g.IntN(len(syllables))]
		}
		g.words = append(g.words, word)
	}
	for range 1500 {
		var sentence []string
		for range 6 + g.IntN(12) {
			sentence = append(sentence, g.word())
		}
		g.sentences = append(g.sentences, strings.Join(sentence, " ")+".")
	}
	return g
}

// word picks a word, some far more often than others.
func (g *yaml) word() string { return g.words[int(g.ExpFloat64()*300)%len(g.words)] }

func (g *yaml) workload(w io.Writer) {
	fmt.Fprintf(w, "---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: %s-%s\n  namespace: %s\n  labels:\n", g.word(), g.word(), g.word())
	for range g.IntN(6) {
		fmt.Fprintf(w, "    app.kubernetes.io/component: %s\n", g.word())
	}
	fmt.Fprintf(w, "spec:\n  replicas: %d\n  template:\n    spec:\n      containers:\n      - name: %s\n        image: registry.example/%s@sha256:%016x%016x%016x%016x\n        args:\n",
		g.IntN(9), g.word(), g.word(), g.Uint64(), g.Uint64(), g.Uint64(), g.Uint64())
	for range g.IntN(8) {
		fmt.Fprintf(w, "        - --%s-%s=%d\n", g.word(), g.word(), g.IntN(65536))
	}
	fmt.Fprintf(w, "        resources:\n          limits:\n            cpu: %dm\n            memory: %dMi\n", g.IntN(1000), g.IntN(4096))
}

func (g *yaml) schema(w io.Writer) {
	indent := strings.Repeat("  ", 4+g.IntN(8))
	fmt.Fprintf(w, "%sproperties:\n", indent)
	for range 4 + g.IntN(12) {
		fmt.Fprintf(w, "%s  %s:\n%s    description: |-\n", indent, g.word(), indent)
		for range 1 + g.IntN(3) {
			fmt.Fprintf(w, "%s      %s\n", indent, g.sentences[int(g.ExpFloat64()*200)%len(g.sentences)])
		}
		fmt.Fprintf(w, "%s    type: %s\n", indent, []string{"string", "object", "array", "integer"}[g.IntN(4)])
	}
}

// cpuSeconds is what the process has used so far.
func cpuSeconds(b *testing.B) float64 {
	var usage syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// standard does what Pack does with the standard library alone, hashes aside.
func standard(b *testing.B, root string) int64 {
	var out counter
	gz := gzip.NewWriter(&out)
	tw := tar.NewWriter(gz)
	must(b, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		must(b, err)
		h, err := tar.FileInfoHeader(info, "")
		must(b, err)
		if h.Name, err = filepath.Rel(root, path); err != nil {
			return err
		}
		must(b, tw.WriteHeader(h))
		if d.IsDir() {
			return nil
		}
		f, err := os.Open(path)
		must(b, err)
		_, err = io.Copy(tw, f)
		must(b, err)
		return f.Close()
	}))
	must(b, tw.Close())
	must(b, gz.Close())
	return int64(out)
}

// BenchmarkYAML packs 64 MiB of YAML in 2,000 files once with this package and
// once with archive/tar and compress/gzip at its default level. Times-less-cpu
// is how many times less CPU the first takes; packed-% and standard-% are the
// sizes of the results in percent of the input.
func BenchmarkYAML(b *testing.B) {
	root := yamlTree(b)
	var ours, theirs float64
	var size, standardSize int64
	for b.Loop() {
		start := cpuSeconds(b)
		summary, err := Pack(b.Context(), io.Discard, root, "", Limits{})
		must(b, err)
		between := cpuSeconds(b)
		standardSize = standard(b, root)
		ours += between - start
		theirs += cpuSeconds(b) - between
		size = summary.Size
	}
	b.ReportMetric(ours/float64(b.N), "cpu-s/pack")
	b.ReportMetric(theirs/float64(b.N), "cpu-s/standard")
	b.ReportMetric(theirs/ours, "times-less-cpu")
	b.ReportMetric(100*float64(size)/(64<<20), "packed-%")
	b.ReportMetric(100*float64(standardSize)/(64<<20), "standard-%")
}

func BenchmarkPack(b *testing.B) {
	root := yamlTree(b)
	b.SetBytes(64 << 20)
	for b.Loop() {
		_, err := Pack(b.Context(), io.Discard, root, "", Limits{})
		must(b, err)
	}
}

func BenchmarkVerify(b *testing.B) {
	archive := yamlArchive(b)
	b.SetBytes(64 << 20)
	for b.Loop() {
		_, err := Verify(b.Context(), strings.NewReader(archive), Limits{}, nil)
		must(b, err)
	}
}

func BenchmarkCanonicalize(b *testing.B) {
	archive := yamlArchive(b)
	b.SetBytes(64 << 20)
	for b.Loop() {
		_, err := Canonicalize(b.Context(), io.Discard, strings.NewReader(archive), Options{Scratch: b.TempDir()})
		must(b, err)
	}
}

func yamlArchive(b *testing.B) string {
	var out strings.Builder
	_, err := Pack(b.Context(), &out, yamlTree(b), "", Limits{})
	must(b, err)
	return out.String()
}
