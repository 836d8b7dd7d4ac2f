// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

// roundsVariable says how often each side of a figure is measured, in place of what the figure needs to be steady.
const roundsVariable = "RUKPAK_BENCH_ROUNDS"

// How often each side of a figure is measured.
const (
	transferRounds = 7
	requestRounds  = 7
	archiveRounds  = 5
	podRounds      = 9
	sizeRounds     = 5
)

// rounds is how often to measure: as often as asked for, else as often as usual.
func rounds(t *testing.T, usual int) int {
	t.Helper()
	text := os.Getenv(roundsVariable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s: %q is no number of rounds", roundsVariable, text)
	}
	return n
}

func TestMain(m *testing.M) {
	if os.Getenv("KUBECONFIG") == "" {
		fmt.Fprintln(os.Stderr, "bench: KUBECONFIG is not set: `make bench` brings up a cluster and measures on it")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestFigures measures everything. A part alone, sooner; and what takes longer:
//
//	make bench TESTFLAGS='-run TestFigures/ready' RUKPAK_BENCH_ROUNDS=3
//	make bench-sizes
//	make bench-many
func TestFigures(t *testing.T) {
	r := newReport(t)
	s := begin(t)
	idle := s.residentMemory()
	t.Run("archive", func(t *testing.T) { r.add(archiveFigures(t)...) })
	t.Run("files", func(t *testing.T) { r.add(fileFigures(t)...) })
	t.Run("ready", func(t *testing.T) { r.add(s.in(t).readyFigures()...) })
	t.Run("sizes", func(t *testing.T) { r.add(s.in(t).sizeFigures()...) })
	t.Run("many", func(t *testing.T) { r.add(s.in(t).manyFigures()...) })
	t.Run("queue", func(t *testing.T) { r.add(s.in(t).queueFigures()...) })
	t.Run("idle", func(t *testing.T) { r.add(s.in(t).idleFigures()...) })
	t.Run("content", func(t *testing.T) {
		s := s.in(t)
		bare := s.startBare()
		large := s.upload("large", largeSize)
		small := s.upload("small", smallSize)
		t.Run("large", func(t *testing.T) { r.add(s.in(t).transferFigures(large, bare)...) })
		t.Run("small", func(t *testing.T) { r.add(s.in(t).requestFigures(small, bare)...) })
		t.Run("memory", func(t *testing.T) { r.add(s.in(t).memoryFigures(large, idle)...) })
	})
	r.finish()
}
