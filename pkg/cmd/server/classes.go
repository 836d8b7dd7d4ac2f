// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
)

// defaultClasses are those of a server that has none. They cannot be in the manifests: there is no API
// to apply them to while those are applied.
func defaultClasses() []*v1alpha1.ProvisionerClass {
	return []*v1alpha1.ProvisionerClass{
		{
			ObjectMeta:  metav1.ObjectMeta{Name: "plain", Annotations: map[string]string{v1alpha1.AnnotationIsDefaultClass: "true"}},
			Provisioner: v1alpha1.ProvisionerPlain,
		},
		{
			ObjectMeta:  metav1.ObjectMeta{Name: "raw"},
			Provisioner: v1alpha1.ProvisionerRaw,
		},
	}
}

// ensureClasses makes the default classes where there is no class at all. As soon as there is one, classes
// are the administrator's alone: one that was deleted stays so.
func ensureClasses(ctx context.Context, client clientset.Interface) error {
	classes := client.RukpakV1alpha1().ProvisionerClasses()
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		list, err := classes.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot look for classes yet", "err", err)
			return false, nil
		}
		if len(list.Items) > 0 {
			return true, nil
		}
		for _, c := range defaultClasses() {
			if _, err := classes.Create(ctx, c, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				klog.FromContext(ctx).Error(err, "Cannot make a default class", "class", c.Name)
				return false, nil
			}
			klog.FromContext(ctx).Info(fmt.Sprintf("Made the class %q, since there was none", c.Name))
		}
		return true, nil
	})
}
