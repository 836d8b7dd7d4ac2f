// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// archiveFigures runs the benchmark of package tarball in a process of its own, so that the CPU seconds
// are those of packing alone.
func archiveFigures(t *testing.T) []figure {
	t.Helper()
	times := rounds(t, archiveRounds)
	args := []string{"test", "-run=^$", "-bench=^BenchmarkYAML$", "-benchtime=1x", "-count=" + strconv.Itoa(times), "rukpak.io/apiserver/pkg/tarball"}
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	metrics := benchmarkMetrics(t, out)
	for _, unit := range []string{"cpu-s/pack", "cpu-s/standard", "packed-%", "standard-%"} {
		if len(metrics[unit]) != times {
			t.Fatalf("%d values of %s, not %d:\n%s", len(metrics[unit]), unit, times, out)
		}
	}
	const standard = "archive/tar + compress/gzip at its default level"
	return []figure{
		compared("archive of 64 MiB YAML in 2,000 files, per CPU second", "MB/s", rates(metrics["cpu-s/pack"]), standard, rates(metrics["cpu-s/standard"]), "≥ 4"),
		compared("its size, of the input's", "%", metrics["packed-%"], standard, metrics["standard-%"], ""),
	}
}

// rates turns seconds for 64 MiB into MB/s.
func rates(seconds []float64) []float64 {
	r := make([]float64, len(seconds))
	for i, s := range seconds {
		r[i] = (64 << 20) / 1e6 / s
	}
	return r
}

// benchmarkMetrics reads the lines of benchmarks: their name, the number of runs, then values with their units.
func benchmarkMetrics(t *testing.T, output []byte) map[string][]float64 {
	t.Helper()
	metrics := map[string][]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(output)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(words); i += 2 {
			v, err := strconv.ParseFloat(words[i], 64)
			if err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			metrics[words[i+1]] = append(metrics[words[i+1]], v)
		}
	}
	return metrics
}
