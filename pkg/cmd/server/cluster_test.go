// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rukpak.io/apiserver/pkg/unpack/pod"
)

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
		publishes bool
		arguments []string
		resource  string
		verb      string
		want      bool
	}{
		"a caBundle of its own":         {true, nil, "apiservices", "patch", true},
		"one of somebody else":          {false, nil, "apiservices", "patch", false},
		"one of somebody else, to read": {false, nil, "apiservices", "get", true},
		"priority and fairness":         {true, nil, "flowschemas", "list", true},
		"neither":                       {true, []string{"--enable-priority-and-fairness=false"}, "flowschemas", "list", false},
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := parse(t, test.arguments...)
			needs := slices.ContainsFunc(o.permissions(test.publishes), func(p permission) bool {
				return p.resource == test.resource && slices.Contains(p.verbs, test.verb)
			})
			if needs != test.want {
				t.Errorf("%s %s: %v", test.verb, test.resource, needs)
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
			e := &endpoint{client: client, service: "server", namespace: "team", ca: func() []byte { return []byte("authority") }}
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

// A Service that is made anew has another address, which unpack pods are told a minute later at most.
func TestEndpointFollowsTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "server", Namespace: "team"}, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 443}}},
		}
		client, away := fake.NewClientset(service), false
		client.PrependReactor("get", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			return away, nil, apierrors.NewServiceUnavailable("away")
		})
		e := &endpoint{client: client, service: "server", namespace: "team", ca: func() []byte { return []byte("authority") }}
		is := func(when, want string) {
			t.Helper()
			if got := e.get().URL; got != want {
				t.Errorf("%s: got %q, want %q", when, got, want)
			}
		}
		is("at first", "https://10.0.0.1:443")
		services := client.CoreV1().Services("team")
		if err := services.Delete(t.Context(), "server", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		is("right after it was deleted", "https://10.0.0.1:443")
		time.Sleep(endpointAge)
		is("a minute after it was deleted", "")
		service.Spec.ClusterIP = "10.0.0.2"
		if _, err := services.Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(endpointPause)
		is("once it is there again", "https://10.0.0.2:443")
		service.Spec.ClusterIP = "10.0.0.3"
		if _, err := services.Update(t.Context(), service, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		away = true
		time.Sleep(endpointAge)
		is("while the cluster does not answer", "https://10.0.0.2:443")
		away = false
		time.Sleep(endpointPause)
		is("when it answers again", "https://10.0.0.3:443")
	})
}

// While the cluster gives no answer, all who want the endpoint wait for one request, and not again soon after it.
func TestEndpointOfAClusterThatIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		silent := &silentServices{get: func(ctx context.Context) error {
			asked++
			<-ctx.Done()
			return ctx.Err()
		}}
		e := &endpoint{client: silent, service: "server", namespace: "team", ca: func() []byte { return []byte("authority") }}
		e.known = &pod.Endpoint{URL: "https://10.0.0.1:443"}
		began := time.Now()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if got := e.get().URL; got != e.known.URL {
					t.Errorf("got %q", got)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took != endpointTimeout || asked != 1 {
			t.Errorf("%d requests in %v", asked, took)
		}
	})
}

// silentServices is a cluster of whose Services nothing but one can be read.
type silentServices struct {
	kubernetes.Interface
	corev1client.CoreV1Interface
	corev1client.ServiceInterface
	get func(context.Context) error
}

func (s *silentServices) CoreV1() corev1client.CoreV1Interface          { return s }
func (s *silentServices) Services(string) corev1client.ServiceInterface { return s }
func (s *silentServices) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*corev1.Service, error) {
	return nil, s.get(ctx)
}

// Events wait for no more than the requests for other events, and nothing waits for them: thousands come with some hundred bundles.
func TestEventsHoldUpNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	o, _ := parse(t, "--unpack-image=x", "--kubeconfig="+file)
	p := &process{Options: o, certificates: &certificates{}}
	if err := p.joinCluster(); err != nil {
		t.Fatal(err)
	}
	events, pods := p.events.RESTClient().GetRateLimiter(), p.kube.CoreV1().RESTClient().GetRateLimiter()
	if events == pods || events == p.kube.EventsV1().RESTClient().GetRateLimiter() {
		t.Error("events share a rate with the others")
	}
	if pods.QPS() != clusterQPS || events.QPS() != clusterQPS {
		t.Errorf("%v and %v requests in a second", pods.QPS(), events.QPS())
	}
}
