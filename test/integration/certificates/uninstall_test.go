// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/test/integration/harness"
)

// uninstall runs the script: first where the API is somebody else's, which it leaves alone, then for good.
func (w *world) uninstall(t *testing.T) {
	target := filepath.Join(t.TempDir(), "backup")
	// The kubectl of the script notes what it is asked for.
	program, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	noting := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%q\nexec %q \"$@\"\n", calls, w.Kubectl(t.Context(), "", "").Path)
	if err := os.WriteFile(filepath.Join(program, "kubectl"), []byte(noting), 0o700); err != nil {
		t.Fatal(err)
	}
	run := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(w.Root, "artifacts/deploy/uninstall.sh"), "--export", target)
		kubectl := w.Kubectl(t.Context(), w.Dir, w.Kubeconfig)
		cmd.Env = append(kubectl.Env, "PATH="+program+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	apiServices := w.dynamic.Resource(harness.APIServices)
	owner := func(name string) {
		t.Helper()
		must(apiServices.Patch(t.Context(), harness.APIServiceName, types.MergePatchType, []byte(`{"spec":{"service":{"name":"`+name+`"}}}`), metav1.PatchOptions{}))(t)
	}
	owner("theirs")
	if out, err := run(); err == nil || !strings.Contains(out, "belongs to rukpak-system/theirs") {
		t.Fatalf("it takes away what belongs to others: %v: %s", err, out)
	}
	owner(harness.ServiceName)
	eventually(t, "the API is available", w.available)
	// A pod that is left, as of a bundle that was being unpacked.
	must(w.Kube.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "left", Labels: map[string]string{"app.kubernetes.io/managed-by": "rukpak-apiserver", "rukpak.io/bundle-uid": "x"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "unpack", Image: "registry.invalid/x"}}},
	}, metav1.CreateOptions{}))(t)
	content := must(w.Kube.CoreV1().RESTClient().Get().AbsPath(contentURL).Do(t.Context()).Raw())(t)
	classes := w.Rukpak.RukpakV1alpha1().ProvisionerClasses()
	tuned := must(classes.Patch(t.Context(), "raw", types.MergePatchType, []byte(`{"revisionHistoryLimit":7}`), metav1.PatchOptions{}))(t)
	tuned.Name, tuned.UID, tuned.ResourceVersion, tuned.ManagedFields = "mine", "", "", nil
	must(classes.Create(t.Context(), tuned, metav1.CreateOptions{}))(t)
	out, err := run()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if exported, err := os.ReadFile(filepath.Join(target, "default", "app.tar.gz")); err != nil || !bytes.Equal(exported, content) {
		t.Errorf("the content is not exported: %v", err)
	}
	// kube-apiserver would end any other read after a minute.
	if asked := string(must(os.ReadFile(calls))(t)); !strings.Contains(asked, "/v1alpha1/watch/namespaces/default/bundles/app/content") {
		t.Errorf("the content is not read below watch/:\n%s", asked)
	}
	for name, want := range map[string]string{"classes.yaml": "rukpak.io/plain", "bundles.yaml": "name: app"} {
		raw, err := os.ReadFile(filepath.Join(target, name))
		if err != nil || !strings.Contains(string(raw), want) || strings.Contains(string(raw), "resourceVersion: \"1") {
			t.Errorf("%s: %v: %s", name, err, raw)
		}
	}
	gone := func(what string, get func(context.Context) error) {
		t.Helper()
		eventually(t, what+" is gone", func(ctx context.Context) error {
			if err := get(ctx); !apierrors.IsNotFound(err) {
				return errors.Join(errors.New("it is there"), err)
			}
			return nil
		})
	}
	gone("the APIService", func(ctx context.Context) error { _, err := w.apiService(ctx); return err })
	gone("the namespace", func(ctx context.Context) error {
		_, err := w.Kube.CoreV1().Namespaces().Get(ctx, harness.SystemNamespace, metav1.GetOptions{})
		return err
	})
	gone("the ClusterRole", func(ctx context.Context) error {
		_, err := w.Kube.RbacV1().ClusterRoles().Get(ctx, harness.ServiceName, metav1.GetOptions{})
		return err
	})
	gone("the pod that was left", func(ctx context.Context) error {
		_, err := w.Kube.CoreV1().Pods("default").Get(ctx, "left", metav1.GetOptions{})
		return err
	})
	w.restore(t, target, content)
}

// restore puts what was exported into a new server, as artifacts/deploy/README.md says.
func (w *world) restore(t *testing.T, exported string, content []byte) {
	dir := must(harness.MakeDir())(t)
	s := must(harness.StartStandalone(t.Context(), w.Programs, dir))(t)
	t.Cleanup(func() {
		if err := errors.Join(s.Kill(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	run := func(args ...string) {
		t.Helper()
		if out, err := w.Kubectl(t.Context(), dir, s.Kubeconfig(), args...).CombinedOutput(); err != nil {
			t.Fatalf("kubectl %v: %v: %s", args, err, out)
		}
	}
	client := must(s.Client())(t).RukpakV1alpha1()
	eventually(t, "it has made its classes", func(ctx context.Context) error {
		_, err := client.ProvisionerClasses().Get(ctx, "raw", metav1.GetOptions{})
		return err
	})
	run("apply", "-f", filepath.Join(exported, "classes.yaml"))
	run("create", "-f", filepath.Join(exported, "bundles.yaml"))
	run("replace", "--raw", contentURL, "-f", filepath.Join(exported, "default", "app.tar.gz"))
	for _, name := range []string{"raw", "mine"} {
		if class := must(client.ProvisionerClasses().Get(t.Context(), name, metav1.GetOptions{}))(t); class.RevisionHistoryLimit == nil || *class.RevisionHistoryLimit != 7 {
			t.Errorf("class %s is not as it was: %+v", name, class)
		}
	}
	if got := must(client.RESTClient().Get().AbsPath(contentURL).Do(t.Context()).Raw())(t); !bytes.Equal(got, content) {
		t.Errorf("the content that was put back is another: %d bytes, not %d", len(got), len(content))
	}
}
