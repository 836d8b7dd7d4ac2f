// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package certificates tests how the certificates of two replicas behind a real kube-apiserver are replaced, and what
// becomes of the API meanwhile. It has a control plane of its own, whose certificates it replaces too.
package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"rukpak.io/apiserver/test/integration/harness"
)

const (
	// patience bounds the wait for something that happens by itself.
	patience = 2 * time.Minute
	// pause is the time between two looks at it.
	pause = 50 * time.Millisecond

	host       = harness.ServiceName + "." + harness.SystemNamespace + ".svc"
	bundlesURL = "/apis/rukpak.io/v1alpha1/bundles"
)

// TestCertificates and TestAPIService have a control plane each, which their parts change for good.
func TestCertificates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Run("rotation", w.rotation)
	t.Run("front proxy", w.frontProxy)
}

// TestAPIService is about what else may stand where the server's API is to be.
func TestAPIService(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, 2)
	w.upload(t)
	t.Run("claims", w.claims)
	t.Run("brought along", w.broughtAlong)
	t.Run("uninstall", w.uninstall)
}

// world is a control plane with an etcd for servers, which are behind one address.
type world struct {
	*harness.Cluster
	dynamic dynamic.Interface
	etcd    *harness.Etcd
	servers []*replica
	// port is that of the address; each new connection goes to the next of the servers.
	port int
	next atomic.Uint64
	// current are the servers that get connections.
	current atomic.Pointer[[]*replica]
}

