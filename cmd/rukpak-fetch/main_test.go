// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rukpak.io/apiserver/pkg/bundleclient/bundletest"
	"rukpak.io/apiserver/pkg/fetch"
)

// kubeconfig leads to an API with the bundle team/app.
func kubeconfig(t *testing.T) (a *bundletest.API, digest, path string) {
	t.Helper()
	a = bundletest.Start()
	t.Cleanup(a.Close)
	digest = a.Put("team/app", fstest.MapFS{"hello": {Data: []byte("hello"), Mode: 0o600}}, true)
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: a.URL}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test"}
	config.CurrentContext = "test"
	path = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return a, digest, path
}

// Told to end while another has the volume, whoever follows has done what it was told, and whoever was to fetch once has not.
func TestItEndsWhileItWaitsForTheVolume(t *testing.T) {
	_, _, config := kubeconfig(t)
	dir := t.TempDir()
	volume, err := fetch.OpenVolume(t.Context(), dir, fetch.VolumeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer volume.Close()
	for args, want := range map[string]int{"--follow": 0, "--timeout=1m": 1} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		var stdout, stderr bytes.Buffer
		if code := command(ctx, []string{"--kubeconfig=" + config, args, "team/app", dir}, &stdout, &stderr); code != want {
			t.Errorf("%s: %d\n%s", args, code, stderr.String())
		}
	}
}

// Outside a pod it takes what kubectl takes, the namespace included, and says where there is nothing to take.
func TestItTakesTheKubeconfigOfKubectl(t *testing.T) {
	_, digest, path := kubeconfig(t)
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	config.Contexts["test"].Namespace = "team"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
	dir := t.TempDir()
	var stdout, stderr bytes.Buffer
	if code := command(t.Context(), []string{"app", dir}, &stdout, &stderr); code != 0 {
		t.Fatalf("%d\n%s", code, stderr.String())
	}
	if got, err := fetch.Current(dir); got != digest {
		t.Errorf("%q, %v", got, err)
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	for name, want := range map[string]int{"team/app": 1, "app": 2} {
		stderr.Reset()
		if code := command(t.Context(), []string{name, dir}, &stdout, &stderr); code != want || !strings.Contains(stderr.String(), "--kubeconfig or KUBECONFIG") {
			t.Errorf("%s: %d\n%s", name, code, stderr.String())
		}
	}
}

func TestTheCommandLine(t *testing.T) {
	_, digest, config := kubeconfig(t)
	dir, empty, foreign := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "current"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name           string
		args           string
		code           int
		stdout, stderr string
	}{
		{"nothing", "", 2, "", "the bundle and the folder are to be given"},
		{"help", "--help", 0, "", "--notify-url"},
		{"no name", "team/ " + dir, 2, "", `"team/" is not [NAMESPACE/]NAME`},
		{"two slashes", "a/b/c " + dir, 2, "", "is not [NAMESPACE/]NAME"},
		{"a flag that is none", "--never team/app " + dir, 2, "", "--never"},
		{"check without content", "check " + empty, 1, "", "there is no content in " + empty},
		{"content", "--kubeconfig=" + config + " team/app " + dir, 0, "", ""},
		{"content again", "--kubeconfig=" + config + " team/app " + dir, 0, "", ""},
		{"check", "check " + dir, 0, digest + "\n", ""},
		{"a bundle that is not there", "--kubeconfig=" + config + " --timeout=50ms team/none " + empty, 1, "", "no content of bundle team/none was in place within 50ms"},
		{"a folder that is not there", "--kubeconfig=" + config + " team/app " + dir + "/none", 1, "", "there is no folder " + dir + "/none"},
		{"a signal that is none", "--kubeconfig=" + config + " --signal-pid-file=x --signal=NEVER team/app " + dir, 1, "", `"NEVER" is no signal`},
		{"something foreign", "--kubeconfig=" + config + " team/app " + foreign, 1, "", foreign + "/current is a file that was not put there by rukpak-fetch"},
		{"something foreign, followed", "--kubeconfig=" + config + " --follow team/app " + foreign, 1, "", "remove it, or use another folder"},
		{"check something foreign", "check " + foreign, 1, "", foreign + "/current is a file"},
		{"nobody to tell at first", "--kubeconfig=" + config + " --notify-url=http://127.0.0.1:1/ team/app " + dir, 0, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := command(t.Context(), strings.Fields(test.args), &stdout, &stderr)
			if code != test.code || stdout.String() != test.stdout || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("%d\n%s%s", code, stdout.String(), stderr.String())
			}
		})
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "current", "hello")); string(raw) != "hello" {
		t.Errorf("%q, %v", raw, err)
	}
}
