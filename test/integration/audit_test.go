// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"

	"k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	apiuser "k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Who takes the name of the server, as whoever may impersonate users can, is in the log like anybody, and so are the server's own
// reads and writes of content.
func TestNobodyReadsContentUnaudited(t *testing.T) {
	t.Parallel()
	rules, err := policy.LoadPolicyFromFile("../../artifacts/deploy/base/audit-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	evaluator := policy.NewPolicyRuleEvaluator(rules)
	server := &apiuser.DefaultInfo{Name: apiuser.APIServerUser, Groups: []string{apiuser.SystemPrivilegedGroup}}
	named := &apiuser.DefaultInfo{Name: apiuser.APIServerUser, Groups: []string{"team-a"}}
	for name, test := range map[string]struct {
		who         apiuser.Info
		subresource string
		want        audit.Level
	}{
		"a read under its name":     {named, "content", audit.LevelMetadata},
		"an upload under its name":  {named, "uploads", audit.LevelMetadata},
		"a bundle under its name":   {named, "", audit.LevelMetadata},
		"a read of its own":         {server, "content", audit.LevelMetadata},
		"a status that it writes":   {server, "status", audit.LevelNone},
		"a bundle that it looks at": {server, "", audit.LevelNone},
		"a status of somebody else": {&apiuser.DefaultInfo{Name: "jane"}, "status", audit.LevelMetadata},
	} {
		got := evaluator.EvaluatePolicyRule(authorizer.AttributesRecord{
			User: test.who, Verb: "get", Namespace: "team-a", APIGroup: "rukpak.io", APIVersion: "v1alpha1",
			Resource: "bundles", Subresource: test.subresource, Name: "app", ResourceRequest: true,
		})
		if got.Level != test.want {
			t.Errorf("%s: level %s, want %s", name, got.Level, test.want)
		}
	}
}
