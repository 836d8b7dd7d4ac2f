// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	rukpakadmission "rukpak.io/apiserver/pkg/admission"
	"rukpak.io/apiserver/pkg/admission/defaultclass"
	"rukpak.io/apiserver/pkg/admission/requester"
)

// standaloneUser is who the kubeconfig of a standalone server logs in as.
const standaloneUser = "rukpak-admin"

// kubeconfigPath is where the kubeconfig of a standalone server is.
func (o *Options) kubeconfigPath() string { return filepath.Join(o.DataDir, "kubeconfig") }

// writeKubeconfig lets whoever can read the data dir log in.
func (o *Options) writeKubeconfig(id *identity) error {
	cert, key, err := id.authority.Client(standaloneUser, []string{user.SystemPrivilegedGroup}, clientValidity)
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
		CertificateAuthorityData: id.authority.CertPEM,
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
