// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// removePodsTimeout bounds the whole of remove-pods: a runtime that hangs must
// not hang the tearing down of the cluster.
const removePodsTimeout = 90 * time.Second

// removePods stops and removes every pod of the container runtime whose socket
// is the only argument. The kubelet must be gone, or it would make them again.
func removePods() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: remove-pods SOCKET")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), removePodsTimeout)
	defer cancel()
	if err := removePodsFrom(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "remove-pods:", err)
		os.Exit(1)
	}
}

func removePodsFrom(ctx context.Context, socket string) (err error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", socket, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	runtime := cri.NewRuntimeServiceClient(conn)
	list, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	var errs []error
	for _, pod := range list.Items {
		if err := removePod(ctx, runtime, pod.Id); err != nil {
			errs = append(errs, fmt.Errorf("pod %s/%s: %w", pod.Metadata.Namespace, pod.Metadata.Name, err))
		}
	}
	return errors.Join(errs...)
}

func removePod(ctx context.Context, runtime cri.RuntimeServiceClient, id string) error {
	containers, err := runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: id}})
	if err != nil {
		return fmt.Errorf("listing containers: %w", err)
	}
	for _, c := range containers.Containers {
		// Stopping the pod alone would wait out each container's grace period.
		if _, err := runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.Id}); err != nil {
			return fmt.Errorf("stopping container %s: %w", c.Metadata.GetName(), err)
		}
	}
	if _, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("stopping: %w", err)
	}
	if _, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("removing: %w", err)
	}
	return nil
}
