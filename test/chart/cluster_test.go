// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	release   = "rukpak"
	chart     = "../../artifacts/charts/rukpak-apiserver"
	registry  = "127.0.0.1:5000"
	api       = "/apis/rukpak.io/v1alpha1"
	pollEvery = 100 * time.Millisecond
	patience  = 2 * time.Minute
	nonRoot   = 65532 // the user of the server
)

func TestMain(m *testing.M) {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// clusterVariable names the kubeconfig of the cluster that is tested. It is not KUBECONFIG: these tests take over the whole cluster, and
// folders of the machine, so it has to be one that was made for them.
const clusterVariable = "RUKPAK_CHART_KUBECONFIG"

// prepare makes sure that there is a cluster to test, and that its programs are found.
func prepare() error {
	kubeconfig := os.Getenv(clusterVariable)
	if kubeconfig == "" {
		return fmt.Errorf("%s is not set: `make e2e-chart` brings up a cluster and runs these tests on it", clusterVariable)
	}
	if err := os.Setenv("KUBECONFIG", kubeconfig); err != nil {
		return err
	}
	bin, err := filepath.Abs("../../_output/bin")
	if err != nil {
		return err
	}
	return os.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// try runs a program, and returns what it says on standard output.
func try(ctx context.Context, input string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out), nil
}

func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := try(t.Context(), "", program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "kubectl", args...)
}

func apply(t *testing.T, manifest string, args ...any) {
	t.Helper()
	if _, err := try(t.Context(), fmt.Sprintf(manifest, args...), "kubectl", "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// until waits for what a condition says.
func until(t *testing.T, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(pollEvery):
		}
	}
}

// install installs or upgrades the release, with the image of the local registry, and waits for the API.
func install(t *testing.T, namespace string, values ...string) {
	t.Helper()
	digest := strings.TrimSpace(run(t, "crane", "digest", registry+"/rukpak-apiserver:latest"))
	args := []string{
		"upgrade", "--install", release, chart, "--namespace=" + namespace, "--wait", "--timeout=" + patience.String(),
		"--set=image.repository=" + registry + "/rukpak-apiserver,image.digest=" + digest,
	}
	run(t, "helm", append(args, values...)...)
	kubectl(t, "wait", "--for=condition=Available", "--timeout="+patience.String(), "apiservice/v1alpha1.rukpak.io")
	until(t, func() error {
		_, err := try(t.Context(), "", "kubectl", "get", "--raw", api)
		return err
	})
}

func uninstall(t *testing.T, namespace string) {
	t.Helper()
	run(t, "helm", "uninstall", release, "--namespace="+namespace, "--wait", "--timeout="+patience.String())
	kubectl(t, "wait", "--for=delete", "--timeout="+patience.String(), "pod", "-n", namespace, "--selector=app.kubernetes.io/name=rukpak-apiserver")
}

// newNamespace is one for a release, as artifacts/deploy/README.md says. It goes with the test, and before it the release, if that is still
// there: no namespace ends while the API points at a server that is gone.
func newNamespace(t *testing.T, name string) {
	t.Helper()
	kubectl(t, "create", "namespace", name)
	t.Cleanup(func() {
		if _, err := try(context.Background(), "", "helm", "uninstall", release, "--namespace="+name, "--ignore-not-found", "--wait", "--timeout="+patience.String()); err != nil {
			t.Error(err)
		}
		remove(t, "namespace", name)
	})
	kubectl(t, "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
}

// newVolume makes a volume of the node for a claim, since the cluster has no StorageClass.
func newVolume(t *testing.T, name, size, namespace, claim string) {
	t.Helper()
	dir := t.TempDir()
	for folder := dir; folder != os.TempDir() && folder != "/"; folder = filepath.Dir(folder) {
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, nonRoot, nonRoot); err != nil {
		t.Fatal(err)
	}
	apply(t, `{apiVersion: v1, kind: PersistentVolume, metadata: {name: %q}, spec: {capacity: {storage: %q}, accessModes: [ReadWriteOnce],
		storageClassName: "", claimRef: {namespace: %q, name: %q}, hostPath: {path: %q, type: Directory}}}`, name, size, namespace, claim, dir)
	t.Cleanup(func() { remove(t, "pv", name) })
}

// remove deletes an object at the end of a test, whose context has ended.
func remove(t *testing.T, args ...string) {
	if _, err := try(context.Background(), "", "kubectl", append([]string{"delete", "--ignore-not-found", "--timeout=60s"}, args...)...); err != nil {
		t.Error(err)
	}
}

// newImage pushes an image with one manifest, and returns its reference.
func newImage(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "manifests"), 0o755); err != nil {
		t.Fatal(err)
	}
	manifest := fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}}\n", name)
	if err := os.WriteFile(filepath.Join(dir, "manifests", "a.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "layer.tar")
	run(t, "tar", "-C", dir, "-cf", archive, "manifests")
	return strings.TrimSpace(run(t, "crane", "append", "--oci-empty-base", "-f", archive, "-t", registry+"/"+name+":1"))
}

// newBundle makes a bundle of an image and waits for its content.
func newBundle(t *testing.T, name, image string) bundle {
	t.Helper()
	apply(t, "{apiVersion: rukpak.io/v1alpha1, kind: Bundle, metadata: {name: %s, namespace: default}, spec: {source: {type: Image, image: {reference: %q}}}}", name, image)
	kubectl(t, "wait", "--for=condition=Ready", "--timeout="+patience.String(), "bundle/"+name, "-n", "default")
	return getBundle(t, name)
}

// bundle is what of a Bundle must not change.
type bundle struct{ name, uid, digest string }

func getBundle(t *testing.T, name string) bundle {
	t.Helper()
	b := bundle{name: name}
	out := kubectl(t, "get", "bundle", name, "-n", "default", "-o", "jsonpath={.metadata.uid} {.status.content.digest}")
	if n, err := fmt.Sscan(out, &b.uid, &b.digest); n != 2 || err != nil {
		t.Fatalf("bundle %s says %q", name, out)
	}
	return b
}

// read gets the content and checks it.
func (b bundle) read(ctx context.Context) error {
	content, err := try(ctx, "", "kubectl", "get", "--raw", api+"/namespaces/default/bundles/"+b.name+"/content")
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(content))
	if got := "sha256:" + hex.EncodeToString(sum[:]); got != b.digest {
		return fmt.Errorf("%w: %s, not %s", errWrong, got, b.digest)
	}
	return nil
}
