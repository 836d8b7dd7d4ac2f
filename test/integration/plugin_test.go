// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/test/readme"
)

// The way of one content: written from a folder, looked at, changed, compared, checked.
func TestPluginReadsAndWrites(t *testing.T) {
	t.Parallel()
	for name, p := range pluginServers(t) {
		t.Run(name, func(t *testing.T) {
			first := folder(t, map[string]string{"manifests/a.yaml": "a: 1\nb: 2\n", "manifests/deep/c.yaml": "c\n", "same": "same\n", "gone": "x"})
			second := folder(t, map[string]string{"manifests/a.yaml": "a: 2\nb: 2\n", "manifests/deep/c.yaml": "c\n", "same": "same\n", "new": "y"})

			p.terminal(t, "create", "app", "--from", first, "--class", "raw", "--wait").expect(t, 0, "bundle.rukpak.io/app created", "4 files", "bundle/app: ready: sha256:")
			p.pipe(t, "", "create", "app", "--upload").expect(t, 3, `"app" already exists`)
			p.pipe(t, "", "push", "app", first).expect(t, 0, "has this content already")
			p.terminal(t, "push", "app", first, "--if-none").expect(t, 6, "hint: ")
			p.pipe(t, string(tarOf(t, entry{name: "x", body: "y"})), "push", "app", "-").expect(t, 0, "1 file")
			p.terminal(t, "push", "app", second).expect(t, 0, "4 files")

			if got := p.pipe(t, "", "ls", "app").expect(t, 0).stdout; got != "manifests/\nnew\nsame\n" {
				t.Errorf("ls: %q", got)
			}
			p.terminal(t, "ls", "app", "manifests", "-l", "-R").expect(t, 0, "-rw-r--r--  10 B", "drwxr-xr-x", "deep/c.yaml")
			p.pipe(t, "", "ls", "app", "manifests/a.yaml", "-l").expect(t, 0, "a.yaml")
			var entries []map[string]any
			if err := json.Unmarshal([]byte(p.pipe(t, "", "ls", "app", "-o", "json", "-R").expect(t, 0).stdout), &entries); err != nil || len(entries) != 6 {
				t.Errorf("ls -o json: %v, %v", entries, err)
			}
			want := "app\n├── manifests/\n│   ├── a.yaml  10 B\n│   └── deep/\n│       └── c.yaml  2 B\n├── new  1 B\n└── same  5 B\n2 directories, 4 files, 18 B\n"
			if got := p.pipe(t, "", "tree", "app").expect(t, 0).stdout; got != want {
				t.Errorf("tree:\n%s", got)
			}
			p.terminal(t, "tree", "app", "manifests").expect(t, 0, "└── deep/")
			if got := p.pipe(t, "", "cat", "app", "manifests/a.yaml", "/new").expect(t, 0).stdout; got != "a: 2\nb: 2\ny" {
				t.Errorf("cat: %q", got)
			}
			p.terminal(t, "cat", "app@-2", "manifests/a.yaml").expect(t, 0, "a: 1\nb: 2\n")

			history := p.pipe(t, "", "history", "app").expect(t, 0, "current", "-1", "-2").stdout
			if n := strings.Count(history, "sha256:"); n != 3 {
				t.Errorf("history:\n%s", history)
			}
			p.terminal(t, "history", "app", "-o", "yaml").expect(t, 0, "- digest: sha256:")

			wantDiff := "--- app@-2/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\\ No newline at end of file\n" +
				"--- app@-2/manifests/a.yaml\n+++ app/manifests/a.yaml\n@@ -1,2 +1,2 @@\n-a: 1\n+a: 2\n b: 2\n" +
				"--- /dev/null\n+++ app/new\n@@ -0,0 +1 @@\n+y\n\\ No newline at end of file\n"
			if got := p.pipe(t, "", "diff", "app@-2", "app").expect(t, 1).stdout; got != wantDiff {
				t.Errorf("diff:\n%s", got)
			}
			p.terminal(t, "diff", "app", first, "--names").expect(t, 1, "A gone\nM manifests/a.yaml\nD new\n")
			p.pipe(t, "", "diff", "app", second).expect(t, 0)
			p.pipe(t, "", "pull", "app").expect(t, 0)
			p.pipe(t, "", "diff", "app", "./app.tar.gz").expect(t, 0)

			p.terminal(t, "verify", "app").expect(t, 0, "whole: sha256:")
			p.pipe(t, "", "verify", "app", "app.tar.gz").expect(t, 0, "has the same files")
			p.pipe(t, "", "verify", "app", first).expect(t, 7, "is not the content of app", "kubectl bundle diff")

			p.pipe(t, "", "list").expect(t, 0, "NAME", "app", "Unpacked")
			p.terminal(t, "list", "-A", "-o", "wide").expect(t, 0, "NAMESPACE", "FILES", "app")
			p.pipe(t, "", "list", "app", "-o", "jsonpath={.status.content.files}").expect(t, 0, "4")
			p.pipe(t, "", "list", "-o", "name").expect(t, 0, "bundle.rukpak.io/app\n")
			p.pipe(t, "", "list", "-o", "xml").expect(t, 2, "xml")
			p.pipe(t, "", "describe", "app").expect(t, 0, "Unpacked. Its content is there and served.", "4 files", "kubectl bundle pull app -n "+p.namespace)
			p.pipe(t, "", "retry", "app").expect(t, 0, "nothing is fetched for a bundle whose source is Upload")
			// What other tests do to bundles is no matter of this one.
			p.pipe(t, "", "doctor").expect(t, whatever, "rukpak.io/v1alpha1 is served", "the default is plain")
			p.terminal(t, "doctor").expect(t, whatever, "ok    ")
			p.pipe(t, "", "create", "dry", "--image", "registry.example/x:1", "--dry-run=server", "-o", "yaml").expect(t, 0, "kind: Bundle", "Warning: ")
			p.pipe(t, "", "create", "dry", "--image", "registry.example/x:1", "--dry-run=client").expect(t, 0, "bundle.rukpak.io/dry created (client dry run)")
			p.pipe(t, "", "list", "dry").expect(t, 4, `"dry" not found`)
			p.pipe(t, "", "__complete", "cat", "app", "manifests/").expect(t, 0, "manifests/a.yaml\nmanifests/deep/\n")
			p.pipe(t, "", "__complete", "pull", "a").expect(t, 0, "app\tUnpacked\n")
		})
	}
}

