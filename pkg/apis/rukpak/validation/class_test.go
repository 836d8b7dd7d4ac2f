// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak"
)

func class() *rukpak.ProvisionerClass {
	return &rukpak.ProvisionerClass{
		ObjectMeta: metav1.ObjectMeta{Name: "plain", ResourceVersion: "1"}, Provisioner: "rukpak.io/plain", Store: "default",
		Unpack: &rukpak.UnpackPolicy{PodTemplate: &rukpak.UnpackPodTemplate{}}, Limits: &rukpak.ContentLimits{},
	}
}

// rule is a change of a good class, and what it makes wrong.
type rule struct {
	change func(*rukpak.ProvisionerClass)
	want   []string
}

func check(t *testing.T, rules map[string]rule) {
	t.Helper()
	for name, test := range rules {
		t.Run(name, func(t *testing.T) {
			c := class()
			test.change(c)
			stores := sets.New("default", "bucket")
			if got := fieldsOf(Class(c, stores)); !slices.Equal(got, test.want) {
				t.Errorf("create: got %q, want %q", got, test.want)
			}
			if got := fieldsOf(ClassUpdate(c, c.DeepCopy(), stores)); !slices.Equal(got, test.want) {
				t.Errorf("update: got %q, want %q", got, test.want)
			}
		})
	}
}

func TestClass(t *testing.T) {
	history := func(n int32) func(*rukpak.ProvisionerClass) {
		return func(c *rukpak.ProvisionerClass) { c.RevisionHistoryLimit = &n }
	}
	compressed := func(s string) func(*rukpak.ProvisionerClass) {
		return func(c *rukpak.ProvisionerClass) { c.Limits.CompressedBytes = ptr.To(resource.MustParse(s)) }
	}
	bytes := func(s string) func(*rukpak.ProvisionerClass) {
		return func(c *rukpak.ProvisionerClass) { c.Limits.Bytes = ptr.To(resource.MustParse(s)) }
	}
	files := func(n int64) func(*rukpak.ProvisionerClass) {
		return func(c *rukpak.ProvisionerClass) { c.Limits.Files = &n }
	}
	check(t, map[string]rule{
		"good":        {change: func(*rukpak.ProvisionerClass) {}},
		"the least":   {change: func(c *rukpak.ProvisionerClass) { c.Unpack, c.Limits = nil, nil }},
		"a bad name":  {change: func(c *rukpak.ProvisionerClass) { c.Name = "A" }, want: []string{"metadata.name FieldValueInvalid"}},
		"a namespace": {change: func(c *rukpak.ProvisionerClass) { c.Namespace = "team" }, want: []string{"metadata.namespace FieldValueForbidden"}},
		"another's provisioner": {change: func(c *rukpak.ProvisionerClass) {
			c.Provisioner, c.Parameters = "Example.com/mine", map[string]string{"any": "thing"}
		}},
		"no provisioner":                 {change: func(c *rukpak.ProvisionerClass) { c.Provisioner = "" }}, // a tag of the type says required
		"a provisioner that cannot be":   {change: func(c *rukpak.ProvisionerClass) { c.Provisioner = "a/b/c" }, want: []string{"provisioner FieldValueInvalid"}},
		"a provisioner of no domain":     {change: func(c *rukpak.ProvisionerClass) { c.Provisioner = "mine" }, want: []string{"provisioner FieldValueInvalid"}},
		"a misspelt built-in one":        {change: func(c *rukpak.ProvisionerClass) { c.Provisioner = "rukpak.io/plian" }, want: []string{"provisioner FieldValueInvalid"}},
		"parameters of a built-in one":   {change: func(c *rukpak.ProvisionerClass) { c.Parameters = map[string]string{"a": "b"} }, want: []string{"parameters FieldValueInvalid"}},
		"a store that is not there":      {change: func(c *rukpak.ProvisionerClass) { c.Store = "attic" }, want: []string{"store FieldValueNotSupported"}},
		"no history":                     {change: history(0)},
		"the longest history":            {change: history(100)},
		"a history that is too long":     {change: history(101), want: []string{"revisionHistoryLimit FieldValueInvalid"}},
		"a history of less than nothing": {change: history(-1), want: []string{"revisionHistoryLimit FieldValueInvalid"}},
		"limits":                         {change: func(c *rukpak.ProvisionerClass) { compressed("1")(c); bytes("1Gi")(c); files(1)(c) }},
		"no compressed bytes":            {change: compressed("0"), want: []string{"limits.compressedBytes FieldValueInvalid"}},
		"negative bytes":                 {change: bytes("-1"), want: []string{"limits.bytes FieldValueInvalid"}},
		"a part of a byte":               {change: bytes("100m"), want: []string{"limits.bytes FieldValueInvalid"}},
		"bytes and a part of one":        {change: compressed("1.5"), want: []string{"limits.compressedBytes FieldValueInvalid"}},
		"a part of a larger unit":        {change: compressed("1.5Ki")},
		"the most bytes":                 {change: bytes("8Ei")},
		"no files":                       {change: files(0), want: []string{"limits.files FieldValueInvalid"}},
	})
}

