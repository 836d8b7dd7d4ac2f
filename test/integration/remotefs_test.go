// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net"
	"sync/atomic"
	"testing"
	"testing/fstest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"rukpak.io/apiserver/pkg/bundleclient"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// metered counts what goes over a connection, both ways.
type metered struct {
	net.Conn
	bytes *atomic.Int64
}

func (c *metered) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

func (c *metered) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// TestRemoteFilesOfAServer reads files where they are: they are a file system, and a small one costs little of a large content.
func TestRemoteFilesOfAServer(t *testing.T) {
	t.Parallel()
	s, client := standalone(t)
	own := client.RukpakV1alpha1().Bundles("default")
	put := func(name string, entries ...entry) []byte {
		t.Helper()
		archive := canonical(t, entries...)
		must(own.Create(t.Context(), uploadBundle(name, "raw"), metav1.CreateOptions{}))(t)
		must(own.PutContent(t.Context(), name, bytes.NewReader(archive), typed.PutContentOptions{}))(t)
		return archive
	}
	var moved atomic.Int64
	config := must(clientcmd.BuildConfigFromFlags("", s.Kubeconfig()))(t)
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &metered{conn, &moved}, nil
	}
	remote := func(name string) *bundleclient.RemoteFS {
		t.Helper()
		c := must(bundleclient.NewForConfig(config, bundleclient.Options{}))(t)
		return must(c.OpenRemote(t.Context(), "default", name, bundleclient.OpenOptions{}))(t)
	}

	put("small", configMap("hello"), noise("data/bytes", 1, 200), entry{name: "empty"}, entry{name: "odd/%41 ?#é", body: "odd"},
		entry{name: "latest", flag: tar.TypeSymlink, link: "manifests"}, entry{name: "data/up", flag: tar.TypeSymlink, link: "../manifests/hello.yaml"})
	if err := fstest.TestFS(remote("small"), "manifests/hello.yaml", "data/bytes", "data/up", "latest", "empty", "odd/%41 ?#é"); err != nil {
		t.Error(err)
	}

	large := []entry{configMap("hello")}
	for i := range 40 {
		large = append(large, noise(fmt.Sprintf("data/%02d", i), uint64(i), 500_000), noise(fmt.Sprintf("manifests/%02d", i), uint64(i), 100))
	}
	archive := put("large", large...)
	want := configMap("hello").body
	moved.Store(0)
	files := remote("large")
	if files.Digest != digestOf(archive) {
		t.Errorf("the files are those of %s", files.Digest)
	}
	raw, err := fs.ReadFile(files, "manifests/hello.yaml")
	if string(raw) != want || err != nil {
		t.Errorf("%q, %v", raw, err)
	}
	direct := moved.Load()
	if info, err := fs.Stat(files, "manifests/hello.yaml"); err != nil || info.Size() != int64(len(want)) {
		t.Errorf("%v, %v", info, err)
	}
	t.Logf("of %d bytes a file of %d took %d, TLS among them, and its Stat %d", len(archive), len(want), direct, moved.Load()-direct)
	if all := moved.Load(); all*100 > int64(len(archive)) {
		t.Errorf("%d bytes were moved of %d", all, len(archive))
	}
}
