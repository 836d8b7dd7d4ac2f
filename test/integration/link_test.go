// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/test/integration/harness"
)

const (
	// linkBytesVariable is the size of the content that goes over a slow line, in place of linkBytes.
	linkBytesVariable = "RUKPAK_LINK_BYTES"
	// linkTimeoutVariable is kube-apiserver's --request-timeout meanwhile, in place of linkTimeout.
	linkTimeoutVariable = "RUKPAK_LINK_TIMEOUT"
	linkBytes           = 48 << 20
	linkTimeout         = "4s"
	// linkRate is that of the line, in bytes a second.
	linkRate = 5_000_000
)

// A line carries so many bytes a second to the client, whichever connections they come on.
type line struct {
	rate  float64
	mu    sync.Mutex
	until time.Time // when the line is free
}

// pass returns once the line has carried n bytes.
func (l *line) pass(n int) {
	l.mu.Lock()
	now := time.Now()
	// Timers are late, which a line makes up for.
	if late := now.Add(-50 * time.Millisecond); l.until.Before(late) {
		l.until = late
	}
	l.until = l.until.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	wait := l.until.Sub(now)
	l.mu.Unlock()
	if wait > 0 {
		<-time.After(wait)
	}
}

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &lineConn{conn, l}, nil
}

type lineConn struct {
	net.Conn
	line *line
}

func (c *lineConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), 16<<10)])
	c.line.pass(n)
	return n, err
}

// counted counts requests.
type counted struct {
	http.RoundTripper
	n atomic.Int64
}

func (c *counted) RoundTrip(req *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.RoundTripper.RoundTrip(req)
}

// Content that takes longer than kube-apiserver lets a request last comes whole: in several requests, and below watch/
// in one.
func TestContentComesWholeOverASlowLine(t *testing.T) {
	size, err := strconv.Atoi(orElse(os.Getenv(linkBytesVariable), strconv.Itoa(linkBytes)))
	if err != nil {
		t.Fatalf("%s: %v", linkBytesVariable, err)
	}
	c := startCluster(t, "--request-timeout="+orElse(os.Getenv(linkTimeoutVariable), linkTimeout))
	archive := canonical(t, noise("data", 31, size))
	class := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Provisioner: v1alpha1.ProvisionerRaw, Limits: &v1alpha1.ContentLimits{
		CompressedBytes: ptr.To(resource.MustParse("4Gi")), Bytes: ptr.To(resource.MustParse("4Gi")),
	}}
	must(c.Rukpak.RukpakV1alpha1().ProvisionerClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t)
	must(c.Rukpak.RukpakV1alpha1().Bundles("default").Create(t.Context(), uploadBundle("app", class.Name), metav1.CreateOptions{}))(t)
	token := c.administrator(t)
	must(c.straight(t, token).RukpakV1alpha1().Bundles("default").PutContent(t.Context(), "app", bytes.NewReader(archive), typed.PutContentOptions{}))(t)

	for _, test := range []struct {
		name  string
		opts  typed.GetContentOptions
		right func(requests int64) bool
	}{
		{"resumed", typed.GetContentOptions{}, func(n int64) bool { return n > 1 }},
		{"below watch", typed.GetContentOptions{BelowWatch: true}, func(n int64) bool { return n == 1 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			requests := &counted{}
			config := rest.CopyConfig(c.Config)
			config.Dial = (&line{rate: linkRate}).dial
			config.Wrap(func(rt http.RoundTripper) http.RoundTripper { requests.RoundTripper = rt; return requests })
			began := time.Now()
			content := must(must(clientset.NewForConfig(config))(t).RukpakV1alpha1().Bundles("default").GetContent(t.Context(), "app", test.opts))(t)
			defer content.Close()
			// The reader ends with EOF only if the digest is right.
			if n, err := io.Copy(io.Discard, content); err != nil || n != int64(len(archive)) || content.Digest != digestOf(archive) {
				t.Fatalf("%d of %d bytes: %v", n, len(archive), err)
			}
			took := time.Since(began)
			t.Logf("%d bytes in %v, %.1f MB/s, requests: %d", len(archive), took.Round(time.Millisecond), float64(len(archive))/1e6/took.Seconds(), requests.n.Load())
			if !test.right(requests.n.Load()) {
				t.Errorf("it took %d requests", requests.n.Load())
			}
		})
	}
	t.Run("with curl", func(t *testing.T) { c.readWithCurl(t, token, archive) })
}

// goOn is what docs/transfers.md shows.
const goOn = `rm -f app.tar.gz
until echo "${digest#sha256:}  app.tar.gz" | sha256sum -c --status; do
  echo >> requests
  curl -fsS --limit-rate 5M --cacert ca.crt -H "Authorization: Bearer $(cat token)" -C - -o app.tar.gz "$url?digest=$digest" || sleep 1
done`

// readWithCurl reads content as somebody without the client does.
func (c cluster) readWithCurl(t *testing.T, token string, archive []byte) {
	t.Helper()
	dir := t.TempDir()
	for name, data := range map[string][]byte{"ca.crt": c.CA, "token": []byte(token)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.StartTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", goOn)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "url="+c.URL+contentPath("default", "app"), "digest="+digestOf(archive))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	requests := must(os.ReadFile(filepath.Join(dir, "requests")))(t)
	t.Logf("requests: %d", len(requests))
	if got := must(os.ReadFile(filepath.Join(dir, "app.tar.gz")))(t); !bytes.Equal(got, archive) || len(requests) < 2 {
		t.Errorf("%d requests brought %d of %d bytes", len(requests), len(got), len(archive))
	}
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// cluster is a control plane of a test's own, with a server.
type cluster struct {
	*harness.Cluster
	server *harness.Server
}

// startCluster starts one, whose kube-apiserver has these flags.
func startCluster(t *testing.T, flags ...string) cluster {
	t.Helper()
	dir := must(harness.MakeDir())(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), harness.StartTimeout)
	defer cancel()
	c := cluster{Cluster: must(harness.StartCluster(ctx, shared.Programs, dir, flags...))(t)}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	c.server = must(c.Deploy(ctx))(t)
	t.Cleanup(func() {
		if err := c.server.Kill(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// administrator is the token of somebody who may do everything.
func (c cluster) administrator(t *testing.T) string {
	t.Helper()
	account := must(c.Kube.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{GenerateName: "admin-"}}, metav1.CreateOptions{}))(t)
	must(c.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account.Name, Namespace: "default"}},
	}, metav1.CreateOptions{}))(t)
	return must(c.Kube.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(t).Status.Token
}

// straight is a client of the server itself, once it lets an administrator in.
func (c cluster) straight(t *testing.T, token string) clientset.Interface {
	t.Helper()
	service := must(must(dynamic.NewForConfig(c.Config))(t).Resource(harness.APIServices).Get(t.Context(), harness.APIServiceName, metav1.GetOptions{}))(t)
	encoded, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle")
	config := &rest.Config{Host: fmt.Sprintf("https://localhost:%d", c.server.Port), BearerToken: token}
	config.CAData = must(base64.StdEncoding.DecodeString(encoded))(t)
	client := must(clientset.NewForConfig(config))(t)
	eventually(t, "the grant of an administrator", func() string {
		_, err := client.RukpakV1alpha1().Bundles("default").List(t.Context(), metav1.ListOptions{})
		return problem(err)
	})
	return client
}
