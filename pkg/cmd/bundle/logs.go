// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// logs prints what an unpack pod says.
func (s *session) logs() *cobra.Command {
	follow := false
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print what the unpack pod of a bundle says, while it is there",
		Long: `Print the logs of the containers of a bundle's unpack pod. The pod is there while it unpacks, and may unpack other bundles of the namespace too;
what went wrong with the last one is in the bundle's status, and this command says it when there is no pod.`,
		Example: `  kubectl bundle logs app

  # Until it ends
  kubectl bundle logs app -f`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := s.bundle(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return s.podLogs(cmd.Context(), b, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "Go on until the pod ends.")
	return cmd
}

func (s *session) podLogs(ctx context.Context, b *v1alpha1.Bundle, follow bool) error {
	client, err := s.kubernetes()
	if err != nil {
		return err
	}
	p, err := unpackPod(ctx, client, b)
	if err != nil {
		return err
	}
	if p == nil {
		return fail(ExitNotFound, fmt.Errorf("bundle %q in namespace %q has no unpack pod now: %s", b.Name, b.Namespace, stateOf(b).stage()),
			"\"%s describe %s%s\" says how the last attempt went", program, b.Name, s.where(b.Namespace))
	}
	containers := slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
	for _, c := range containers {
		s.say("pod/%s, container %s:", p.Name, c.Name)
		if err := s.begunLogs(ctx, client, p, c.Name, follow); err != nil {
			return err
		}
	}
	return nil
}

// begunLogs prints the logs of a container, or why it has none. With follow it waits for them until the pod ends.
func (s *session) begunLogs(ctx context.Context, client kubernetes.Interface, p *corev1.Pod, container string, follow bool) error {
	said := ""
	for last := !follow; ; {
		err := s.containerLogs(ctx, client, p, container, follow)
		// 400 says that the container has not started, and 404, beside that the pod is gone, that its node does not know of it yet.
		if !apierrors.IsBadRequest(err) && !(follow && apierrors.IsNotFound(err)) {
			return err
		}
		if err.Error() != said {
			said = err.Error()
			s.say("  %s", said)
		}
		if last {
			return nil
		}
		// What it said between that answer and its end is still to be printed.
		if last, err = hasEnded(ctx, client, p, apierrors.IsNotFound(err)); err != nil {
			return err
		}
		if last {
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchPause):
		}
	}
}

// hasEnded reports whether no container of a pod will start any more. Of a pod that may not be got, otherwise decides.
func hasEnded(ctx context.Context, client kubernetes.Interface, p *corev1.Pod, otherwise bool) (bool, error) {
	now, err := client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsForbidden(err):
		return otherwise, nil
	case err != nil:
		return false, err
	}
	return now.UID != p.UID || now.Status.Phase == corev1.PodSucceeded || now.Status.Phase == corev1.PodFailed, nil
}

// unpackPod finds the pod of the current attempt, which may be one of several bundles, or else the newest that an attempt
// of this bundle alone had. It returns nil if there is none.
func unpackPod(ctx context.Context, client kubernetes.Interface, b *v1alpha1.Bundle) (*corev1.Pod, error) {
	current, err := currentPod(ctx, client, b)
	if current != nil || err != nil {
		return current, err
	}
	list, err := client.CoreV1().Pods(b.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(labels.Set{v1alpha1.LabelBundleUID: string(b.UID)}).String(),
	})
	if apierrors.IsNotFound(err) {
		return nil, nil // A standalone server has no pods.
	}
	if err != nil {
		return nil, err
	}
	var found *corev1.Pod
	for i := range list.Items {
		p := &list.Items[i]
		if u := b.Status.Unpack; u != nil && p.UID == u.PodUID {
			return p, nil
		}
		// A pod that looks a tag up says nothing.
		if !pod.IsLook(p) && (found == nil || found.CreationTimestamp.Before(&p.CreationTimestamp)) {
			found = p
		}
	}
	return found, nil
}

// currentPod gets the pod that the bundle's status names. It returns nil if that is not there, or may not be got.
func currentPod(ctx context.Context, client kubernetes.Interface, b *v1alpha1.Bundle) (*corev1.Pod, error) {
	u := b.Status.Unpack
	if u == nil || u.PodName == "" {
		return nil, nil
	}
	p, err := client.CoreV1().Pods(b.Namespace).Get(ctx, u.PodName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, err
	case u.PodUID != "" && u.PodUID != p.UID:
		return nil, nil // somebody else's of that name
	}
	return p, nil
}

func (s *session) containerLogs(ctx context.Context, client kubernetes.Interface, p *corev1.Pod, container string, follow bool) (err error) {
	stream, err := client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: container, Follow: follow}).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	_, err = io.Copy(s.output(""), stream)
	return err
}
