// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
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

const (
	// classesPause is after how long the list of classes is asked for again when it was not answered, and a class that could not be made is
	// tried again the first time. Each further time it is twice as long, up to classesMaxPause.
	classesPause    = time.Second
	classesMaxPause = 30 * time.Second
	// classesTimeout bounds one try.
	classesTimeout = 15 * time.Second
)

// classMaker makes the default classes once. Its zero value is ready for use.
type classMaker struct {
	tried atomic.Bool // whether there are classes is known, and each that was missing was tried

	made  sets.Set[string]  // by this process
	maybe sets.Set[string]  // may be made by it: the answer was lost
	said  map[string]string // of each class, why it could not be made
}

// run makes the default classes where there is no class at all. As soon as there is one that it has not made itself, classes are
// the administrator's alone, and one that was deleted stays so. It returns when that is done, or ctx ends.
func (m *classMaker) run(ctx context.Context, client clientset.Interface) error {
	m.made, m.maybe, m.said = sets.New[string](), sets.New[string](), map[string]string{}
	pause := classesPause
	for {
		done, err := m.step(ctx, client.RukpakV1alpha1().ProvisionerClasses())
		if done {
			return nil
		}
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot look for classes yet", "err", err)
			pause = classesPause
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
			pause = min(2*pause, classesMaxPause)
		}
	}
}

// step looks which classes there are, and tries once to make each that is missing. The error is that of the look.
func (m *classMaker) step(ctx context.Context, classes typed.ProvisionerClassInterface) (done bool, err error) {
	list, err := classes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	there := sets.New[string]()
	for _, c := range list.Items {
		there.Insert(c.Name)
	}
	done = true
	// The administrator has been here where there is a class that is none of these, or one of these is gone.
	if m.made.Union(m.maybe).IsSuperset(there) && there.IsSuperset(m.made) {
		for _, c := range defaultClasses() {
			if !there.Has(c.Name) && !m.make(ctx, classes, c) {
				done = false
			}
		}
	}
	m.tried.Store(true)
	return done, nil
}

// make reports whether the class is there now.
func (m *classMaker) make(ctx context.Context, classes typed.ProvisionerClassInterface, c *v1alpha1.ProvisionerClass) bool {
	log := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, classesTimeout)
	defer cancel()
	_, err := classes.Create(ctx, c, metav1.CreateOptions{})
	switch {
	case err == nil:
		m.made.Insert(c.Name)
		log.Info(fmt.Sprintf("Made the class %q, since there was none", c.Name))
		return true
	case apierrors.IsAlreadyExists(err):
		m.maybe.Insert(c.Name) // by another replica, or in a try before
		return true
	case !madeNothing(err):
		m.maybe.Insert(c.Name)
	}
	// What keeps it from being made may last, and is not said each time.
	if m.said[c.Name] != err.Error() {
		m.said[c.Name] = err.Error()
		log.Error(err, "Cannot make a default class", "class", c.Name)
	}
	return false
}

// madeNothing reports whether an error says that nothing was made. A connection that broke, or a server that was late, does not.
func madeNothing(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}

// ready fails until it was tried to have classes, so that a bundle that is made as soon as the server is ready has one. Whether they
// could be made is no matter: an admission webhook that is down would keep all of the API away. A server that
// refuses what it finds in etcd or the stores, or cannot look, makes none: verdict is why, and is said elsewhere.
func (m *classMaker) ready(verdict error) error {
	if m.tried.Load() || verdict != nil {
		return nil
	}
	return errors.New("whether there are classes is not known yet")
}
