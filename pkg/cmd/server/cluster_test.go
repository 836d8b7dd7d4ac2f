// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	rukpakfake "rukpak.io/apiserver/pkg/generated/clientset/versioned/fake"
)

func apiService(service, namespace, caBundle string) *unstructured.Unstructured {
	spec := map[string]any{"service": map[string]any{"name": service, "namespace": namespace}, "group": "rukpak.io"}
	if caBundle != "" {
		spec["caBundle"] = caBundle
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1alpha1.rukpak.io"}, "spec": spec,
	}}
}

func newRegistration(objects ...runtime.Object) (*registration, *dynamicfake.FakeDynamicClient) {
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), objects...)
	return &registration{client: client, service: "server", namespace: "team", ca: []byte("authority")}, client
}

func caBundle(t *testing.T, r *registration) string {
	t.Helper()
	obj, err := r.client.Resource(apiServices).Get(t.Context(), apiServiceName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := unstructured.NestedString(obj.Object, "spec", "caBundle")
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestRegistration(t *testing.T) {
	right, wrong := base64.StdEncoding.EncodeToString([]byte("authority")), base64.StdEncoding.EncodeToString([]byte("old"))
	for name, test := range map[string]struct {
		object  *unstructured.Unstructured
		changed bool
		err     string
		want    string
	}{
		"none is set":          {object: apiService("server", "team", ""), changed: true, want: right},
		"another is set":       {object: apiService("server", "team", wrong), changed: true, want: right},
		"it is set":            {object: apiService("server", "team", right), want: right},
		"of another service":   {object: apiService("theirs", "team", wrong), err: "\"theirs\"", want: wrong},
		"of another namespace": {object: apiService("server", "theirs", wrong), err: "\"theirs\"", want: wrong},
	} {
		t.Run(name, func(t *testing.T) {
			r, client := newRegistration(test.object)
			changed, err := r.ensure(t.Context())
			if changed != test.changed || (err != nil) != (test.err != "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
				t.Errorf("changed %v, %v", changed, err)
			}
			if got := caBundle(t, r); got != test.want {
				t.Errorf("the authority is %q, want %q", got, test.want)
			}
			for _, a := range client.Actions() {
				if patch, ok := a.(clienttesting.PatchAction); ok && !test.changed {
					t.Errorf("it was written: %s", patch.GetPatch())
				}
			}
		})
	}
	r, _ := newRegistration()
	if _, err := r.ensure(t.Context()); err == nil {
		t.Error("it is no error that there is none")
	}
}

// Whoever applies the manifest again may take the authority away.
func TestRegistrationGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, client := newRegistration()
		ctx, cancel := context.WithCancel(t.Context())
		go r.run(ctx)
		synctest.Wait() // there is no APIService yet
		services := client.Resource(apiServices)
		if _, err := services.Create(ctx, apiService("server", "team", ""), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // soon after a failure
		synctest.Wait()
		if caBundle(t, r) == "" {
			t.Error("the authority is not set when the APIService comes late")
		}
		if _, err := services.Update(ctx, apiService("server", "team", ""), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(registerInterval + time.Second)
		synctest.Wait()
		if caBundle(t, r) == "" {
			t.Error("the authority stays away")
		}
		cancel()
		synctest.Wait()
	})
}

// reviews answers what the server may do.
func reviews(client *fake.Clientset, denied func(*authorizationv1.ResourceAttributes) bool, err func() error) {
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
		review.Status.Allowed = !denied(review.Spec.ResourceAttributes)
		return true, review, err()
	})
}

func none() error { return nil }

func TestMissingPermissions(t *testing.T) {
	o, _ := parse(t, "--unpack-image=x")
	for name, test := range map[string]struct {
		denied func(*authorizationv1.ResourceAttributes) bool
		want   []string // words of each missing permission, in order
	}{
		"all are there": {denied: func(*authorizationv1.ResourceAttributes) bool { return false }},
		"one verb": {
			denied: func(a *authorizationv1.ResourceAttributes) bool { return a.Resource == "pods" && a.Verb == "delete" },
			want:   []string{"delete pods in the whole cluster (unpack pods)"},
		},
		"a subresource": {
			denied: func(a *authorizationv1.ResourceAttributes) bool { return a.Subresource == "status" },
			want:   []string{"update resourcequotas/status in the whole cluster (quota)"},
		},
		"one name": {
			denied: func(a *authorizationv1.ResourceAttributes) bool { return a.Name == "v1alpha1.rukpak.io" },
			want:   []string{"get, patch apiservices.apiregistration.k8s.io \"v1alpha1.rukpak.io\" in the whole cluster (the APIService's caBundle)"},
		},
		"one namespace": {
			denied: func(a *authorizationv1.ResourceAttributes) bool { return a.Resource == "services" },
			want:   []string{"get services \"rukpak-apiserver\" in namespace \"" + o.Namespace + "\" (where unpack pods send content)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			reviews(client, test.denied, none)
			got, err := missingPermissions(t.Context(), client, o.permissions(true))
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("got %q, %v; want %q", got, err, test.want)
			}
		})
	}
	client, want := fake.NewClientset(), errors.New("no answer")
	reviews(client, func(*authorizationv1.ResourceAttributes) bool { return false }, func() error { return want })
	if _, err := missingPermissions(t.Context(), client, o.permissions(true)); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

