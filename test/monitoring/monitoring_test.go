// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const root = "../.."

func table(t *testing.T) map[string]Metric {
	t.Helper()
	found, err := Table(filepath.Join(root, "docs/metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// metricName is a name of a metric of ours, in a string literal of its own.
var metricName = regexp.MustCompile(`^rukpak_[a-z0-9]+(_[a-z0-9]+)*$`)

// notMetrics are literals that look like one.
var notMetrics = []string{"rukpak_unpack"} // the name of a queue

// defined are the names of metrics in the source.
func defined(t *testing.T) []string {
	t.Helper()
	found := map[string]struct{}{}
	err := filepath.WalkDir(filepath.Join(root, "pkg"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(gotoken.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != gotoken.STRING {
				return true
			}
			if s, err := strconv.Unquote(literal.Value); err == nil && metricName.MatchString(s) && !slices.Contains(notMetrics, s) {
				found[s] = struct{}{}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(found))
}

// TestTheTableHasAllMetrics needs names that stand whole in the source, so that people find them, too.
func TestTheTableHasAllMetrics(t *testing.T) {
	documented := table(t)
	names := defined(t)
	for _, n := range names {
		if _, ok := documented[n]; !ok {
			t.Errorf("docs/metrics.md lacks %s", n)
		}
	}
	for n := range documented {
		if !slices.Contains(names, n) {
			t.Errorf("docs/metrics.md has %s, and the source does not", n)
		}
	}
	if len(names) < 30 {
		t.Errorf("only %d metrics were found", len(names))
	}
}

// others are metrics of libraries, with the labels that may be asked for.
var others = map[string][]string{
	"workqueue_depth":               {"name"},
	"process_resident_memory_bytes": nil,
	"process_cpu_seconds_total":     nil,
	"process_start_time_seconds":    nil,
	"up":                            nil, // of Prometheus itself, for each target
}

// scraped are the labels that Prometheus adds.
var scraped = []string{"instance", "job", "pod"}

// check complains about metrics and labels that there are not. Recorded are the names of recording rules, with their labels.
func check(documented map[string]Metric, recorded map[string][]string, expr string) []error {
	q, err := Parse(expr)
	if err != nil {
		return []error{err}
	}
	var errs []error
	var known []string
	for _, s := range q.Selectors {
		labels, ok := recorded[s.Name]
		if !ok {
			labels, ok = labelsOf(documented, s.Name)
		}
		if !ok {
			errs = append(errs, fmt.Errorf("there is no metric %s", s.Name))
			continue
		}
		known = append(known, labels...)
		for _, l := range s.Labels {
			if !slices.Contains(labels, l) {
				errs = append(errs, fmt.Errorf("%s has no label %s", s.Name, l))
			}
		}
	}
	for _, l := range q.Grouped {
		if !slices.Contains(known, l) {
			errs = append(errs, fmt.Errorf("no metric of %q has the label %s", expr, l))
		}
	}
	if len(q.Selectors) == 0 {
		errs = append(errs, fmt.Errorf("%q asks for no metric", expr))
	}
	return errs
}

func labelsOf(documented map[string]Metric, name string) ([]string, bool) {
	if labels, ok := others[name]; ok {
		return append(slices.Clone(labels), scraped...), true
	}
	if m, ok := documented[name]; ok && m.Type != "histogram" {
		return append(slices.Clone(m.Labels), scraped...), true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && documented[base].Type == "histogram" {
			labels := append(slices.Clone(documented[base].Labels), scraped...)
			if suffix == "_bucket" {
				labels = append(labels, "le")
			}
			return labels, true
		}
	}
	return nil, false
}

// rules are those of artifacts/monitoring/rules.yaml.
type rules struct {
	Spec struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Record       string
				Expr, For           string
				Labels, Annotations map[string]string
			}
		}
	}
}

var (
	labelInText = regexp.MustCompile(`\$labels\.([a-z_]+)`)
	duration    = regexp.MustCompile(`^[0-9]+[smhd]$`)
)

func readRules(t *testing.T) rules {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "artifacts/monitoring/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file rules
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	return file
}

// recordedName is a name as Prometheus recommends it: the labels that are left, the metric, and what was done.
var recordedName = regexp.MustCompile(`^([a-z_]+):(rukpak_[a-z_]+):([a-z]+)([0-9]+[mhd])?$`)

// recordings are the recording rules, by name.
func recordings(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, group := range readRules(t).Spec.Groups {
		for _, r := range group.Rules {
			if r.Record != "" {
				found[r.Record] = r.Expr
			}
		}
	}
	if len(found) == 0 {
		t.Fatal("nothing is recorded")
	}
	return found
}

// recordedLabels are the labels of what is recorded. Each expression says them itself, at its beginning.
func recordedLabels(t *testing.T) map[string][]string {
	t.Helper()
	labels := map[string][]string{}
	for name, expr := range recordings(t) {
		match := aggregation.FindStringSubmatch(expr)
		if match == nil {
			t.Fatalf("%s: the expression does not begin with an aggregation by labels", name)
		}
		labels[name] = strings.Split(match[1], ", ")
	}
	return labels
}

var aggregation = regexp.MustCompile(`^[a-z]+ by \(([a-z, ]+)\) \(`)

// growth is what is recorded of a counter: all of these rules are of one pattern.
const growth = `sum by (LABELS) (
  max_over_time(METRIC_total[TIME]) unless last_over_time(METRIC_total[5m] offset TIME)
    unless max_over_time(METRIC_total[TIME]) < increase(METRIC_total[TIME])
    and on (job, instance) job_instance:rukpak_past:knownTIME
  or increase(METRIC_total[TIME]))
`

func TestRecordings(t *testing.T) {
	documented, labels, asked := table(t), recordedLabels(t), map[string]bool{}
	for _, group := range readRules(t).Spec.Groups {
		for _, r := range group.Rules {
			q, _ := Parse(r.Expr)
			for _, s := range q.Selectors {
				asked[s.Name] = true
			}
		}
	}
	for name, expr := range recordings(t) {
		for _, err := range check(documented, labels, expr) {
			t.Errorf("%s: %v", name, err)
		}
		match := recordedName.FindStringSubmatch(name)
		if match == nil || match[1] != strings.Join(labels[name], "_") {
			t.Errorf("%s is not named by its labels %q, its metric, and what was done", name, labels[name])
			continue
		}
		if !asked[name] {
			t.Errorf("nobody asks for %s", name)
		}
		want := strings.NewReplacer("LABELS", strings.Join(labels[name], ", "), "METRIC", match[2], "TIME", match[4]).Replace(growth)
		if match[3] == "increase" && expr != want {
			t.Errorf("%s is\n%s, want\n%s", name, expr, want)
		}
	}
}

func TestAlerts(t *testing.T) {
	documented, recorded := table(t), recordedLabels(t)
	file := readRules(t)
	runbook, err := os.ReadFile(filepath.Join(root, "docs/alerts.md"))
	if err != nil {
		t.Fatal(err)
	}
	var alerts []string
	for _, group := range file.Spec.Groups {
		for _, r := range group.Rules {
			if r.Record != "" {
				continue
			}
			alerts = append(alerts, r.Alert)
			for _, err := range check(documented, recorded, r.Expr) {
				t.Errorf("%s: %v", r.Alert, err)
			}
			if r.For != "" && !duration.MatchString(r.For) {
				t.Errorf("%s: for: %q is no duration", r.Alert, r.For)
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
				t.Errorf("%s: severity is %q", r.Alert, r.Labels["severity"])
			}
			if want := "docs/alerts.md#" + strings.ToLower(r.Alert); r.Annotations["runbook"] != want {
				t.Errorf("%s: runbook is %q, want %q", r.Alert, r.Annotations["runbook"], want)
			}
			q, _ := Parse(r.Expr)
			for _, match := range labelInText.FindAllStringSubmatch(r.Annotations["summary"], -1) {
				if !slices.Contains(q.Grouped, match[1]) {
					t.Errorf("%s: the summary has the label %s, and the expression has not", r.Alert, match[1])
				}
			}
		}
	}
	var headings []string
	for _, match := range regexp.MustCompile(`(?m)^## (Rukpak\w+)$`).FindAllStringSubmatch(string(runbook), -1) {
		headings = append(headings, match[1])
	}
	slices.Sort(alerts)
	slices.Sort(headings)
	if !slices.Equal(alerts, headings) || len(alerts) == 0 {
		t.Errorf("docs/alerts.md is about %q, and the alerts are %q", headings, alerts)
	}
}

func TestDashboard(t *testing.T) {
	documented, recorded := table(t), recordedLabels(t)
	ids := map[int]bool{}
	for _, p := range dashboard(t) {
		if ids[p.ID] {
			t.Errorf("two panels have the number %d", p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			for _, err := range check(documented, recorded, target.Expr) {
				t.Errorf("%s: %v", p.Title, err)
			}
		}
	}
	if len(ids) < 10 {
		t.Errorf("only %d panels", len(ids))
	}
}

func TestParse(t *testing.T) {
	for expr, want := range map[string]Query{
		`a > 1`: {Selectors: []Selector{{Name: "a"}}},
		`sum by (x, y) (rate(a_total{b="c",d=~"e|f"}[5m])) / on (x) group_left (z) b`: {
			Selectors: []Selector{{"a_total", []string{"b", "d"}}, {Name: "b"}}, Grouped: []string{"x", "y", "x", "z"}},
		"sum(a) without (x)\n  unless max(increase(b[30m])) > 0 or vector(0)": {Selectors: []Selector{{Name: "a"}, {Name: "b"}}},
		`time() - a{x="(}"} < 14 * 86400`:                                     {Selectors: []Selector{{"a", []string{"x"}}}},
		`rate(a[$__rate_interval])`:                                           {Selectors: []Selector{{Name: "a"}}},
	} {
		got, err := Parse(expr)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", expr, got, err, want)
		}
	}
	for _, expr := range []string{"sum(a", "sum(a))", "{x=\"y\"}", "a{x=\"y\"", "sum by x (a)"} {
		if got, err := Parse(expr); err == nil {
			t.Errorf("%s is taken for %+v", expr, got)
		}
	}
}

func TestCheckFindsWhatThereIsNot(t *testing.T) {
	documented := map[string]Metric{"rukpak_a": {"rukpak_a", "gauge", []string{"x"}}, "rukpak_h": {"rukpak_h", "histogram", []string{"x"}}}
	recorded := map[string][]string{"x:rukpak_a:sum": {"x"}}
	for expr, complaints := range map[string]int{
		`rukpak_a{x="1"}`: 0, `rukpak_b`: 1, `rukpak_a{y="1"}`: 1, `sum by (y) (rukpak_a)`: 1, `sum by (x) (rukpak_a)`: 0,
		`sum by (le) (rukpak_h_bucket)`: 0, `sum by (le) (rukpak_h_sum)`: 1, `rukpak_h`: 1, `rukpak_a_bucket`: 1, `1 + 1`: 1,
		`x:rukpak_a:sum{x="1"}`: 0, `x:rukpak_b:sum`: 1, `x:rukpak_a:sum{y="1"}`: 1, `sum by (instance) (x:rukpak_a:sum)`: 1,
		`max_over_time(up[5m] offset 1d) == 1`: 0, `process_start_time_seconds{x="1"}`: 1,
	} {
		if got := check(documented, recorded, expr); len(got) != complaints {
			t.Errorf("%s: %v", expr, got)
		}
	}
}
