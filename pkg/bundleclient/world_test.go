// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient_test

import (
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/bundleclient/bundletest"
)

func startAPI(t *testing.T) *bundletest.API {
	t.Helper()
	a := bundletest.Start()
	t.Cleanup(a.Close)
	return a
}

// clientOf has short pauses.
func clientOf(t *testing.T, a *bundletest.API, opts bundleclient.Options) *bundleclient.Client {
	t.Helper()
	opts.MinBackoff, opts.PollInterval = time.Millisecond, 5*time.Millisecond
	client, err := bundleclient.NewForConfig(a.Config(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// files are a tree in which every file says which one it is of.
func files(mark string, n int) fstest.MapFS {
	tree := fstest.MapFS{"empty": {Mode: fs.ModeDir | 0o755}, "latest": {Data: []byte("data"), Mode: fs.ModeSymlink | 0o777}}
	for i := range n {
		tree[fmt.Sprintf("data/%03d.txt", i)] = &fstest.MapFile{Data: []byte(mark), Mode: 0o644}
	}
	return tree
}

// markOf reads what every file says, which has to be the same.
func markOf(tree fs.FS) (string, error) {
	entries, err := fs.ReadDir(tree, "data")
	if err != nil {
		return "", err
	}
	mark := ""
	for _, e := range entries {
		raw, err := fs.ReadFile(tree, "data/"+e.Name())
		if err != nil {
			return "", err
		}
		if mark != "" && mark != string(raw) {
			return "", fmt.Errorf("file %s says %q, those before %q", e.Name(), raw, mark)
		}
		mark = string(raw)
	}
	return mark, nil
}

// noneLeft fails if a goroutine of the library runs.
func noneLeft(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, "/pkg/bundleclient.") {
			t.Errorf("a goroutine is left:\n%s", stack)
		}
	}
}
