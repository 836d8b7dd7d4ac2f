// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/test/monitoring"
)

// newScraper is a user who may read the metrics of our server.
func newScraper(t *testing.T, namespace string) user {
	t.Helper()
	return newUserOf(t, namespace, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "scraper-"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	})
}

// metric sums the series of a metric of our server, all but those that have a label.
func metric(t *testing.T, w way, scraper user, name, without string) float64 {
	t.Helper()
	sum := 0.0
	body := w.do(t, http.MethodGet, "/metrics", scraper.token, nil).expect(t, http.StatusOK).body
	for line := range strings.Lines(string(body)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' || without != "" && strings.Contains(rest, without) {
			continue
		}
		sum += must(strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64))(t)
	}
	return sum
}

// TestMetricsAreThoseOfTheTable compares what is served with docs/metrics.md. That the table has all names is a test of
// package monitoring; here are the types and the labels, of what has a series by now.
func TestMetricsAreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	table := must(monitoring.Table(filepath.Join(shared.Root, "docs/metrics.md")))(t)
	s := store(t, "raw", noise("metrics", 1, 1000))
	create(t, s.namespace, imageBundle("image", "raw"))
	_, token := attempt(t, s.namespace, "image", 1)
	direct(t).do(t, http.MethodPut, contentPath(s.namespace, "image"), token, bytes.NewReader(canonical(t, noise("a", 1, 10)))).expect(t, http.StatusCreated)
	scraper := newScraper(t, s.namespace)
	seen := map[string]bool{}
	eventually(t, "metrics of the commit are there", func() string {
		body := direct(t).do(t, http.MethodGet, "/metrics", scraper.token, nil).expect(t, http.StatusOK).body
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families := must(parser.TextToMetricFamilies(bytes.NewReader(body)))(t)
		for name, family := range families {
			if !strings.HasPrefix(name, "rukpak_") {
				continue
			}
			seen[name] = true
			row, ok := table[name]
			if !ok || !strings.EqualFold(family.GetType().String(), row.Type) {
				t.Errorf("%s is a %s, and in the table %q", name, family.GetType(), row.Type)
			}
			for _, m := range family.GetMetric() {
				var labels []string
				for _, pair := range m.GetLabel() {
					labels = append(labels, pair.GetName())
				}
				want := slices.Sorted(slices.Values(row.Labels))
				if slices.Sort(labels); !slices.Equal(labels, want) {
					t.Errorf("%s has the labels %q, and in the table %q", name, labels, want)
				}
			}
		}
		for _, name := range []string{
			"rukpak_build_info", "rukpak_leader", "rukpak_unpack_stage_duration_seconds", "rukpak_unpack_attempt_duration_seconds",
			"rukpak_unpack_attempts_total", "rukpak_content_writes_total", "rukpak_content_store_bytes",
		} {
			if !seen[name] {
				return name + " is not there"
			}
		}
		return ""
	})
	if got := metric(t, direct(t), scraper, "rukpak_leader", ""); got != 1 {
		t.Errorf("rukpak_leader is %v", got)
	}
}