func TestUnpackPolicy(t *testing.T) {
	timeout := func(n int32) func(*rukpak.ProvisionerClass) {
		return func(c *rukpak.ProvisionerClass) { c.Unpack.TimeoutSeconds = &n }
	}
	backoff := func(n int32) func(*rukpak.ProvisionerClass) {
		return func(c *rukpak.ProvisionerClass) { c.Unpack.BackoffLimit = &n }
	}
	policies := func(p ...corev1.PullPolicy) func(*rukpak.ProvisionerClass) {
		return func(c *rukpak.ProvisionerClass) { c.Unpack.AllowedPullPolicies = p }
	}
	check(t, map[string]rule{
		"no template":          {change: func(c *rukpak.ProvisionerClass) { c.Unpack.PodTemplate = nil }},
		"a second":             {change: timeout(1)},
		"a day":                {change: timeout(86400)},
		"no time":              {change: timeout(0), want: []string{"unpack.timeoutSeconds FieldValueInvalid"}},
		"more than a day":      {change: timeout(86401), want: []string{"unpack.timeoutSeconds FieldValueInvalid"}},
		"no failure":           {change: backoff(0)},
		"many failures":        {change: backoff(100)},
		"too many":             {change: backoff(101), want: []string{"unpack.backoffLimit FieldValueInvalid"}},
		"less than none":       {change: backoff(-1), want: []string{"unpack.backoffLimit FieldValueInvalid"}},
		"all policies":         {change: policies("Always", "IfNotPresent", "Never")},
		"an unknown policy":    {change: policies("Always", "never"), want: []string{"unpack.allowedPullPolicies[1] FieldValueNotSupported"}},
		"a policy in it twice": {change: policies("Always", "Never", "Always"), want: []string{"unpack.allowedPullPolicies[2] FieldValueDuplicate"}},
	})
}

