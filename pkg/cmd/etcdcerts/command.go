// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdcerts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
)

// runTimeout bounds one run, all calls of kube-apiserver included.
const runTimeout = time.Minute

// NewCommand returns the command that makes the certificates once, and says what it wrote.
func NewCommand() *cobra.Command {
	config := Config{Namespace: os.Getenv("POD_NAMESPACE"), Name: "rukpak-etcd", ClusterDomain: "cluster.local"}
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "etcd-certs",
		Short: "Make the certificates of the server's etcd cluster, or renew them, as Secrets",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config.Namespace == "" {
				return errors.New("--namespace is required where POD_NAMESPACE is not set")
			}
			client, err := newClient(kubeconfig)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), runTimeout)
			defer cancel()
			written, err := Ensure(ctx, client, config, time.Now())
			for _, name := range written {
				fmt.Fprintf(cmd.OutOrStdout(), "wrote secret %s/%s\n", config.Namespace, name)
			}
			return err
		},
	}
	var sets cliflag.NamedFlagSets
	fs := sets.FlagSet("etcd-certs")
	fs.StringVar(&kubeconfig, "kubeconfig", "", "How to reach the cluster. Empty means the service account of the pod.")
	fs.StringVar(&config.Namespace, "namespace", config.Namespace, "Namespace of etcd and of the Secrets. Defaults to POD_NAMESPACE from the environment.")
	fs.StringVar(&config.Name, "name", config.Name, "Name of the headless Service of etcd, and what the names of the Secrets begin with.")
	fs.StringVar(&config.ClusterDomain, "cluster-domain", config.ClusterDomain, "Domain of the cluster's DNS.")
	cmd.Flags().AddFlagSet(fs)
	// Without its own it would show the flags of the server.
	cliflag.SetUsageAndHelpFunc(cmd, sets, 0)
	return cmd
}

func newClient(kubeconfig string) (kubernetes.Interface, error) {
	load := rest.InClusterConfig
	if kubeconfig != "" {
		load = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", kubeconfig) }
	}
	config, err := load()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client of the cluster: %w", err)
	}
	return client, nil
}