// What is printed of names does nothing to a terminal, and is exact elsewhere.
func TestPluginIsHarmless(t *testing.T) {
	t.Parallel()
	p := alone(t).plugin(t)
	const name = "run\u202egpj.sh\nforged\tline"
	p.put(t, "app", canonical(t, entry{name: name, body: "echo \u202e\n"}))
	const seen = "run\ufffdgpj.sh forged line"
	other := t.TempDir()
	for _, args := range [][]string{{"ls", "app"}, {"ls", "app", "-l"}, {"tree", "app"}, {"diff", "app", other, "--names"}, {"diff", "app", other}} {
		if got := p.terminal(t, args...).expect(t, whatever, seen).stdout; strings.Contains(got, "\u202e") {
			t.Errorf("%q turns the text: %q", args, got)
		}
	}
	p.pipe(t, "", "ls", "app").expect(t, 0, name)
	p.pipe(t, "", "ls", "app", "-o", "json").expect(t, 0, strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(name))
	p.pipe(t, "", "diff", "app", other, "--names").expect(t, 1, name)
	p.terminal(t, "ls", "app", "-o", "json").expect(t, 0, `"run\u202egpj.sh\nforged\tline"`)
}

// The sessions of the pages of the plugin and of rukpak-fetch are what happens.
func TestPluginSessions(t *testing.T) {
	t.Parallel()
	p := alone(t).plugin(t)
	bin := t.TempDir()
	for name, from := range map[string]string{
		"kubectl-bundle": p.program, "rukpak-fetch": must(buildFetch())(t), "kubectl": shared.Kubectl(t.Context(), p.home, p.kubeconfig).Path,
	} {
		if err := os.Symlink(from, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"KUBECONFIG=" + p.kubeconfig, "HOME=" + p.home, "TMPDIR=" + p.home, "KUBECTL_KUBERC=false", "PATH=" + bin + ":" + os.Getenv("PATH")}
	for _, session := range []struct{ page, name string }{{"docs/kubectl-bundle.md", "first time"}, {"docs/fetch.md", "outside"}} {
		t.Run(session.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, step := range must(readme.Steps(filepath.Join(shared.Root, session.page), session.name))(t) {
				// A person sees both streams, and diff ends with 1 where it finds something.
				step.Command = "{ " + step.Command + "\n} 2>&1 || test $? = 1"
				if err := step.Run(t.Context(), dir, env); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Waiting ends when there is content, when there will be none, and when the time is over.
func TestPluginWaits(t *testing.T) {
	t.Parallel()
	s := alone(t)
	p := s.plugin(t)
	class := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: "hasty"}, Provisioner: v1alpha1.ProvisionerRaw,
		Unpack: &v1alpha1.UnpackPolicy{BackoffLimit: ptr.To(int32(0))}}
	client := p.client(t)
	must(client.RukpakV1alpha1().ProvisionerClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t)

	p.pipe(t, "", "create", "gone", "--image", "127.0.0.1:1/none:1", "--class", "hasty", "--wait").expect(t, 1, "attempt 1", "kubectl bundle retry gone")
	p.terminal(t, "wait", "gone").expect(t, 1, "127.0.0.1:1", "\n  when that is done, try again at once: kubectl bundle retry gone")
	p.pipe(t, "", "describe", "gone").expect(t, 0, "Failing", "What to do next:", "kubectl bundle retry gone -n default")
	p.pipe(t, "", "retry", "gone", "--wait").expect(t, 1, "a new attempt was asked for")
	p.pipe(t, "", "refresh", "gone").expect(t, 6, "it is not unpacked", "kubectl bundle retry gone")
	p.pipe(t, "", "doctor").expect(t, 0, "warn  not unpacked, 1 of 1 bundle in all namespaces: default/gone")

	p.pipe(t, "", "create", "later", "--upload", "--class", "raw").expect(t, 0)
	p.pipe(t, "", "wait", "later", "--timeout", "1s").expect(t, 8, "is not ready after 1s: WaitingForUpload", "--timeout waits longer")
	p.terminal(t, "wait", "later", "--timeout", "1500ms").expect(t, 8, "WaitingForUpload")
	done := make(chan outcome)
	go func() {
		stdout, stderr, err := output(p.command(t.Context(), "wait", "later"), "")
		done <- outcome{stdout, stderr, exitCode(t, err)}
	}()
	p.pipe(t, "", "push", "later", folder(t, map[string]string{"a": "b"})).expect(t, 0)
	(<-done).expect(t, 0, "bundle/later: ready: sha256:")
	p.pipe(t, "", "wait", "nobody").expect(t, 4)
}

// The doctor finds what is wrong, and says what to do.
func TestPluginDoctor(t *testing.T) {
	t.Parallel()
	p := clusterPlugin(t, newNamespace(t), shared.Kubeconfig)
	p.pipe(t, "", "doctor").expect(t, whatever, "the APIService v1alpha1.rukpak.io is available", "the authority is valid until", "you may write content in parts")
	p.pipe(t, "", "doctor", "-s", "https://127.0.0.1:1").expect(t, 1, "BAD   https://127.0.0.1:1 does not answer", "-> the API server cannot be reached")
}

// An upload goes on after Ctrl-C where it was, when the same command is given again.
func TestPluginPushGoesOn(t *testing.T) {
	t.Parallel()
	p := clusterPlugin(t, newNamespace(t), shared.Kubeconfig)
	line := newMeteredLine(t, shared.URL)
	archive := tarOf(t, noise("data", 9, 20<<20))
	if err := writeFile(filepath.Join(p.dir, "large.tar"), archive); err != nil {
		t.Fatal(err)
	}
	p.pipe(t, "", "create", "app", "--upload", "--class", "raw").expect(t, 0)

	line.rate.Store(8 << 20)
	cmd := p.command(t.Context(), "push", "app", "large.tar", "-s", line.url)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const first = 8 << 20 // the size of the first request
	eventually(t, "some of it went", func() string {
		if sent := line.sent.Load(); sent < first+4<<20 {
			return fmt.Sprint(sent, " bytes")
		}
		return ""
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd.Wait()); code != 130 || !strings.Contains(said.String(), "the same command goes on where this one was") {
		t.Errorf("after Ctrl-C it ended with %d and said %s", code, said.String())
	}
	line.rate.Store(0)
	line.sent.Store(0)
	p.pipe(t, "", "push", "app", "large.tar", "-s", line.url).expect(t, 0, digestOf(canonical(t, noise("data", 9, 20<<20))))
	const kept = 4 << 20 // what the server keeps of a request that breaks off is a multiple of that
	if sent := line.sent.Load(); sent > int64(len(archive))-kept+1<<20 {
		t.Errorf("%d of %d bytes went again", sent, len(archive))
	}
	if got := p.pipe(t, "", "cat", "app", "data").stdout; got != noise("data", 9, 20<<20).body {
		t.Error("what came is not what was sent")
	}
}

// kubectl finds the plugin, and completes its arguments.
func TestPluginUnderKubectl(t *testing.T) {
	t.Parallel()
	p := clusterPlugin(t, newNamespace(t), shared.Kubeconfig)
	p.put(t, "app", canonical(t, entry{name: "a", body: "text\n"}))
	bin := t.TempDir()
	for name, from := range map[string]string{"kubectl-bundle": p.program, "kubectl_complete-bundle": filepath.Join(shared.Root, "artifacts/krew/kubectl_complete-bundle")} {
		if err := os.Symlink(from, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	kubectl := func(args ...string) outcome {
		cmd := shared.Kubectl(t.Context(), p.home, p.kubeconfig, args...)
		cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"))
		stdout, stderr, err := output(cmd, "")
		return outcome{stdout, stderr, exitCode(t, err)}
	}
	kubectl("bundle", "cat", "app", "a", "-n", p.namespace).expect(t, 0, "text\n")
	kubectl("bundle", "cat", "app", "none", "-n", p.namespace).expect(t, 4)
	kubectl("__complete", "bundle", "-n", p.namespace, "pull", "a").expect(t, 0, "app\tUnpacked\n")
	kubectl("__complete", "bundle", "re").expect(t, 0, "refresh\t", "retry\t")
}
