// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// spread sums up the repetitions of one measurement.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Count  int     `json:"count"`
}

// over sums up values, of which there is at least one.
func over(values []float64) spread {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1], Count: n}
}

// least is the smallest of values, of which there is at least one.
func least(values []float64) float64 { return slices.Min(values) }

// percentile is the value of which so many percent are not larger, by the nearest rank.
func percentile(values []float64, percent int) float64 {
	v := slices.Sorted(slices.Values(values))
	return v[max((len(v)*percent+99)/100, 1)-1]
}

func (s spread) String() string {
	if s.Min == s.Max {
		return number(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", number(s.Median), number(s.Min), number(s.Max))
}

// number prints three digits that count.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// figure is one line of the table: ours, and what it is compared with.
type figure struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Ours   spread  `json:"ours"`
	Than   string  `json:"comparedWith,omitempty"`
	Theirs *spread `json:"theirs,omitempty"`
	// Ratio is that of the values of one round, ours to theirs.
	Ratio *spread `json:"ratio,omitempty"`
	Goal  string  `json:"goal,omitempty"`
}

// compared makes a figure of pairs of values, each pair of one round.
func compared(name, unit string, ours []float64, than string, theirs []float64, goal string) figure {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / theirs[i]
	}
	b, ratio := over(theirs), over(ratios)
	return figure{Name: name, Unit: unit, Ours: over(ours), Than: than, Theirs: &b, Ratio: &ratio, Goal: goal}
}

// lateRounds is how many rounds it takes until the 95th percentile is not simply the largest value.
const lateRounds = 20

// late makes a figure of the 95th percentiles of two sides, which calls the largest values by their name when there are too few.
func late(name, unit string, ours []float64, than string, theirs []float64) figure {
	if len(ours) < lateRounds || len(theirs) < lateRounds {
		name += ", max"
	} else {
		name += ", p95"
	}
	at := func(v float64, count int) spread { return spread{Median: v, Min: v, Max: v, Count: count} }
	a, b := percentile(ours, 95), percentile(theirs, 95)
	theirs95, ratio := at(b, len(theirs)), at(a/b, len(ours))
	return figure{Name: name, Unit: unit, Ours: at(a, len(ours)), Than: than, Theirs: &theirs95, Ratio: &ratio}
}

func TestLateNamesWhatItIs(t *testing.T) {
	for count, want := range map[int]string{1: "x, max", 5: "x, max", 19: "x, max", 20: "x, p95", 40: "x, p95"} {
		values := make([]float64, count)
		for i := range values {
			values[i] = float64(i + 1)
		}
		f := late("x", "s", values, "y", values)
		if largest := f.Ours.Median == float64(count); f.Name != want || largest != (want == "x, max") {
			t.Errorf("of %d values it is %q: %v", count, f.Name, f.Ours)
		}
	}
}

// report collects the figures of a run.
type report struct {
	t       *testing.T
	Time    time.Time `json:"time"`
	CPUs    int       `json:"cpus"`
	Go      string    `json:"go"`
	Before  string    `json:"loadBefore"`
	After   string    `json:"loadAfter"`
	Figures []figure  `json:"figures"`
}

func newReport(t *testing.T) *report {
	return &report{t: t, Time: time.Now().UTC().Truncate(time.Second), CPUs: runtime.NumCPU(), Go: runtime.Version(), Before: load(t)}
}

// load is the load average of the last 1, 5 and 15 minutes.
func load(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(data))[:3], " ")
}

func (r *report) add(figures ...figure) { r.Figures = append(r.Figures, figures...) }

// finish prints the table. That of a run in which everything worked is kept as _output/results/bench.json.
func (r *report) finish() {
	r.After = load(r.t)
	fmt.Printf("\n%s, %d CPUs, %s; load average %s before, %s after\n", r.Time.Format(time.RFC3339), r.CPUs, r.Go, r.Before, r.After)
	fmt.Print("medians (smallest–largest); a ratio is ours to theirs in one round\n\n")
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "figure\tunit\tours\ttheirs\tratio\tgoal\ttimes\tcompared with")
	for _, f := range r.Figures {
		theirs, ratio := "", ""
		if f.Theirs != nil {
			theirs, ratio = f.Theirs.String(), f.Ratio.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", f.Name, f.Unit, f.Ours, theirs, ratio, f.Goal, f.Ours.Count, f.Than)
	}
	if err := w.Flush(); err != nil {
		r.t.Error(err)
	}
	fmt.Println()
	if r.t.Failed() {
		return
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		r.t.Fatal(err)
	}
	file := filepath.Join("..", "..", "_output", "results", "bench.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
		r.t.Fatal(err)
	}
}