func TestPermissionsFollowTheFlags(t *testing.T) {
	for name, test := range map[string]struct {
		ownCertificate bool
		arguments      []string
		resource       string
		want           bool
	}{
		"its own certificate":   {true, nil, "apiservices", true},
		"one that is given":     {false, nil, "apiservices", false},
		"priority and fairness": {true, nil, "flowschemas", true},
		"neither":               {true, []string{"--enable-priority-and-fairness=false"}, "flowschemas", false},
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := parse(t, test.arguments...)
			needs := slices.ContainsFunc(o.permissions(test.ownCertificate), func(p permission) bool { return p.resource == test.resource })
			if needs != test.want {
				t.Errorf("%s: %v", test.resource, needs)
			}
		})
	}
}

// Permissions that are missing are asked for until they are there.
func TestCheckPermissionsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		wanted := []permission{{resource: "pods", verbs: []string{"get"}}}
		asked := 0
		reviews(client, func(*authorizationv1.ResourceAttributes) bool { asked++; return asked < 4 }, func() error {
			if asked == 1 {
				return errors.New("no answer")
			}
			return nil
		})
		start := time.Now()
		checkPermissions(t.Context(), client, wanted)
		if asked != 4 || time.Since(start) != 3*permissionInterval {
			t.Errorf("asked %d times in %v", asked, time.Since(start))
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	client := fake.NewClientset()
	reviews(client, func(*authorizationv1.ResourceAttributes) bool { return true }, none)
	checkPermissions(ctx, client, []permission{{resource: "pods", verbs: []string{"get"}}})
}

func TestDefaultClasses(t *testing.T) {
	mine := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Provisioner: "example.com/mine"}
	for name, test := range map[string]struct {
		classes []runtime.Object
		fail    string // the verb that fails once
		want    []string
	}{
		"none":                          {want: []string{"plain", "raw"}},
		"one":                           {classes: []runtime.Object{mine}, want: []string{"mine"}},
		"none, and no answer at first":  {fail: "list", want: []string{"plain", "raw"}},
		"none, and no making, at first": {fail: "create", want: []string{"plain", "raw"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := rukpakfake.NewClientset(test.classes...)
				failed := false
				if test.fail != "" {
					client.PrependReactor(test.fail, "provisionerclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
						first := !failed
						failed = true
						return first, nil, errors.New("not yet")
					})
				}
				if err := ensureClasses(t.Context(), client); err != nil {
					t.Fatal(err)
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
	if err := ensureClasses(ctx, client); !errors.Is(err, context.Canceled) {
		t.Errorf("at the end of the server: %v", err)
	}
}

func TestEndpoint(t *testing.T) {
	service := func(ip string, ports ...int32) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "server", Namespace: "team"}, Spec: corev1.ServiceSpec{ClusterIP: ip}}
		for _, p := range ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: p})
		}
		return s
	}
	for name, test := range map[string]struct {
		objects []runtime.Object
		url, ip string
	}{
		"a cluster IP":      {[]runtime.Object{service("10.0.0.1", 443)}, "https://10.0.0.1:443", "10.0.0.1"},
		"IPv6":              {[]runtime.Object{service("fd00::1", 8443)}, "https://[fd00::1]:8443", "fd00::1"},
		"headless":          {[]runtime.Object{service("None", 443)}, "https://server.team.svc:443", "<nil>"},
		"without a port":    {[]runtime.Object{service("10.0.0.1")}, "", "10.0.0.1"},
		"without a Service": {nil, "", "<nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.objects...)
			e := &endpoint{client: client, service: "server", namespace: "team", ca: []byte("authority")}
			got := e.get()
			if got.URL != test.url || (test.url != "" && (got.ServerName != "server.team.svc" || string(got.CA) != "authority")) {
				t.Errorf("got %+v", got)
			}
			if ip := e.clusterIP(t.Context()); ip.String() != test.ip {
				t.Errorf("the address is %v", ip)
			}
			if test.url == "" {
				return
			}
			client.ClearActions()
			if again := e.get(); again.URL != test.url || len(client.Actions()) > 0 {
				t.Errorf("asked again: %v", client.Actions())
			}
		})
	}
}
