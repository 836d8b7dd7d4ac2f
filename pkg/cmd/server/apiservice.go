// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// registerInterval is how often the APIService is looked at.
const registerInterval = 30 * time.Second

var (
	apiServices    = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	apiServiceName = v1alpha1.SchemeGroupVersion.Version + "." + v1alpha1.GroupName
)

// registration keeps the caBundle of the APIService right, so that kube-apiserver trusts this server.
type registration struct {
	client             dynamic.Interface
	service, namespace string
	ca                 []byte
}

// run looks at the APIService until ctx ends: at once, soon after a failure, and from time to time, since somebody may
// apply the manifest again.
func (r *registration) run(ctx context.Context) {
	log := klog.FromContext(ctx)
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: registerInterval, Steps: 20, Jitter: 0.1}
	for ctx.Err() == nil {
		pause := registerInterval
		if changed, err := r.ensure(ctx); err != nil {
			log.Error(err, "Cannot set the authority of the APIService", "apiservice", apiServiceName)
			pause = backoff.Step()
		} else if changed {
			log.Info("Set the authority of the APIService", "apiservice", apiServiceName)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// ensure sets the caBundle where it is another. It leaves an APIService of somebody else's alone.
func (r *registration) ensure(ctx context.Context) (bool, error) {
	services := r.client.Resource(apiServices)
	obj, err := services.Get(ctx, apiServiceName, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	name, _, _ := unstructured.NestedString(obj.Object, "spec", "service", "name")
	namespace, _, _ := unstructured.NestedString(obj.Object, "spec", "service", "namespace")
	if name != r.service || namespace != r.namespace {
		return false, fmt.Errorf("it belongs to the service %q in namespace %q, not to this server's %q in %q: two servers cannot serve one API", name, namespace, r.service, r.namespace)
	}
	want := base64.StdEncoding.EncodeToString(r.ca)
	if got, _, _ := unstructured.NestedString(obj.Object, "spec", "caBundle"); got == want {
		return false, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": obj.GetResourceVersion()},
		"spec":     map[string]any{"caBundle": want},
	})
	if err != nil {
		return false, err
	}
	_, err = services.Patch(ctx, apiServiceName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "rukpak-apiserver"})
	return err == nil, err
}
