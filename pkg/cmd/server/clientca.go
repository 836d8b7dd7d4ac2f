// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// Where kube-apiserver publishes the authorities that sign client certificates.
const (
	authenticationNamespace = "kube-system"
	authenticationName      = "extension-apiserver-authentication"
	keyClientCA             = "client-ca-file"
	keyRequestHeaderCA      = "requestheader-client-ca-file"
)

// clientCATimeout bounds how long the server waits for these authorities before it serves without them.
const clientCATimeout = 10 * time.Second

// clientCAs are the authorities that sign client certificates, that of kube-apiserver's own among them. The
// generic server begins to serve before it knows them, and answers 401 to whoever is so quick; with this in front,
// it waits until they are there.
type clientCAs struct {
	dynamiccertificates.CAContentProvider
	// published returns what must be there.
	published func(context.Context) ([][]byte, error)
}

var _ dynamiccertificates.ControllerRunner = &clientCAs{}

// waitForClientCAs puts clientCAs in front of what the configuration has.
func (p *process) waitForClientCAs() {
	secure := p.config.SecureServing
	if p.kube == nil || secure == nil || secure.ClientCA == nil {
		return
	}
	var keys []string
	if p.Recommended.Authentication.ClientCert.ClientCA == "" {
		keys = append(keys, keyClientCA)
	}
	if p.Recommended.Authentication.RequestHeader.ClientCAFile == "" {
		keys = append(keys, keyRequestHeaderCA)
	}
	if p.Recommended.Authentication.SkipInClusterLookup {
		keys = nil
	}
	secure.ClientCA = &clientCAs{secure.ClientCA, func(ctx context.Context) ([][]byte, error) { return publishedCAs(ctx, p.kube, keys) }}
}

// publishedCAs reads authorities, as PEM. One that the cluster does not have is left out.
func publishedCAs(ctx context.Context, client kubernetes.Interface, keys []string) ([][]byte, error) {
	published, err := client.CoreV1().ConfigMaps(authenticationNamespace).Get(ctx, authenticationName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the authorities of client certificates: %w", err)
	}
	var found [][]byte
	for _, key := range keys {
		if pem := bytes.TrimSpace([]byte(published.Data[key])); len(pem) > 0 {
			found = append(found, pem)
		}
	}
	return found, nil
}

// RunOnce begins to follow the authorities, and returns when they are there. That is before the server listens.
func (c *clientCAs) RunOnce(ctx context.Context) error {
	controller, ok := c.CAContentProvider.(dynamiccertificates.ControllerRunner)
	if !ok {
		return nil
	}
	if err := controller.RunOnce(ctx); err != nil {
		return err
	}
	go controller.Run(ctx, 1)
	var expected [][]byte
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, clientCATimeout, true, func(ctx context.Context) (bool, error) {
		if expected == nil {
			published, err := c.published(ctx)
			if err != nil {
				klog.FromContext(ctx).V(2).Info("Cannot tell yet whether the authorities of client certificates are there", "err", err)
				return false, nil
			}
			expected = published
		}
		have := c.CurrentCABundleContent()
		for _, pem := range expected {
			if !bytes.Contains(have, pem) {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Serving without all authorities of client certificates: their requests are answered with 401 until they are there")
	}
	return nil
}

// Run does nothing more: RunOnce has begun what there is to do.
func (c *clientCAs) Run(ctx context.Context, _ int) { <-ctx.Done() }
