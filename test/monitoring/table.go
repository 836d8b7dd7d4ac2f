// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package monitoring holds what is said about the metrics of the server against what the server has: the table in
// docs/metrics.md, the alerts and the dashboard in artifacts/monitoring.
package monitoring

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Metric is a row of the table.
type Metric struct {
	Name string
	// Type is counter, gauge or histogram, as in the text format of Prometheus.
	Type   string
	Labels []string
}

var (
	row   = regexp.MustCompile("^\\| `(rukpak_[a-z0-9_]+)` \\| (counter|gauge|histogram) \\|([^|]*)\\|")
	label = regexp.MustCompile("`([a-z_]+)`")
)

// Table reads the rows of docs/metrics.md. One that stands there twice is an error.
func Table(path string) (map[string]Metric, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	table := map[string]Metric{}
	for line := range strings.Lines(string(data)) {
		match := row.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		m := Metric{Name: match[1], Type: match[2]}
		for _, l := range label.FindAllStringSubmatch(match[3], -1) {
			m.Labels = append(m.Labels, l[1])
		}
		if _, twice := table[m.Name]; twice {
			return nil, fmt.Errorf("%s names %s twice", path, m.Name)
		}
		table[m.Name] = m
	}
	return table, nil
}
