// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// logs prints what an unpack pod says.
func (s *session) logs() *cobra.Command {
	follow := false
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print what the unpack pod of a bundle says, while it is there",
		Long: `Print the logs of the containers of a bundle's unpack pod. The pod is there while it unpacks; what went wrong with the last one is in
the bundle's status, and this command says it when there is no pod.`,
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
	pod, err := unpackPod(ctx, client, b)
	if err != nil {
		return err
	}
	if pod == nil {
		return fail(ExitNotFound, fmt.Errorf("bundle %q in namespace %q has no unpack pod now: %s", b.Name, b.Namespace, stateOf(b).stage()),
			"\"%s describe %s -n %s\" says how the last attempt went", program, b.Name, b.Namespace)
	}
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for _, c := range containers {
		s.say("pod/%s, container %s:", pod.Name, c.Name)
		err := s.containerLogs(ctx, client, pod, c.Name, follow)
		if apierrors.IsBadRequest(err) {
			s.say("  %s", clean(err.Error())) // It has not started.
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unpackPod finds the pod of the current attempt, or else the newest of the bundle's. It returns nil if there is none.
func unpackPod(ctx context.Context, client kubernetes.Interface, b *v1alpha1.Bundle) (*corev1.Pod, error) {
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
		if found == nil || cmp.Compare(found.CreationTimestamp.Unix(), p.CreationTimestamp.Unix()) < 0 {
			found = p
		}
	}
	return found, nil
}

func (s *session) containerLogs(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, container string, follow bool) (err error) {
	stream, err := client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container, Follow: follow}).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	_, err = io.Copy(s.Out, stream)
	return err
}
