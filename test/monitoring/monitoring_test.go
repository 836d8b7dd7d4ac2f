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
}

// scraped are the labels that Prometheus adds.
var scraped = []string{"instance", "job", "pod"}

// check complains about metrics and labels that there are not.
func check(documented map[string]Metric, expr string) []error {
	q, err := Parse(expr)
	if err != nil {
		return []error{err}
	}
	var errs []error
	var known []string
	for _, s := range q.Selectors {
		labels, ok := labelsOf(documented, s.Name)
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
				Alert, Expr, For    string
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

func TestAlerts(t *testing.T) {
	documented := table(t)
	file := readRules(t)
	runbook, err := os.ReadFile(filepath.Join(root, "docs/alerts.md"))
	if err != nil {
		t.Fatal(err)
	}
	var alerts []string
	for _, group := range file.Spec.Groups {
		for _, r := range group.Rules {
			alerts = append(alerts, r.Alert)
			for _, err := range check(documented, r.Expr) {
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
	documented := table(t)
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
			for _, err := range check(documented, target.Expr) {
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
	for expr, complaints := range map[string]int{
		`rukpak_a{x="1"}`: 0, `rukpak_b`: 1, `rukpak_a{y="1"}`: 1, `sum by (y) (rukpak_a)`: 1, `sum by (x) (rukpak_a)`: 0,
		`sum by (le) (rukpak_h_bucket)`: 0, `sum by (le) (rukpak_h_sum)`: 1, `rukpak_h`: 1, `rukpak_a_bucket`: 1, `1 + 1`: 1,
	} {
		if got := check(documented, expr); len(got) != complaints {
			t.Errorf("%s: %v", expr, got)
		}
	}
}