// replica is one process.
type replica struct {
	*harness.Process
	dir, url string
	port     int
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// eventually waits until check returns nil.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: still not so: %v", what, err)
		case <-time.After(pause):
		}
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.StartTimeout)
	defer cancel()
	dir := must(harness.MakeDir())(t)
	programs := must(harness.FindPrograms(ctx))(t)
	w := &world{}
	t.Cleanup(func() {
		errs := []error{w.stop()}
		if w.etcd != nil {
			errs = append(errs, w.etcd.Kill())
		}
		if w.Cluster != nil {
			errs = append(errs, w.Cluster.Stop())
		}
		if t.Failed() {
			t.Log("the logs are kept in", dir)
		} else {
			errs = append(errs, os.RemoveAll(dir))
		}
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
	w.Cluster = must(harness.StartCluster(ctx, programs, dir))(t)
	w.dynamic = must(dynamic.NewForConfig(w.Config))(t)
	own := filepath.Join(dir, "own")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	w.etcd = must(harness.StartEtcd(ctx, programs, own))(t)
	// Deploy applies what replicas need, and writes the kubeconfig that they log in with.
	first := must(w.Deploy(ctx, w.shared()...))(t)
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	w.listen(t)
	return w
}

// shared are the flags by which replicas have the same data.
func (w *world) shared() []string {
	return []string{"--etcd-servers=" + w.etcd.URL, "--content-store=default=etcd:"}
}

// start starts replicas with these flags, and returns when kube-apiserver finds the API available.
func (w *world) start(t *testing.T, n int, flags ...string) {
	t.Helper()
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(w.Dir, "rukpak-apiserver.kubeconfig")
	for i := range n {
		port := freePort(t)
		r := &replica{dir: filepath.Join(t.TempDir(), "data"), port: port, url: fmt.Sprintf("https://127.0.0.1:%d", port)}
		name := fmt.Sprintf("%s-%d", harness.ServiceName, i)
		var err error
		r.Process, err = harness.StartProgram(name, filepath.Join(w.Dir, name+".log"), w.Programs.Server,
			[]string{"POD_NAME=" + name, "POD_NAMESPACE=" + harness.SystemNamespace}, append(append(w.shared(),
				"--data-dir="+r.dir, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
				"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
				"--service-name="+harness.ServiceName, "--unpack-image="+harness.UnpackImage, "-v=2"), flags...)...)
		if err != nil {
			t.Fatal(err)
		}
		w.servers = append(w.servers, r)
	}
	for _, r := range w.servers {
		eventually(t, "replica is ready", func(ctx context.Context) error {
			if !r.Running() {
				t.Fatalf("it ended: %s", r.Log())
			}
			// By whatever it is signed.
			_, err := w.fetch(ctx, r, &tls.Config{InsecureSkipVerify: true}, "/readyz")
			return err
		})
	}
	servers := w.servers
	w.current.Store(&servers)
	eventually(t, "the API is available", w.available)
}

func (w *world) stop() error {
	var errs []error
	for _, r := range w.servers {
		errs = append(errs, r.Kill())
	}
	w.servers = nil
	return errors.Join(errs...)
}

func freePort(t *testing.T) int {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// listen makes one address for all servers, and has kube-apiserver go there.
func (w *world) listen(t *testing.T) {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	w.port = l.Addr().(*net.TCPAddr).Port
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go w.join(client)
		}
	}()
	service := map[string]any{"spec": map[string]any{"ports": []corev1.ServicePort{{Name: "https", Port: int32(w.port)}}}}
	patch := must(json.Marshal(service))(t)
	must(w.Kube.CoreV1().Services(harness.SystemNamespace).Patch(t.Context(), harness.ServiceName, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	patch = must(json.Marshal(map[string]any{"spec": map[string]any{"service": map[string]any{"port": w.port}}}))(t)
	must(w.dynamic.Resource(harness.APIServices).Patch(t.Context(), harness.APIServiceName, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
}

// join connects a client to the next server.
func (w *world) join(client net.Conn) {
	defer client.Close()
	servers := w.current.Load()
	if servers == nil || len(*servers) == 0 {
		return
	}
	server, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", (*servers)[w.next.Add(1)%uint64(len(*servers))].port))
	if err != nil {
		return
	}
	defer server.Close()
	done := make(chan struct{})
	go func() { defer close(done); _, _ = io.Copy(server, client); server.Close() }()
	_, _ = io.Copy(client, server)
	client.Close()
	<-done
}

// fetch asks a server itself on a new connection. It returns the certificate that the server showed.
func (w *world) fetch(ctx context.Context, r *replica, config *tls.Config, path string, headers ...string) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+path, nil)
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	shown := resp.TLS.PeerCertificates[0]
	if resp.StatusCode != http.StatusOK {
		return shown, fmt.Errorf("%s answers %s: %s", path, resp.Status, body)
	}
	return shown, nil
}

// admin is the TLS of an administrator who trusts the server by a bundle.
func (w *world) admin(t *testing.T, bundle []byte) *tls.Config {
	t.Helper()
	pair := must(tls.X509KeyPair(w.Config.CertData, w.Config.KeyData))(t)
	return &tls.Config{RootCAs: pool(bundle), ServerName: host, Certificates: []tls.Certificate{pair}}
}

func pool(bundle []byte) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(bundle)
	return p
}

// apiService reads the APIService.
func (w *world) apiService(ctx context.Context) (*unstructured.Unstructured, error) {
	return w.dynamic.Resource(harness.APIServices).Get(ctx, harness.APIServiceName, metav1.GetOptions{})
}

// caBundle is what kube-apiserver trusts.
func (w *world) caBundle(ctx context.Context) ([]byte, error) {
	obj, err := w.apiService(ctx)
	if err != nil {
		return nil, err
	}
	encoded, _, _ := unstructured.NestedString(obj.Object, "spec", "caBundle")
	return base64.StdEncoding.DecodeString(encoded)
}

// unavailable says why an APIService is not available.
func unavailable(obj *unstructured.Unstructured) error {
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, condition := range conditions {
		if m, ok := condition.(map[string]any); ok && m["type"] == "Available" && m["status"] == "True" {
			return nil
		}
	}
	return fmt.Errorf("APIService: %v", conditions)
}

func (w *world) available(ctx context.Context) error {
	obj, err := w.apiService(ctx)
	if err == nil {
		err = unavailable(obj)
	}
	if err == nil {
		err = w.Kube.CoreV1().RESTClient().Get().AbsPath(bundlesURL).MaxRetries(0).Do(ctx).Error()
	}
	return err
}
