// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// promtoolVariable is where promtool is, which `make alerts` builds. Without it, as in `make test`, what follows is skipped: the
// other tests of this package read every expression, and hold the unit tests of the alerts against the alerts, but run none.
const promtoolVariable = "RUKPAK_PROMTOOL"

// TestPromtool has Prometheus itself read the rules and the queries of the dashboard, and run the unit tests of the alerts.
func TestPromtool(t *testing.T) {
	promtool := os.Getenv(promtoolVariable)
	if promtool == "" {
		t.Skipf("%s is not set: `make alerts` builds promtool, which takes minutes", promtoolVariable)
	}
	folder := t.TempDir()
	tests, err := os.ReadFile("alerts.test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"rules.yaml": ruleFile(t), "alerts.test.yaml": tests, "dashboard.yaml": dashboardRules(t)} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"},
		{"check", "rules", "dashboard.yaml"},
		{"test", "rules", "alerts.test.yaml"},
	} {
		command := exec.CommandContext(t.Context(), promtool, args...)
		command.Dir = folder
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// ruleFile is what Prometheus itself reads of rules.yaml.
func ruleFile(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "artifacts/monitoring/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var object struct{ Spec json.RawMessage }
	if err := yaml.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	return object.Spec
}

// dashboardRules is a rule file with the queries of the dashboard, each as a recording rule.
func dashboardRules(t *testing.T) []byte {
	t.Helper()
	var rules []map[string]string
	for _, p := range dashboard(t) {
		for _, target := range p.Targets {
			// Grafana puts in the interval, and the time that is shown.
			expr := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h").Replace(target.Expr)
			rules = append(rules, map[string]string{"record": fmt.Sprintf("panel:query:%d", len(rules)), "expr": expr})
		}
	}
	if len(rules) == 0 {
		t.Fatal("the dashboard has no query")
	}
	file, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	return file
}