func TestPodTemplate(t *testing.T) {
	template := func(f func(*rukpak.UnpackPodTemplate)) func(*rukpak.ProvisionerClass) {
		return func(c *rukpak.ProvisionerClass) { f(c.Unpack.PodTemplate) }
	}
	const at = "unpack.podTemplate."
	user := func(n int64) func(*rukpak.ProvisionerClass) {
		return template(func(p *rukpak.UnpackPodTemplate) { p.RunAsUser = &n })
	}
	resources := func(request, limit string) func(*rukpak.ProvisionerClass) {
		return template(func(p *rukpak.UnpackPodTemplate) {
			p.Resources = &rukpak.ResourceRequirements{
				Requests: map[corev1.ResourceName]resource.Quantity{"memory": resource.MustParse(request)},
				Limits:   map[corev1.ResourceName]resource.Quantity{"memory": resource.MustParse(limit), "example.com/card": resource.MustParse("1")},
			}
		})
	}
	check(t, map[string]rule{
		"all of it": {change: template(func(p *rukpak.UnpackPodTemplate) {
			*p = rukpak.UnpackPodTemplate{
				Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"example.com/note": "any thing"},
				ImagePullSecrets: []rukpak.LocalObjectReference{{Name: "a"}}, NodeSelector: map[string]string{"disk": "ssd"},
				PriorityClassName: "low", RuntimeClassName: ptr.To("kata"), RunAsUser: ptr.To[int64](1000),
			}
		})},
		"a bad label":           {change: template(func(p *rukpak.UnpackPodTemplate) { p.Labels = map[string]string{"a": "b c"} }), want: []string{at + "labels FieldValueInvalid"}},
		"a label of ours":       {change: template(func(p *rukpak.UnpackPodTemplate) { p.Labels = map[string]string{"rukpak.io/bundle-uid": "x"} }), want: []string{at + "labels[rukpak.io/bundle-uid] FieldValueForbidden"}},
		"a bad annotation":      {change: template(func(p *rukpak.UnpackPodTemplate) { p.Annotations = map[string]string{"a b": "c"} }), want: []string{at + "annotations FieldValueInvalid"}},
		"an annotation of ours": {change: template(func(p *rukpak.UnpackPodTemplate) { p.Annotations = map[string]string{"rukpak.io/attempt": "x"} }), want: []string{at + "annotations[rukpak.io/attempt] FieldValueForbidden"}},
		"a bad node selector":   {change: template(func(p *rukpak.UnpackPodTemplate) { p.NodeSelector = map[string]string{"a b": "c"} }), want: []string{at + "nodeSelector FieldValueInvalid"}},
		"a secret twice": {change: template(func(p *rukpak.UnpackPodTemplate) {
			p.ImagePullSecrets = []rukpak.LocalObjectReference{{Name: "a"}, {Name: "a"}}
		}), want: []string{at + "imagePullSecrets[1].name FieldValueDuplicate"}},
		"a bad priority class":     {change: template(func(p *rukpak.UnpackPodTemplate) { p.PriorityClassName = "A" }), want: []string{at + "priorityClassName FieldValueInvalid"}},
		"a bad runtime class":      {change: template(func(p *rukpak.UnpackPodTemplate) { p.RuntimeClassName = ptr.To("") }), want: []string{at + "runtimeClassName FieldValueInvalid"}},
		"root":                     {change: user(0), want: []string{at + "runAsUser FieldValueInvalid"}},
		"a negative user":          {change: user(-1), want: []string{at + "runAsUser FieldValueInvalid"}},
		"a user that is too large": {change: user(1 << 31), want: []string{at + "runAsUser FieldValueInvalid"}},
		"a user from the cluster":  {change: template(func(p *rukpak.UnpackPodTemplate) { p.UserFrom = rukpak.UserFromCluster })},
		"a user from elsewhere":    {change: template(func(p *rukpak.UnpackPodTemplate) { p.UserFrom = "Image" }), want: []string{at + "userFrom FieldValueNotSupported"}},
		"two sources of the user": {change: template(func(p *rukpak.UnpackPodTemplate) {
			p.RunAsUser, p.UserFrom = ptr.To[int64](1000), rukpak.UserFromCluster
		}), want: []string{at + "runAsUser FieldValueForbidden"}},
		"nodes of an architecture": {change: template(func(p *rukpak.UnpackPodTemplate) { p.NodeSelector = map[string]string{"kubernetes.io/arch": "arm64"} })},
		"nodes of a misspelt one":  {change: template(func(p *rukpak.UnpackPodTemplate) { p.NodeSelector = map[string]string{"kubernetes.io/arch": "aarch64"} }), want: []string{at + "nodeSelector[kubernetes.io/arch] FieldValueInvalid"}},
		"resources":                {change: resources("64Mi", "64Mi")},
		"more than the limit":      {change: resources("65Mi", "64Mi"), want: []string{at + "resources.requests[memory] FieldValueInvalid"}},
		"a negative request":       {change: resources("-1", "64Mi"), want: []string{at + "resources.requests[memory] FieldValueInvalid"}},
		"a resource that cannot be": {change: template(func(p *rukpak.UnpackPodTemplate) {
			p.Resources = &rukpak.ResourceRequirements{Limits: map[corev1.ResourceName]resource.Quantity{"a b": resource.MustParse("1")}}
		}), want: []string{at + "resources.limits[a b] FieldValueInvalid"}},
	})
}

func TestTolerations(t *testing.T) {
	one := func(toleration rukpak.Toleration) func(*rukpak.ProvisionerClass) {
		return func(c *rukpak.ProvisionerClass) {
			c.Unpack.PodTemplate.Tolerations = []rukpak.Toleration{{Operator: "Exists"}, toleration}
		}
	}
	const at = "unpack.podTemplate.tolerations[1]."
	check(t, map[string]rule{
		"everything":                    {change: one(rukpak.Toleration{Operator: "Exists"})},
		"a value":                       {change: one(rukpak.Toleration{Key: "example.com/dedicated", Operator: "Equal", Value: "x", Effect: "NoSchedule"})},
		"a value, by default":           {change: one(rukpak.Toleration{Key: "a", Value: "x"})},
		"for a time":                    {change: one(rukpak.Toleration{Key: "a", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: ptr.To[int64](3)})},
		"a bad key":                     {change: one(rukpak.Toleration{Key: "a b", Operator: "Exists"}), want: []string{at + "key FieldValueInvalid"}},
		"no key":                        {change: one(rukpak.Toleration{Value: "x"}), want: []string{at + "operator FieldValueInvalid"}},
		"a value where one need not be": {change: one(rukpak.Toleration{Key: "a", Operator: "Exists", Value: "x"}), want: []string{at + "value FieldValueInvalid"}},
		"a value that cannot be":        {change: one(rukpak.Toleration{Key: "a", Value: "x y"}), want: []string{at + "value FieldValueInvalid"}},
		"an unknown operator":           {change: one(rukpak.Toleration{Key: "a", Operator: "In"}), want: []string{at + "operator FieldValueNotSupported"}},
		"an unknown effect":             {change: one(rukpak.Toleration{Key: "a", Operator: "Exists", Effect: "Maybe"}), want: []string{at + "effect FieldValueNotSupported"}},
		"for a time, without an effect": {change: one(rukpak.Toleration{Key: "a", Operator: "Exists", TolerationSeconds: ptr.To[int64](3)}), want: []string{at + "effect FieldValueInvalid"}},
	})
}
