// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package toc

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"rukpak.io/apiserver/pkg/tarball"
)

// cpuSeconds is what the process has used so far.
func cpuSeconds(b *testing.B) float64 {
	var usage syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}

// prose is 64 MiB of text in 2,000 files, which deflates to about a quarter.
func prose() []file {
	r := rand.New(rand.NewPCG(5, 6))
	words := make([]string, 3000)
	for i := range words {
		words[i] = strings.Repeat(string(rune('a'+r.IntN(26))), 1+r.IntN(3)) + fmt.Sprintf("%x", r.IntN(1<<16))
	}
	files := make([]file, 2000)
	for i := range files {
		var text strings.Builder
		for text.Len() < 32<<10 {
			text.WriteString(words[int(r.ExpFloat64()*300)%len(words)] + " ")
		}
		files[i] = file{name: fmt.Sprintf("dir-%02d/file-%04d", i%40, i), content: text.String()}
	}
	return files
}

// scraps is 64 MiB in 64,000 files of text.
func scraps() []file {
	var files []file
	for _, large := range prose() {
		for i := range 32 {
			files = append(files, file{name: fmt.Sprintf("%s-%02d", large.name, i), content: large.content[i<<10 : (i+1)<<10]})
		}
	}
	return files
}

// BenchmarkBuild checks an archive of 64 MiB of text with an index and without. Indexed-more-% is how much more CPU the first takes.
func BenchmarkBuild(b *testing.B) {
	for name, files := range map[string]func() []file{"2000": prose, "64000": scraps} {
		b.Run(name, func(b *testing.B) { benchmarkBuild(b, newMade(b, files()...)) })
	}
}

func benchmarkBuild(b *testing.B, m *made) {
	var without, with float64
	for b.Loop() {
		start := cpuSeconds(b)
		_, err := tarball.Verify(b.Context(), bytes.NewReader(m.archive), tarball.Limits{}, nil)
		must(b, err)
		between := cpuSeconds(b)
		builder, err := NewBuilder(b.TempDir())
		must(b, err)
		summary, err := tarball.VerifyIndexed(b.Context(), bytes.NewReader(m.archive), tarball.Options{Index: builder})
		must(b, err)
		_, _, err = builder.Finish(summary)
		must(b, err)
		must(b, builder.Close())
		without += between - start
		with += cpuSeconds(b) - between
	}
	b.ReportMetric(without/float64(b.N), "cpu-s/verify")
	b.ReportMetric(with/float64(b.N), "cpu-s/indexed")
	b.ReportMetric(100*(with/without-1), "indexed-more-%")
	b.ReportMetric(100*float64(len(m.index))/float64(len(m.archive)), "index-%")
}

// BenchmarkHundredThousandFiles looks up one of 100,000 files, lists one directory of 40 and lists all.
func BenchmarkHundredThousandFiles(b *testing.B) {
	m := newMade(b, many(100_000)...)
	b.Run("lookup", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			_, err := m.open(b).Lookup(b.Context(), m.entries[i*7919%len(m.entries)].Name)
			must(b, err)
		}
	})
	for name, recursive := range map[string]bool{"root": false, "all": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				must(b, m.open(b).List(b.Context(), "", "", recursive, func(*Entry) error { return nil }))
			}
		})
	}
	b.ReportMetric(float64(len(m.index))/100_000, "index-bytes/file")
}

// BenchmarkReadFile reads a file of 32 KiB out of an archive of 64 MiB.
func BenchmarkReadFile(b *testing.B) {
	m := newMade(b, prose()...)
	for i := 0; b.Loop(); i++ {
		x := m.open(b)
		e, err := x.Lookup(b.Context(), fmt.Sprintf("dir-%02d/file-%04d", i*7%40, i*7%2000))
		must(b, err)
		r, err := x.Read(b.Context(), opener(m.archive), e.Offset, e.Size)
		must(b, err)
		_, err = io.Copy(io.Discard, r)
		must(b, err)
		must(b, r.Close())
	}
}
