// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	rukpakfake "rukpak.io/apiserver/pkg/generated/clientset/versioned/fake"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

func TestDefaultClasses(t *testing.T) {
	mine := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Provisioner: "example.com/mine"}
	for name, test := range map[string]struct {
		classes []runtime.Object
		fail    string // the verb that fails once
		after   int    // how often it works before
		want    []string
	}{
		"none":                          {want: []string{"plain", "raw"}},
		"one":                           {classes: []runtime.Object{mine}, want: []string{"mine"}},
		"none, and no answer at first":  {fail: "list", want: []string{"plain", "raw"}},
		"none, and no making, at first": {fail: "create", want: []string{"plain", "raw"}},
		"none, and one could be made":   {fail: "create", after: 1, want: []string{"plain", "raw"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := rukpakfake.NewClientset(test.classes...)
				calls := 0
				maker := &classMaker{}
				if test.fail != "" {
					client.PrependReactor(test.fail, "provisionerclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
						calls++
						if calls <= test.after+1 && maker.ready(nil) == nil {
							t.Error("it is ready before its time")
						}
						return calls == test.after+1, nil, errors.New("not yet")
					})
				}
				if err := maker.run(t.Context(), client); err != nil {
					t.Fatal(err)
				}
				if err := maker.ready(nil); err != nil {
					t.Error(err)
				}
				list, err := client.RukpakV1alpha1().ProvisionerClasses().List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, c := range list.Items {
					got = append(got, c.Name)
					if isDefault := c.Annotations[v1alpha1.AnnotationIsDefaultClass] == "true"; isDefault != (c.Name == "plain") {
						t.Errorf("%s is the default: %v", c.Name, isDefault)
					}
				}
				if slices.Sort(got); !slices.Equal(got, test.want) {
					t.Errorf("got %q, want %q", got, test.want)
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	client := rukpakfake.NewClientset()
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
	maker := &classMaker{}
	if err := maker.run(ctx, client); !errors.Is(err, context.Canceled) {
		t.Errorf("at the end of the server: %v", err)
	}
	if err := maker.ready(errors.New("etcd is another one's")); err != nil {
		t.Errorf("a server that refuses is not ready to say so: %v", err)
	}
}

// What keeps classes from being made, as a webhook that is down or a policy, does not keep the API away; and who makes classes
// of their own meanwhile gets no others.
func TestDefaultClassesThatAreRefused(t *testing.T) {
	lost, denied := errors.New("connection reset by peer"), apierrors.NewForbidden(rukpak.Resource("provisionerclasses"), "", errors.New("no"))
	class := func(name string) *v1alpha1.ProvisionerClass {
		return &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.com/mine"}
	}
	for name, test := range map[string]struct {
		refusals  map[string]error // of making a class
		after     bool             // that it was made all the same
		meanwhile func(context.Context, typed.ProvisionerClassInterface) error
		want      []string
		logged    []string
	}{
		"the connection breaks":                  {refusals: map[string]error{"raw": lost}, want: []string{"plain", "raw"}, logged: []string{"plain", "raw"}},
		"the connection breaks before an answer": {refusals: map[string]error{"plain": lost, "raw": lost}, after: true, want: []string{"plain", "raw"}},
		"refused for a while":                    {refusals: map[string]error{"plain": denied, "raw": denied}, want: []string{"plain", "raw"}, logged: []string{"plain", "raw"}},
		"somebody makes others": {refusals: map[string]error{"raw": denied}, want: []string{"mine", "plain"}, logged: []string{"plain"},
			meanwhile: func(ctx context.Context, classes typed.ProvisionerClassInterface) error {
				_, err := classes.Create(ctx, class("mine"), metav1.CreateOptions{})
				return err
			}},
		"somebody makes one of that name": {refusals: map[string]error{"plain": denied, "raw": denied}, want: []string{"raw"},
			meanwhile: func(ctx context.Context, classes typed.ProvisionerClassInterface) error {
				_, err := classes.Create(ctx, class("raw"), metav1.CreateOptions{})
				return err
			}},
		"somebody deletes what was made": {refusals: map[string]error{"raw": denied}, logged: []string{"plain"},
			meanwhile: func(ctx context.Context, classes typed.ProvisionerClassInterface) error {
				return classes.Delete(ctx, "plain", metav1.DeleteOptions{})
			}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := rukpakfake.NewClientset()
				refusing := true
				client.PrependReactor("create", "provisionerclasses", func(a clienttesting.Action) (bool, runtime.Object, error) {
					c := a.(clienttesting.CreateAction).GetObject().(*v1alpha1.ProvisionerClass)
					refusal := test.refusals[c.Name]
					if !refusing || refusal == nil || c.Provisioner == "example.com/mine" {
						return false, nil, nil
					}
					if test.after {
						if err := client.Tracker().Add(c); err != nil {
							t.Error(err)
						}
					}
					return true, nil, refusal
				})
				logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
				ctx := klog.NewContext(t.Context(), logger)
				maker := &classMaker{}
				ended := make(chan error, 1)
				go func() { ended <- maker.run(ctx, client) }()
				synctest.Wait()
				if err := maker.ready(nil); err != nil {
					t.Errorf("while they cannot be made: %v", err)
				}
				classes := client.RukpakV1alpha1().ProvisionerClasses()
				if test.meanwhile != nil {
					if err := test.meanwhile(ctx, classes); err != nil {
						t.Fatal(err)
					}
				}
				refusing = false
				if err := <-ended; err != nil {
					t.Error(err)
				}
				list, err := classes.List(ctx, metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				var got, logged []string
				for _, c := range list.Items {
					got = append(got, c.Name)
				}
				if slices.Sort(got); !slices.Equal(got, test.want) {
					t.Errorf("classes are %q, not %q", got, test.want)
				}
				for _, line := range logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
					for _, name := range []string{"plain", "raw"} {
						if line.Message == fmt.Sprintf("Made the class %q, since there was none", name) {
							logged = append(logged, name)
						}
					}
				}
				if !slices.Equal(logged, test.logged) {
					t.Errorf("the log tells of %q", logged)
				}
			})
		})
	}
}
