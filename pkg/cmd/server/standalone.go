// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	rukpakadmission "rukpak.io/apiserver/pkg/admission"
	"rukpak.io/apiserver/pkg/admission/defaultclass"
	"rukpak.io/apiserver/pkg/admission/requester"
	"rukpak.io/apiserver/pkg/identity"
	"rukpak.io/apiserver/pkg/pki"
)

const (
	// standaloneUser is who the kubeconfig of a standalone server logs in as.
	standaloneUser = "rukpak-admin"
	// clientValidity is how long that kubeconfig is good for. It is written anew after two thirds of it.
	clientValidity = 365 * 24 * time.Hour
)

// kubeconfigPath is where the kubeconfig of a standalone server is.
func (o *Options) kubeconfigPath() string { return filepath.Join(o.DataDir, "kubeconfig") }

// trustedFile is where the authorities of a standalone server are: those whose client certificates it takes.
func (o *Options) trustedFile() string { return filepath.Join(o.pkiDir(), "ca.crt") }

// observeStandalone returns what keeps the files of a standalone server right: the kubeconfig, and the authorities. Both are
// written at the start, when an authority comes or goes, and when the login gets old.
func (p *process) observeStandalone() func(*identity.Identity) error {
	var written struct {
		trusted []byte
		login   *pki.Authority
		renew   time.Time
	}
	return func(id *identity.Identity) error {
		if err := observeIdentity(id); err != nil {
			return err
		}
		trusted, now := id.Trusted(), time.Now()
		if bytes.Equal(written.trusted, trusted) && bytes.Equal(written.login.CertPEM, id.Current.CertPEM) && now.Before(written.renew) {
			return nil
		}
		if err := writeFile(p.trustedFile(), trusted); err != nil {
			return err
		}
		ca := trusted
		if !p.certificates.own {
			ca = nil // That of the system, if none was brought along.
			if p.certificates.brought != nil {
				ca = p.certificates.brought.bundle()
			}
		}
		if err := p.writeKubeconfig(id.Current, ca); err != nil {
			return err
		}
		written.trusted, written.login, written.renew = trusted, id.Current, now.Add(clientValidity*2/3)
		return nil
	}
}

// writeKubeconfig lets whoever can read the data dir log in, with a certificate of an authority. ca is what the server
// is trusted by.
func (o *Options) writeKubeconfig(authority *pki.Authority, ca []byte) error {
	cert, key, err := authority.Client(standaloneUser, []string{user.SystemPrivilegedGroup}, clientValidity)
	if err != nil {
		return err
	}
	serving := o.Recommended.SecureServing
	host := serving.BindAddress.String()
	if serving.BindAddress.IsUnspecified() {
		host = "127.0.0.1"
	}
	const name = "rukpak"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   "https://" + net.JoinHostPort(host, strconv.Itoa(serving.BindPort)),
		CertificateAuthorityData: ca,
	}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: "default"}
	config.CurrentContext = name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encode the kubeconfig: %w", err)
	}
	return writeFile(o.kubeconfigPath(), data)
}

// standaloneAdmission is the admission of a server without a cluster: this server's own plugins. The
// others need objects of the cluster.
func (o *Options) standaloneAdmission(ctx context.Context, config *genericapiserver.RecommendedConfig, own rukpakadmission.Initializer) error {
	chain, err := o.Recommended.Admission.Plugins.NewFromPlugins(
		[]string{defaultclass.PluginName, requester.PluginName}, noPluginConfig{},
		admission.PluginInitializers{own, initializer.New(nil, nil, nil, config.Authorization.Authorizer, config.FeatureGate, config.EffectiveVersion, ctx.Done(), nil)}, nil)
	if err != nil {
		return fmt.Errorf("make the admission chain: %w", err)
	}
	config.AdmissionControl = chain
	return nil
}
