// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rukpak.io/apiserver/pkg/pki"
)

const validity = 24 * time.Hour

// certificates are those of a control plane, as files in one folder.
type certificates struct {
	dir        string
	ca         *pki.Authority
	frontProxy *pki.Authority
}

func (c *certificates) path(name string) string { return filepath.Join(c.dir, name) }

// makeCertificates makes the two authorities of a control plane, and what kube-apiserver serves and
// signs with.
func makeCertificates(dir string) (*certificates, error) {
	c := &certificates{dir: dir}
	var err error
	if c.ca, err = pki.NewAuthority("kubernetes", validity); err != nil {
		return nil, err
	}
	if c.frontProxy, err = pki.NewAuthority("front-proxy", validity); err != nil {
		return nil, err
	}
	serving, servingKey, err := c.ca.Serving([]string{"localhost", "kubernetes.default.svc"}, []net.IP{net.IPv4(127, 0, 0, 1)}, validity)
	if err != nil {
		return nil, err
	}
	proxy, proxyKey, err := c.frontProxy.Client("front-proxy-client", nil, validity)
	if err != nil {
		return nil, err
	}
	tokens, err := pki.NewAuthority("service-accounts", validity)
	if err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{
		"ca.crt": c.ca.CertPEM, "front-proxy-ca.crt": c.frontProxy.CertPEM,
		"apiserver.crt": serving, "apiserver.key": servingKey,
		"front-proxy-client.crt": proxy, "front-proxy-client.key": proxyKey, "sa.crt": tokens.CertPEM, "sa.key": tokens.KeyPEM,
	} {
		if err := os.WriteFile(c.path(name), data, 0o600); err != nil {
			return nil, fmt.Errorf("keep the certificates of the control plane: %w", err)
		}
	}
	return c, nil
}

// userKubeconfig writes the kubeconfig of a user who logs in with a certificate.
func (c *certificates) userKubeconfig(path, server, user string, groups ...string) error {
	cert, key, err := c.ca.Client(user, groups, validity)
	if err != nil {
		return err
	}
	return writeKubeconfig(path, server, c.ca.CertPEM, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

func writeKubeconfig(path, server string, ca []byte, user *clientcmdapi.AuthInfo) error {
	const name = "test"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: "default"}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write the kubeconfig %s: %w", path, err)
	}
	return nil
}
