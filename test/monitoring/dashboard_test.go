// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// panel is one of a dashboard of Grafana. A row that is folded has panels itself.
type panel struct {
	ID      int
	Type    string
	Title   string
	Targets []struct{ Expr string }
	Panels  []panel
}

// dashboard returns the panels of ours.
func dashboard(t *testing.T) []panel {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "artifacts/monitoring/dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	panels, err := panelsOf(data)
	if err != nil {
		t.Fatal(err)
	}
	return panels
}

// panelsOf reads the panels of a dashboard, with those of its rows.
func panelsOf(data []byte) ([]panel, error) {
	var file panel
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	return flat(file.Panels), nil
}

func flat(panels []panel) []panel {
	var all []panel
	for _, p := range panels {
		all = append(append(all, p), flat(p.Panels)...)
	}
	return all
}

func TestPanelsOfRowsAreFound(t *testing.T) {
	panels, err := panelsOf([]byte(`{"panels": [
		{"id": 1, "type": "row", "panels": [{"id": 2, "targets": [{"expr": "a"}]}]}, {"id": 3, "targets": [{"expr": "b"}]}
	]}`))
	if err != nil {
		t.Fatal(err)
	}
	var queries []string
	for _, p := range panels {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}
	if len(panels) != 3 || !slices.Equal(queries, []string{"a", "b"}) {
		t.Errorf("%d panels ask for %q", len(panels), queries)
	}
}
