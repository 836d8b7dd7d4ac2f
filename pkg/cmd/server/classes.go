// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
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

// classMaker makes the default classes once.
type classMaker struct{ done atomic.Bool }

// run makes the default classes where there is no class at all. As soon as there is one, classes are the administrator's
// alone: one that was deleted stays so. It returns when that is done, or ctx ends.
func (m *classMaker) run(ctx context.Context, client clientset.Interface) error {
	classes := client.RukpakV1alpha1().ProvisionerClasses()
	var missing []*v1alpha1.ProvisionerClass
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		log := klog.FromContext(ctx)
		if missing == nil {
			list, err := classes.List(ctx, metav1.ListOptions{Limit: 1})
			if err != nil {
				log.V(2).Info("Cannot look for classes yet", "err", err)
				return false, nil
			}
			if len(list.Items) == 0 {
				missing = defaultClasses()
			}
		}
		for len(missing) > 0 {
			c := missing[0]
			if _, err := classes.Create(ctx, c, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				log.Error(err, "Cannot make a default class", "class", c.Name)
				return false, nil
			}
			log.Info(fmt.Sprintf("Made the class %q, since there was none", c.Name))
			missing = missing[1:]
		}
		m.done.Store(true)
		return true, nil
	})
}

// ready fails until the classes are there, so that a bundle that is made as soon as the server is ready has one. A server that
// refuses what it finds in etcd or the stores, or cannot look, makes none: verdict is why, and is said elsewhere.
func (m *classMaker) ready(verdict error) error {
	if m.done.Load() || verdict != nil {
		return nil
	}
	return errors.New("whether there are classes is not known yet")
}
