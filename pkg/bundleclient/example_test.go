// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"testing/fstest"

	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/bundleclient/bundletest"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// inCluster stands for rest.InClusterConfig, with a server in this process that has the bundle team-a/app.
func inCluster() (*rest.Config, error) {
	a := bundletest.Start()
	a.Put("team-a/app", fstest.MapFS{
		"manifests/app.yaml":     {Data: []byte("kind: Deployment\n"), Mode: 0o644},
		"manifests/service.yaml": {Data: []byte("kind: Service\n"), Mode: 0o644},
	}, true)
	return a.Config(), nil
}

// The files of a bundle are an io/fs.FS.
func ExampleClient_Open() {
	ctx := context.Background()
	config, err := inCluster() // rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	client, err := bundleclient.NewForConfig(config, bundleclient.Options{})
	if err != nil {
		log.Fatal(err)
	}
	files, err := client.Open(ctx, "team-a", "app", bundleclient.OpenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer files.Close()
	names, err := fs.Glob(files.FS(), "manifests/*.yaml")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(names)
	// Output: [manifests/app.yaml manifests/service.yaml]
}

// One file of a bundle is read without fetching the others.
func ExampleClient_OpenRemote() {
	ctx := context.Background()
	config, err := inCluster() // rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	client, err := bundleclient.NewForConfig(config, bundleclient.Options{})
	if err != nil {
		log.Fatal(err)
	}
	files, err := client.OpenRemote(ctx, "team-a", "app", bundleclient.OpenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	manifest, err := fs.ReadFile(files, "manifests/app.yaml")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", manifest)
	// Output: kind: Deployment
}

// A cache on disk, which all processes of a user may share, keeps contents by their digest.
func ExampleOpenCache() {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cache, err := bundleclient.OpenCache(dir, bundleclient.CacheOptions{MaxBytes: 1 << 30})
	if err != nil {
		log.Fatal(err)
	}
	config, err := inCluster()
	if err != nil {
		log.Fatal(err)
	}
	client, err := bundleclient.NewForConfig(config, bundleclient.Options{Cache: cache})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 { // the second time nothing is fetched
		files, err := client.Open(context.Background(), "team-a", "app", bundleclient.OpenOptions{})
		if err != nil {
			log.Fatal(err)
		}
		raw, err := fs.ReadFile(files.FS(), "manifests/app.yaml")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(string(raw))
		files.Close()
	}
	// Output:
	// kind: Deployment
	// kind: Deployment
}

// A handler is called with the content that there is, and with each that comes.
func ExampleClient_Watch() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	config, err := inCluster()
	if err != nil {
		log.Fatal(err)
	}
	client, err := bundleclient.NewForConfig(config, bundleclient.Options{})
	if err != nil {
		log.Fatal(err)
	}
	err = client.Watch(ctx, "team-a", "app", func(ctx context.Context, bundle *v1alpha1.Bundle, files fs.FS) error {
		names, err := fs.Glob(files, "manifests/*")
		if err != nil {
			return err // it is called again, later
		}
		fmt.Println(bundle.Name, len(names))
		cancel() // a controller goes on
		return nil
	})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// app 2
	// true
}

// A bundle whose source is an upload takes the files of any io/fs.FS.
func ExampleClient_Push() {
	config, err := inCluster()
	if err != nil {
		log.Fatal(err)
	}
	client, err := bundleclient.NewForConfig(config, bundleclient.Options{})
	if err != nil {
		log.Fatal(err)
	}
	files := fstest.MapFS{"hello.txt": {Data: []byte("hello"), Mode: 0o644}} // or os.DirFS("folder")
	bundle, err := client.Push(context.Background(), "team-a", "mine", files, bundleclient.PushOptions{})
	if err != nil {
		log.Fatal(err)
	}
	content, err := client.Stream(context.Background(), "team-a", "mine", typed.GetContentOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer content.Close()
	fmt.Println(content.Digest == bundle.Status.Content.Digest)
	// Output: true
}

// With a Route large contents come straight from the server, where the cluster allows that.
func ExampleNewRoute() {
	config, err := inCluster()
	if err != nil {
		log.Fatal(err)
	}
	route, err := bundleclient.NewRoute(config, bundleclient.RouteOptions{TokenFile: "/var/run/secrets/rukpak.io/token"})
	if err != nil {
		log.Fatal(err)
	}
	client := bundleclient.New(route, bundleclient.Options{})
	files, err := client.Open(context.Background(), "team-a", "app", bundleclient.OpenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer files.Close()
	fmt.Println(route.Direct() == nil) // here nobody may read the APIService
	// Output: false
}
