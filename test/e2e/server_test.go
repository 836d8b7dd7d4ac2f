// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// Where the server is, as artifacts/deploy has it.
const (
	serverNamespace = "rukpak-system"
	serverName      = "rukpak-apiserver"
	serverPod       = serverName + "-0"
	serverContainer = "apiserver"
	volumeName      = "rukpak-apiserver-data"
	apiServicePath  = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.rukpak.io"
)

// nodeAddress is that of the cluster's node, which is this machine.
func (s *scope) nodeAddress() string {
	s.Helper()
	nodes, err := s.kube.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	s.must(err)
	for _, address := range nodes.Items[0].Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	s.Fatal("the node has no address")
	return ""
}

// service is the server's own Service, as somebody in the cluster reaches it.
type service struct {
	url  string
	host string // the name in its certificate
	ca   *x509.CertPool
}

// service finds the Service, and the CA in the APIService that its certificate descends from.
func (s *scope) service() *service {
	s.Helper()
	found, err := s.kube.CoreV1().Services(serverNamespace).Get(s.ctx, serverName, metav1.GetOptions{})
	s.must(err)
	data, err := s.kube.Discovery().RESTClient().Get().AbsPath(apiServicePath).DoRaw(s.ctx)
	s.must(err)
	var registered struct {
		Spec struct {
			CABundle []byte `json:"caBundle"`
		} `json:"spec"`
	}
	s.must(json.Unmarshal(data, &registered))
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(registered.Spec.CABundle) {
		s.Fatal("the APIService has no caBundle")
	}
	return &service{
		url:  "https://" + net.JoinHostPort(found.Spec.ClusterIP, strconv.Itoa(int(found.Spec.Ports[0].Port))),
		host: serverName + "." + serverNamespace + ".svc",
		ca:   pool,
	}
}

// client sends requests with a bearer token or, if that is empty, without a credential.
func (v *service) client(token string) *http.Client {
	return &http.Client{Transport: &bearer{token: token, next: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: v.ca, ServerName: v.host, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}}}
}

type bearer struct {
	token string
	next  http.RoundTripper
}

func (b *bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.token != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(req)
}

// contentPath is where the content of a bundle is, at kube-apiserver and at the Service.
func contentPath(namespace, name string) string {
	return fmt.Sprintf("/apis/%s/namespaces/%s/bundles/%s/content", v1alpha1.SchemeGroupVersion, namespace, name)
}

// ask makes a request and returns the status code and the body.
func ask(ctx context.Context, client *http.Client, method, url string, body io.Reader) (_ int, _ []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return 0, nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, data, err
}

// process finds the process of the server on this machine.
func (s *scope) process() (int, error) {
	p, err := s.kube.CoreV1().Pods(serverNamespace).Get(s.ctx, serverPod, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	for _, c := range p.Status.ContainerStatuses {
		if _, id, ok := strings.Cut(c.ContainerID, "://"); ok && c.Name == serverContainer && c.State.Running != nil {
			return findProcess("/rukpak-apiserver", id)
		}
	}
	return 0, fmt.Errorf("container %s of pod %s does not run", serverContainer, serverPod)
}

// findProcess finds the process that runs a program in a control group whose name holds the
// text: the ID of a container, or the UID of a pod.
func findProcess(program, group string) (int, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, folder := range folders {
		command, err := os.ReadFile(folder + "/cmdline")
		if err != nil || !bytes.HasPrefix(command, []byte(program+"\x00")) {
			continue // it has ended, or is another
		}
		groups, err := os.ReadFile(folder + "/cgroup")
		if err == nil && bytes.Contains(groups, []byte(group)) {
			return strconv.Atoi(filepath.Base(folder))
		}
	}
	return 0, fmt.Errorf("no process of %s in %s", program, group)
}

// answers waits until the server's API can be had through kube-apiserver.
func (s *scope) answers() {
	s.Helper()
	s.eventually("the server answers", func() error {
		_, err := s.bundles.RukpakV1alpha1().ProvisionerClasses().List(s.ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// volume is the folder of the server's volume on this machine.
func (s *scope) volume() string {
	s.Helper()
	v, err := s.kube.CoreV1().PersistentVolumes().Get(s.ctx, volumeName, metav1.GetOptions{})
	s.must(err)
	if v.Spec.HostPath == nil {
		s.Fatalf("volume %s is no folder of the node", volumeName)
	}
	return v.Spec.HostPath.Path
}

// stored lists the digests of the blobs in the volume.
func (s *scope) stored() map[string]bool {
	s.Helper()
	digests := map[string]bool{}
	s.must(filepath.WalkDir(filepath.Join(s.volume(), "content", "blobs", "sha256"), func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			digests["sha256:"+entry.Name()] = true
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was collected
		}
		return err
	}))
	return digests
}

// noDebris waits until everything that is in the store now, and that no bundle names, is gone or
// named; others may be at work meanwhile. And it checks that all is stored that bundles name.
func (s *scope) noDebris() {
	s.Helper()
	suspects, missing := s.debris()
	s.eventually("the store holds what bundles name and nothing else", func() error {
		unnamed, lacking := s.debris()
		for suspect := range suspects {
			if unnamed[suspect] {
				return fmt.Errorf("%s is in the store and no bundle names it", suspect)
			}
		}
		for digest := range missing {
			if lacking[digest] {
				return fmt.Errorf("%s is named by a bundle and not stored", digest)
			}
		}
		return nil
	})
}

// debris lists what is in the volume and not named by a bundle, temporary files among it, and the
// digests that are named and not stored.
func (s *scope) debris() (unnamed, missing map[string]bool) {
	s.Helper()
	unnamed, missing = s.stored(), map[string]bool{}
	for _, folder := range []string{"content/tmp", "scratch"} {
		entries, err := os.ReadDir(filepath.Join(s.volume(), folder))
		s.must(err)
		for _, entry := range entries {
			unnamed[folder+"/"+entry.Name()] = true
		}
	}
	name := func(c *v1alpha1.ContentStatus) {
		if !unnamed[c.Digest] {
			missing[c.Digest] = true
		}
	}
	s.must(s.retry(func() error {
		list, err := s.bundles.RukpakV1alpha1().Bundles("").List(s.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var named []v1alpha1.ContentStatus
		for _, b := range list.Items {
			if b.Status.Content != nil {
				named = append(named, *b.Status.Content)
			}
			named = append(named, b.Status.History...)
		}
		for i := range named {
			name(&named[i])
		}
		for _, c := range named {
			delete(unnamed, c.Digest)
		}
		return nil
	}))
	return unnamed, missing
}

// collected waits until content is in the store no more.
func (s *scope) collected(digests ...string) {
	s.Helper()
	s.eventually("content that nobody has is collected", func() error {
		stored := s.stored()
		for _, digest := range digests {
			if stored[digest] {
				return fmt.Errorf("%s is still stored", digest)
			}
		}
		return nil
	})
}

// uploading tells whether there is an upload that is not committed.
func (s *scope) uploading() bool {
	s.Helper()
	entries, err := os.ReadDir(filepath.Join(s.volume(), "content/tmp"))
	s.must(err)
	return len(entries) > 0
}
