// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// traceCollector takes the spans of the shared server, by OTLP over gRPC.
type traceCollector struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans map[string]map[string]*spans.Span // by trace, by name
	names map[string]bool                   // of services
}

// startCollector starts a collector that ends with the process, and writes a configuration that leads to it into dir. It
// records no request by itself: only one whose caller asks for it, and may.
func startCollector(dir string) (_ *traceCollector, config string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	c := &traceCollector{spans: map[string]map[string]*spans.Span{}, names: map[string]bool{}}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	config = filepath.Join(dir, "tracing.yaml")
	text := fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: %s\nsamplingRatePerMillion: 0\n", listener.Addr())
	return c, config, os.WriteFile(config, []byte(text), 0o600)
}

// Export takes spans.
func (c *traceCollector) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range req.GetResourceSpans() {
		for _, attribute := range of.GetResource().GetAttributes() {
			if attribute.GetKey() == "service.name" {
				c.names[attribute.GetValue().GetStringValue()] = true
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				id := hex.EncodeToString(s.GetTraceId())
				if c.spans[id] == nil {
					c.spans[id] = map[string]*spans.Span{}
				}
				c.spans[id][s.GetName()] = s
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (c *traceCollector) find(trace, name string) *spans.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans[trace][name]
}

// runProgram runs rukpak-unpack as the kubelet would, with the environment of its container, over files of the test.
func runProgram(t *testing.T, p *corev1.Pod, token string, files map[string]string) {
	t.Helper()
	program := filepath.Join(shared.Root, "_output", "integration", "rukpak-unpack")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", program, "./cmd/rukpak-unpack")
	build.Dir, build.Env = shared.Root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, contract.CommandRun)
	for _, e := range p.Spec.Containers[0].Env {
		switch value := strings.ReplaceAll(e.Value, "$$", "$"); e.Name {
		case contract.EnvURL:
			_, path, _ := strings.Cut(value, "/apis/")
			cmd.Env = append(cmd.Env, e.Name+"="+shared.server.URL+"/apis/"+path)
		case contract.EnvTokenFile:
			cmd.Env = append(cmd.Env, e.Name+"="+tokenFile)
		case contract.EnvRoot:
			cmd.Env = append(cmd.Env, e.Name+"="+dir)
		case contract.EnvPath:
			cmd.Env = append(cmd.Env, e.Name+"=/")
		default:
			cmd.Env = append(cmd.Env, e.Name+"="+value)
		}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("rukpak-unpack: %v\n%s", err, out)
	}
}

// TestOneTraceFromTheBundleToTheCommit follows a bundle whose creation is traced: through the reconciler, the environment of its
// pod, the program in that, and the server that takes the content.
func TestOneTraceFromTheBundleToTheCommit(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	const (
		trace  = "0af7651916cd43dd8448eb211c80319c"
		caller = "b7ad6b7169203331"
	)
	b := imageBundle("app", "raw")
	b.Annotations = map[string]string{v1alpha1.AnnotationTraceParent: "00-11111111111111111111111111111111-2222222222222222-01"}
	made := &v1alpha1.Bundle{}
	err := shared.Rukpak.RukpakV1alpha1().RESTClient().Post().Namespace(namespace).Resource("bundles").
		SetHeader("Traceparent", "00-"+trace+"-"+caller+"-01").Body(b).Do(t.Context()).Into(made)
	if err != nil {
		t.Fatal(err)
	}
	if got := made.Annotations[v1alpha1.AnnotationTraceParent]; !strings.HasPrefix(got, "00-"+trace+"-") {
		t.Fatalf("the annotation is %q", got)
	}
	u, token := attempt(t, namespace, "app", 1)
	p := must(shared.Kube.CoreV1().Pods(namespace).Get(t.Context(), u.PodName, metav1.GetOptions{}))(t)
	nodeSays(t, p)
	runProgram(t, p, token, map[string]string{"file": "content"})
	letGo(t, p)

	// The request has parts of its own, and the attempt belongs to that which stored the bundle.
	eventually(t, "span attempt", func() string {
		request, first := shared.traces.find(trace, "POST /apis/rukpak.io/v1alpha1/namespaces/{:namespace}/bundles"), shared.traces.find(trace, "attempt")
		if request == nil || first == nil {
			return fmt.Sprintf("request: %t, attempt: %t", request != nil, first != nil)
		}
		if got := fmt.Sprintf("00-%s-%x-01", trace, first.GetParentSpanId()); got != made.Annotations[v1alpha1.AnnotationTraceParent] {
			return "it belongs to " + got
		}
		return ""
	})
	chain := map[string]string{ // each span, and the one that it belongs to
		"pod": "attempt", "scheduling": "pod", "pull": "pod", "walk": "pod", "upload": "pod", "commit": "pod",
	}
	for name, parent := range chain {
		eventually(t, "span "+name, func() string {
			child, above := shared.traces.find(trace, name), shared.traces.find(trace, parent)
			if child == nil || above == nil {
				return fmt.Sprintf("%s: %t, %s: %t", name, child != nil, parent, above != nil)
			}
			if !bytes.Equal(child.GetParentSpanId(), above.GetSpanId()) {
				return fmt.Sprintf("it belongs to %x, and %s is %x", child.GetParentSpanId(), parent, above.GetSpanId())
			}
			if child.GetEndTimeUnixNano() < child.GetStartTimeUnixNano() {
				t.Errorf("%s ends before it begins", name)
			}
			return ""
		})
	}
	if !shared.traces.names["rukpak-apiserver"] {
		t.Errorf("services are %v", shared.traces.names)
	}
}

func TestNobodyElseChoosesWhatIsTraced(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	const trace = "99999999999999999999999999999999"
	parent := "00-" + trace + "-2222222222222222-01"
	b := imageBundle("app", "raw")
	b.Annotations = map[string]string{v1alpha1.AnnotationTraceParent: parent}
	create(t, namespace, b)
	for _, patch := range []string{
		fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationTraceParent, parent),
		fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}},"spec":{"suspend":true}}`, v1alpha1.AnnotationTraceParent, parent),
	} {
		must(bundles(namespace).Patch(t.Context(), "app", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
		if got := get(t, namespace, "app").Annotations; len(got) > 0 {
			t.Errorf("annotations are %v", got)
		}
	}
	// A user who is not privileged, and asks in the way that is right for others.
	u := newUser(t, namespace, rule("bundles", "create"))
	other := imageBundle("other", "raw")
	other.APIVersion, other.Kind = v1alpha1.SchemeGroupVersion.String(), "Bundle"
	direct(t).do(t, "POST", "/apis/rukpak.io/v1alpha1/namespaces/"+namespace+"/bundles", u.token, strings.NewReader(encode(t, uploadOf(other))),
		"Traceparent", parent, "Content-Type", "application/json").expect(t, 201)
	if got := get(t, namespace, "other").Annotations; len(got) > 0 {
		t.Errorf("annotations are %v", got)
	}
}

// uploadOf is the same bundle with a source that needs no identity.
func uploadOf(b *v1alpha1.Bundle) *v1alpha1.Bundle {
	b.Spec.Source = v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}
	return b
}

// nodeSays writes into a pod's status what a scheduler and a kubelet would.
func nodeSays(t *testing.T, p *corev1.Pod) {
	t.Helper()
	now := metav1.NewTime(time.Now())
	patch := must(json.Marshal(map[string]any{"status": map[string]any{
		"conditions": []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now}},
		"containerStatuses": []corev1.ContainerStatus{{
			Name: pod.ContainerUnpack, Image: p.Spec.Containers[0].Image, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}},
	}}))(t)
	must(shared.Kube.CoreV1().Pods(p.Namespace).Patch(t.Context(), p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"))(t)
}

// letGo takes the finalizer of attempt away.
func letGo(t *testing.T, p *corev1.Pod) {
	t.Helper()
	must(shared.Kube.CoreV1().Pods(p.Namespace).Patch(t.Context(), p.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))(t)
}
