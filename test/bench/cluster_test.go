// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"archive/tar"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// Where the local cluster, and `kubectl apply -k artifacts/deploy`, have the server.
const (
	serverNamespace = "rukpak-system"
	serverName      = "rukpak-apiserver"
)

// patience is how long something may take to come about.
const patience = 3 * time.Minute

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// scope is what the parts of a run share: clients of the cluster's administrator, a namespace and a class
// of its own, and the address of the server.
type scope struct {
	*testing.T
	config  *rest.Config
	kube    kubernetes.Interface
	objects dynamic.Interface
	rukpak  versioned.Interface
	ns      string
	class   string
	direct  target // the server itself, at the IP of its Service
	through target // the server behind kube-apiserver
}

// in is the scope of a subtest.
func (s *scope) in(t *testing.T) *scope {
	sub := *s
	sub.T = t
	return &sub
}

func (s *scope) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// cleanup deletes something at the end, whatever happens before, and even if the server is just away.
func (s *scope) cleanup(what string, remove func(context.Context) error) {
	s.Cleanup(func() {
		var last error
		err := wait.PollUntilContextTimeout(context.Background(), time.Second, patience, true, func(ctx context.Context) (bool, error) {
			last = remove(ctx)
			return last == nil || apierrors.IsNotFound(last), nil
		})
		if err != nil {
			s.Errorf("delete %s: %v: %v", what, err, last)
		}
	})
}

// eventually waits until there is no error any more.
func (s *scope) eventually(what string, f func() error) {
	s.Helper()
	var last error
	err := wait.PollUntilContextTimeout(s.Context(), 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = f()
		return last == nil, nil
	})
	if err != nil {
		s.Fatalf("%s: %v: %v", what, err, last)
	}
}

// begin makes the scope, which goes when the test ends.
func begin(t *testing.T) *scope {
	t.Helper()
	s := &scope{T: t, ns: "bench-" + utilrand.String(8)}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	s.must(err)
	config.QPS = -1 // nothing is to be measured through a client's own brakes
	s.config = config
	s.kube, err = kubernetes.NewForConfig(config)
	s.must(err)
	s.objects, err = dynamic.NewForConfig(config)
	s.must(err)
	s.rukpak, err = versioned.NewForConfig(config)
	s.must(err)
	s.makeNamespace()
	s.makeClass()
	root := "/apis/" + v1alpha1.SchemeGroupVersion.String()
	s.through = s.throughKubeAPIServer(root)
	s.direct = s.straight(serverNamespace, serverName, root, s.authority(v1alpha1.SchemeGroupVersion.Version+"."+v1alpha1.GroupName))
	return s
}

func (s *scope) makeNamespace() {
	s.Helper()
	namespaces := s.kube.CoreV1().Namespaces()
	_, err := namespaces.Create(s.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.ns}}, metav1.CreateOptions{})
	s.must(err)
	s.cleanup("namespace "+s.ns, func(ctx context.Context) error { return namespaces.Delete(ctx, s.ns, metav1.DeleteOptions{}) })
	s.eventually("the default service account of "+s.ns, func() error {
		_, err := s.kube.CoreV1().ServiceAccounts(s.ns).Get(s.Context(), "default", metav1.GetOptions{})
		return err
	})
}

// makeClass makes a class that takes any content.
func (s *scope) makeClass() {
	s.Helper()
	classes := s.rukpak.RukpakV1alpha1().ProvisionerClasses()
	class := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Provisioner: v1alpha1.ProvisionerRaw}
	_, err := classes.Create(s.Context(), class, metav1.CreateOptions{})
	s.must(err)
	s.class = class.Name
	s.cleanup("class "+s.class, func(ctx context.Context) error { return classes.Delete(ctx, s.class, metav1.DeleteOptions{}) })
}

// authority is what kube-apiserver trusts the server of an APIService by, PEM.
func (s *scope) authority(apiService string) []byte {
	s.Helper()
	object, err := s.objects.Resource(apiServices).Get(s.Context(), apiService, metav1.GetOptions{})
	s.must(err)
	bundle, _, err := unstructured.NestedString(object.Object, "spec", "caBundle")
	s.must(err)
	pem, err := base64.StdEncoding.DecodeString(bundle)
	s.must(err)
	return pem
}

// target is one way to one server.
type target struct {
	client *http.Client
	base   string // https://host:port
	root   string // path of the group's version
}

// content is the URL of the content of an object of ours, or of as many bytes from the bare server.
func (t target) content(namespace, resource, name string) string {
	return fmt.Sprintf("%s%s/namespaces/%s/%s/%s/content", t.base, t.root, namespace, resource, name)
}

// throughKubeAPIServer is the way through the aggregator, over HTTP/2 as client-go speaks it.
func (s *scope) throughKubeAPIServer(root string) target {
	s.Helper()
	transport, err := rest.TransportFor(s.config)
	s.must(err)
	return target{client: &http.Client{Transport: transport}, base: strings.TrimSuffix(s.config.Host, "/"), root: root}
}

// straight is the way to a Service's IP, over HTTP/1.1, with the administrator's certificate.
func (s *scope) straight(namespace, service, root string, authority []byte) target {
	s.Helper()
	found, err := s.kube.CoreV1().Services(namespace).Get(s.Context(), service, metav1.GetOptions{})
	s.must(err)
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), ServerName: service + "." + namespace + ".svc"}
	if !config.RootCAs.AppendCertsFromPEM(authority) {
		s.Fatalf("service %s/%s: no certificate in its authority", namespace, service)
	}
	own, err := rest.TLSConfigFor(s.config)
	s.must(err)
	config.Certificates, config.GetClientCertificate = own.Certificates, own.GetClientCertificate
	transport := &http.Transport{
		TLSClientConfig: config, MaxIdleConnsPerHost: 16, DisableCompression: true,
		// A map without an entry is what keeps HTTP/2 off.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	s.Cleanup(transport.CloseIdleConnections)
	address := net.JoinHostPort(found.Spec.ClusterIP, strconv.Itoa(int(found.Spec.Ports[0].Port)))
	return target{client: &http.Client{Transport: transport}, base: "https://" + address, root: root}
}

// content is what is read: where, and how many bytes there are.
type content struct {
	name string
	size int64
}

// upload makes a bundle whose content is one file of that many bytes that do not compress.
func (s *scope) upload(name string, size int64) content {
	s.Helper()
	bundles := s.rukpak.RukpakV1alpha1().Bundles(s.ns)
	_, err := bundles.Create(s.Context(), &v1alpha1.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.BundleSpec{ProvisionerClassName: s.class, Source: v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}},
	}, metav1.CreateOptions{})
	s.must(err)
	body, w := io.Pipe()
	go func() { w.CloseWithError(writeTar(w, size)) }()
	b, err := bundles.PutContent(s.Context(), name, body, typed.PutContentOptions{})
	s.must(err)
	s.must(body.Close())
	return content{name: name, size: b.Status.Content.Size}
}

// writeTar writes a tar with one file of noise.
func writeTar(w io.Writer, size int64) error {
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{Name: "noise", Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
		return err
	}
	if _, err := io.CopyN(t, rand.NewChaCha8([32]byte{1}), size); err != nil {
		return err
	}
	return t.Close()
}
