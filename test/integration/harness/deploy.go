// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// The names of artifacts/deploy.
const (
	SystemNamespace = "rukpak-system"
	ServiceName     = "rukpak-apiserver"
	APIServiceName  = "v1alpha1.rukpak.io"
)

// UnpackImage is the image of unpack pods, as artifacts/deploy names it. No node is there to pull it.
const UnpackImage = "rukpak-apiserver:latest"

// APIServices is the resource of APIServices.
var APIServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// Deploy applies artifacts/deploy as it is, and runs the server as a process in place of the pod that no
// node is there for: with the token of the same service account. It returns when the API is available through
// kube-apiserver and the default classes are there. args are flags of the server beside its usual ones.
func (c *Cluster) Deploy(ctx context.Context, args ...string) (*Server, error) {
	if err := c.apply(ctx); err != nil {
		return nil, err
	}
	var s *Server
	_, err := onPorts(1, func(ports []int) (*Process, error) {
		if err := c.route(ctx, ports[0]); err != nil {
			return nil, err
		}
		var err error
		if s, err = c.server(ctx, c.Dir, ServerOptions{Namespace: SystemNamespace, ServiceAccount: ServiceName, Port: ports[0]}); err != nil {
			return nil, err
		}
		s.args = append(s.args, args...)
		err = s.Start(ctx)
		return s.Process, err
	})
	if err == nil {
		err = s.wait(ctx, "its API was available", c.available)
	}
	if err != nil && s != nil && s.Process != nil {
		err = errors.Join(err, s.Kill())
	}
	return s, err
}

// apply applies artifacts/deploy.
func (c *Cluster) apply(ctx context.Context) error {
	// kubectl keeps what it discovers: nothing that it finds before our API is there is for the tests.
	home := filepath.Join(c.Dir, "before")
	// Applied at once a namespace may be too new for what is in it.
	for _, args := range [][]string{{"-f", "artifacts/deploy/base/namespace.yaml"}, {"-k", "artifacts/deploy"}} {
		cmd := c.Kubectl(ctx, home, c.Kubeconfig, append([]string{"apply", "--server-side"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apply artifacts/deploy: %w\n%s", err, out)
		}
	}
	return nil
}

// route makes the Service one of type ExternalName, which the aggregator resolves by its name alone, so that it
// reaches a process of this machine.
func (c *Cluster) route(ctx context.Context, port int) error {
	err := c.Kube.CoreV1().Services(SystemNamespace).Delete(ctx, ServiceName, metav1.DeleteOptions{})
	if err != nil {
		return err
	}
	_, err = c.Kube.CoreV1().Services(SystemNamespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: ServiceName},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: "localhost",
			Ports: []corev1.ServicePort{{Name: "https", Port: int32(port)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"service": map[string]any{"port": port}}})
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return err
	}
	_, err = client.Resource(APIServices).Patch(ctx, APIServiceName, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (c *Cluster) available(ctx context.Context) error {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return err
	}
	obj, err := client.Resource(APIServices).Get(ctx, APIServiceName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, condition := range conditions {
		if m, ok := condition.(map[string]any); !ok || m["type"] != "Available" || m["status"] != "True" {
			return fmt.Errorf("APIService: %v", condition)
		}
	}
	for _, name := range []string{"plain", "raw"} {
		if _, err := c.Rukpak.RukpakV1alpha1().ProvisionerClasses().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	return c.discovered()
}

// discovered looks for our resources in the aggregated discovery, which kube-apiserver collects on its own time.
func (c *Cluster) discovered() error {
	_, lists, err := c.Kube.Discovery().ServerGroupsAndResources()
	if err != nil {
		return err
	}
	for _, list := range lists {
		if list.GroupVersion == v1alpha1.SchemeGroupVersion.String() && len(list.APIResources) > 0 {
			return nil
		}
	}
	return fmt.Errorf("discovery does not list %s", v1alpha1.SchemeGroupVersion)
}

// ServerOptions say how a server of a cluster runs.
type ServerOptions struct {
	// Namespace is that of its Service, its Secret and its service account.
	Namespace string
	// ServiceAccount is who it is.
	ServiceAccount string
	// Port is where it listens. 0 means a free one.
	Port int
}

// Server returns a server of this cluster that does not run yet, with its data in dir.
func (c *Cluster) Server(ctx context.Context, dir string, o ServerOptions) (*Server, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	o.Port = ports[0]
	return c.server(ctx, dir, o)
}

// token logs in as a service account.
func (c *Cluster) token(ctx context.Context, namespace, account string) (string, error) {
	token, err := c.Kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(validity.Seconds()))},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("log in as service account %s/%s: %w", namespace, account, err)
	}
	return token.Status.Token, nil
}

// As returns a client with the permissions of a service account.
func (c *Cluster) As(ctx context.Context, namespace, account string) (kubernetes.Interface, error) {
	token, err := c.token(ctx, namespace, account)
	if err != nil {
		return nil, err
	}
	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken = token
	return kubernetes.NewForConfig(config)
}

func (c *Cluster) server(ctx context.Context, dir string, o ServerOptions) (*Server, error) {
	token, err := c.token(ctx, o.Namespace, o.ServiceAccount)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "rukpak-apiserver.kubeconfig")
	if err := writeKubeconfig(config, c.URL, c.CA, &clientcmdapi.AuthInfo{Token: token}); err != nil {
		return nil, err
	}
	return newServer(c.Programs, dir, o.Port,
		"--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--service-name="+ServiceName, "--service-namespace="+o.Namespace, "--unpack-image="+UnpackImage,
		"--audit-policy-file="+filepath.Join(c.Root, "artifacts/deploy/base/audit-policy.yaml"), "--audit-log-path="+filepath.Join(dir, "audit.log"),
		"--content-gc-grace=20s", "--unpack-backoff=1s"), nil
}

// TokenAudience is the audience of tokens that are good at the server's own port alone.
const TokenAudience = v1alpha1.TokenAudience
