// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
)

// Cluster is a control plane without nodes.
type Cluster struct {
	Programs
	// Dir holds everything that the control plane writes.
	Dir string
	// Kubeconfig is the file with which an administrator logs in, Config the same for client-go.
	Kubeconfig string
	Config     *rest.Config
	Kube       kubernetes.Interface
	// Rukpak is the generated client, through the aggregator.
	Rukpak clientset.Interface
	// URL is that of kube-apiserver, and CA the authority that signed its certificate.
	URL string
	CA  []byte

	certificates *certificates
	processes    []*Process
	flags        []string // of kube-apiserver
}

// StartCluster starts a control plane in dir, which has to be there. It serves when the function returns. The flags
// are added to those of kube-apiserver.
func StartCluster(ctx context.Context, programs Programs, dir string, flags ...string) (*Cluster, error) {
	c := &Cluster{Programs: programs, Dir: dir, Kubeconfig: filepath.Join(dir, "kubeconfig"), flags: flags}
	if err := c.startAll(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) startAll(ctx context.Context) error {
	var err error
	if c.certificates, err = makeCertificates(c.Dir); err != nil {
		return err
	}
	c.CA = c.certificates.ca.CertPEM
	etcd, err := StartEtcd(ctx, c.Programs, c.Dir)
	if err != nil {
		return err
	}
	c.processes = append(c.processes, etcd.Process)
	apiserver, err := c.startAPIServer(ctx, etcd.URL)
	if apiserver != nil {
		c.processes = append(c.processes, apiserver)
	}
	if err != nil {
		return err
	}
	controllers, err := c.startControllers(ctx)
	if controllers != nil {
		c.processes = append(c.processes, controllers)
	}
	return err
}

// Stop ends all processes.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range slices.Backward(c.processes) {
		errs = append(errs, p.Kill())
	}
	return errors.Join(errs...)
}

func (c *Cluster) log(name string) string { return filepath.Join(c.Dir, name+".log") }

func (c *Cluster) startAPIServer(ctx context.Context, etcd string) (*Process, error) {
	pki := c.certificates.path
	return onPorts(1, func(ports []int) (*Process, error) {
		p, err := start("kube-apiserver", c.log("kube-apiserver"), c.path("kube-apiserver"), append([]string{
			"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]),
			"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
			"--client-ca-file=" + pki("ca.crt"), "--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + pki("sa.crt"), "--service-account-signing-key-file=" + pki("sa.key"),
			"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
			"--requestheader-username-headers=X-Remote-User",
			"--proxy-client-cert-file=" + pki("front-proxy-client.crt"), "--proxy-client-key-file=" + pki("front-proxy-client.key"),
		}, c.flags...)...)
		if err != nil {
			return nil, err
		}
		return p, c.connect(ctx, p, fmt.Sprintf("https://127.0.0.1:%d", ports[0]))
	})
}

// connect makes the clients of a kube-apiserver, and waits until it is ready.
func (c *Cluster) connect(ctx context.Context, p *Process, url string) error {
	c.URL = url
	if err := c.certificates.userKubeconfig(c.Kubeconfig, url, "admin", "system:masters"); err != nil {
		return err
	}
	var err error
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	// Tests are quick, and not what client-go's own limits are for.
	c.Config.QPS = -1
	if c.Kube, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	if c.Rukpak, err = clientset.NewForConfig(c.Config); err != nil {
		return err
	}
	return p.wait(ctx, "it was ready", func(ctx context.Context) error {
		return c.Kube.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// startControllers starts the controllers, which make service accounts, collect what has no owner any
// more, empty namespaces and count quota. It returns once they do.
func (c *Cluster) startControllers(ctx context.Context) (*Process, error) {
	config := filepath.Join(c.Dir, "controller-manager.kubeconfig")
	if err := c.certificates.userKubeconfig(config, c.URL, "system:kube-controller-manager"); err != nil {
		return nil, err
	}
	pki := c.certificates.path
	return onPorts(1, func(ports []int) (*Process, error) {
		p, err := start("kube-controller-manager", c.log("kube-controller-manager"), c.path("kube-controller-manager"),
			"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]), "--leader-elect=false",
			"--kube-api-qps=500", "--kube-api-burst=1000", "--use-service-account-credentials=true",
			"--service-account-private-key-file="+pki("sa.key"), "--root-ca-file="+pki("ca.crt"))
		if err != nil {
			return nil, err
		}
		return p, p.wait(ctx, "it made the default service account", func(ctx context.Context) error {
			_, err := c.Kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
			return err
		})
	})
}

// Etcd is an etcd whose data outlive it.
type Etcd struct {
	*Process
	// URL is that of its clients.
	URL string

	programs Programs
	dir      string
	ports    []int
}

// StartEtcd starts an etcd that keeps its data in dir.
func StartEtcd(ctx context.Context, programs Programs, dir string) (*Etcd, error) {
	e := &Etcd{programs: programs, dir: dir}
	_, err := onPorts(2, func(ports []int) (*Process, error) {
		e.ports, e.URL = ports, fmt.Sprintf("http://127.0.0.1:%d", ports[0])
		err := e.Start(ctx)
		return e.Process, err
	})
	if err != nil && e.Process != nil {
		err = errors.Join(err, e.Kill())
	}
	return e, err
}

// Start starts an etcd that was killed, with the data and at the address that it had.
func (e *Etcd) Start(ctx context.Context) error {
	peer := fmt.Sprintf("http://127.0.0.1:%d", e.ports[1])
	var err error
	e.Process, err = start("etcd", filepath.Join(e.dir, "etcd.log"), e.programs.path("etcd"),
		"--name=test", "--data-dir="+filepath.Join(e.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+e.URL, "--advertise-client-urls="+e.URL,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer)
	if err != nil {
		return err
	}
	return e.wait(ctx, "it was healthy", func(ctx context.Context) error {
		return Probe(ctx, e.URL+"/health", nil)
	})
}

// MakeDir makes a folder for a test's processes. Its path is short, since sockets are in it.
func MakeDir() (string, error) { return os.MkdirTemp("", "rukpak-it-") }
