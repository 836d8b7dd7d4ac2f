// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/testutil"

	"rukpak.io/apiserver/pkg/content/instance"
)

func TestClusterMark(t *testing.T) {
	for name, objects := range map[string][]runtime.Object{
		"there is none": nil,
		"there is one":  {&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: instanceObject, Namespace: "team"}, Data: map[string]string{instanceKey: "old"}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clusterMark{client: fake.NewClientset(objects...), namespace: "team"}
			before, err := c.ReadMark(t.Context())
			if err != nil || (len(before) > 0) != (len(objects) > 0) {
				t.Errorf("read %q, %v", before, err)
			}
			for _, mark := range []string{"first", "second"} {
				if err := c.WriteMark(t.Context(), []byte(mark)); err != nil {
					t.Fatal(err)
				}
				if got, err := c.ReadMark(t.Context()); err != nil || string(got) != mark {
					t.Errorf("wrote %q and read %q, %v", mark, got, err)
				}
			}
		})
	}
}

// Whoever makes the object at the same time is overtaken, not refused.
func TestClusterMarkIsMadeMeanwhile(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		object := a.(clienttesting.CreateAction).GetObject().(*corev1.ConfigMap).DeepCopy()
		object.Data[instanceKey] = "theirs"
		if err := client.Tracker().Add(object); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "configmaps"}, instanceObject)
	})
	c := &clusterMark{client: client, namespace: "team"}
	if err := c.WriteMark(t.Context(), []byte("mine")); err != nil {
		t.Fatal(err)
	}
	if got, err := c.ReadMark(t.Context()); err != nil || string(got) != "mine" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestClusterMarkThatCannotBeRead(t *testing.T) {
	resource := schema.GroupResource{Resource: "configmaps"}
	for name, test := range map[string]struct {
		answer error
		fails  bool
	}{
		"forbidden": {answer: apierrors.NewForbidden(resource, instanceObject, errors.New("no role"))},
		"away":      {answer: apierrors.NewInternalError(errors.New("away")), fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.answer })
			c := &clusterMark{client: client, namespace: "team"}
			if got, err := c.ReadMark(t.Context()); got != nil || (err != nil) != test.fails {
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
}

func TestInstanceMetric(t *testing.T) {
	r := newInstanceReport("")
	wrong := &instance.Disagreement{Token: "0123456789abcdef", Findings: []instance.Finding{
		{Place: "cluster", Reason: instance.EtcdOlder}, {Place: "store/default", Reason: instance.Foreign},
	}}
	const name = "rukpak_instance_mismatch"
	const head = "# HELP " + name + " [ALPHA] 1 for each place that does not fit to etcd, or of which this is not known yet. While there is one, requests are refused.\n# TYPE " + name + " gauge\n"
	for _, step := range []struct {
		verdict error
		want    string
	}{
		{&instance.Unverified{Err: http.ErrServerClosed}, name + "{place=\"\",reason=\"Unverified\"} 1\n"},
		{wrong, name + "{place=\"cluster\",reason=\"EtcdOlder\"} 1\n" + name + "{place=\"store/default\",reason=\"Foreign\"} 1\n"},
		{nil, ""},
	} {
		r.observe(step.verdict, nil)
		want := step.want
		if want != "" {
			want = head + want
		}
		if err := testutil.CollectAndCompare(r.metric, strings.NewReader(want), name); err != nil {
			t.Error(err)
		}
	}
}
