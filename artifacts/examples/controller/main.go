// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Command controller is an example: it follows the content of one bundle and says which Kubernetes objects are in it. A controller of yours
// does in handle what it is for. It needs no permission but get on bundles/content of that bundle; with watch on the bundle it
// learns of new content at once, and else within half a minute.
//
//	controller NAMESPACE NAME
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bundleclient"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: controller NAMESPACE NAME")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2]); !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, namespace, name string) error {
	// In a pod the service account; elsewhere what KUBECONFIG says.
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := bundleclient.NewForConfig(config, bundleclient.Options{})
	if err != nil {
		return err
	}
	return client.Watch(ctx, namespace, name, handle)
}

// handle is called with the content that there is, and with each that comes. After an error it is called again, later.
func handle(_ context.Context, bundle *v1alpha1.Bundle, files fs.FS) error {
	fmt.Printf("%s/%s has %s\n", bundle.Namespace, bundle.Name, bundle.Status.Content.Digest)
	return fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || !strings.HasSuffix(path, ".yaml") {
			return err
		}
		f, err := files.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return list(path, f)
	})
}

// list prints the objects of a manifest.
func list(path string, manifest io.Reader) error {
	for documents := yaml.NewYAMLOrJSONDecoder(manifest, 4096); ; {
		object := unstructured.Unstructured{}
		err := documents.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if object.Object != nil {
			fmt.Printf("%s: %s %s\n", path, object.GetKind(), object.GetName())
		}
	}
}
