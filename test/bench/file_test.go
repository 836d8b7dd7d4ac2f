// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// fileFigures runs the benchmarks of single files and of indexes, each in a process of its own, so that the CPU seconds are
// those of one thing alone.
func fileFigures(t *testing.T) []figure {
	t.Helper()
	times := rounds(t, archiveRounds)
	run := func(benchmark, pkg string, units ...string) map[string][]float64 {
		t.Helper()
		args := []string{"test", "-run=^$", "-bench=^" + benchmark + "$", "-benchtime=1x", "-count=" + strconv.Itoa(times), "rukpak.io/apiserver/pkg/" + pkg}
		out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		metrics := benchmarkMetrics(t, out)
		for _, unit := range units {
			if len(metrics[unit]) != times {
				t.Fatalf("%d values of %s, not %d:\n%s", len(metrics[unit]), unit, times, out)
			}
		}
		return metrics
	}
	file := run("BenchmarkFile", "registry/bundle/content", "ms/file", "ms/whole")
	build := run("BenchmarkBuild", "tarball/toc", "cpu-s/indexed", "cpu-s/verify")
	return []figure{
		compared("GET of a file of 20 KiB out of a bundle of 100 MiB", "ms", file["ms/file"], "GET of the bundle", file["ms/whole"], "≤ 0.02"),
		compared("checking an archive of 64 MiB of text and making its index", "CPU s", build["cpu-s/indexed"], "checking it alone", build["cpu-s/verify"], ""),
	}
}
