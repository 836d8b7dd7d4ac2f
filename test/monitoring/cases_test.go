// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// cases are the unit tests of the alerts, as promtool reads them.
type cases struct {
	Order []string `json:"group_eval_order"`
	Tests []struct {
		Name        string
		InputSeries []struct{ Series string } `json:"input_series"`
		Alerts      []struct {
			Name     string `json:"alertname"`
			Expected []struct {
				Labels      map[string]string `json:"exp_labels"`
				Annotations map[string]string `json:"exp_annotations"`
			} `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	}
}

// TestEveryAlertHasACase sees to it that promtool has each alert to fire once, with the labels that its rule gives it, and fed by
// series that the server has. Whether it does fire, `make alerts` says.
func TestEveryAlertHasACase(t *testing.T) {
	data, err := os.ReadFile("alerts.test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file cases
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	severities, groups := map[string]string{}, []string{}
	for _, group := range readRules(t).Spec.Groups {
		groups = append(groups, group.Name)
		for _, r := range group.Rules {
			if r.Alert != "" {
				severities[r.Alert] = r.Labels["severity"]
			}
		}
	}
	// Else promtool may look at an alert before what it asks for is recorded.
	if !slices.Equal(file.Order, groups) {
		t.Errorf("group_eval_order is %q, and the groups are %q", file.Order, groups)
	}
	documented, fires := table(t), map[string]bool{}
	for _, test := range file.Tests {
		for _, s := range test.InputSeries {
			for _, err := range check(documented, nil, s.Series) {
				t.Errorf("%s: %v", test.Name, err)
			}
		}
		for _, a := range test.Alerts {
			severity, known := severities[a.Name]
			if !known {
				t.Errorf("%s: there is no alert %s", test.Name, a.Name)
			}
			for _, expected := range a.Expected {
				fires[a.Name] = true
				if expected.Labels["severity"] != severity {
					t.Errorf("%s: %s is of severity %s, not %s", test.Name, a.Name, severity, expected.Labels["severity"])
				}
				if want := "docs/alerts.md#" + strings.ToLower(a.Name); expected.Annotations["runbook"] != want {
					t.Errorf("%s: the runbook of %s is %s", test.Name, a.Name, want)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(severities)) {
		if !fires[name] {
			t.Errorf("no case has %s fire", name)
		}
	}
}
