// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

const (
	// pullBytesVariable is the size of the content that is pulled over a bad line, in place of pullBytes.
	pullBytesVariable = "RUKPAK_PULL_BYTES"
	pullBytes         = 100 << 20
)

// Content comes as a file, as a folder and to a program, on a terminal and without one.
func TestPluginPull(t *testing.T) {
	t.Parallel()
	archive := canonical(t, entry{name: "manifests/a.yaml", body: "a: 1\n"}, entry{name: "bin/run", body: "#!/bin/sh\n"},
		entry{name: "current", flag: '2', link: "manifests/a.yaml"})
	for name, p := range pluginServers(t) {
		t.Run(name, func(t *testing.T) {
			p.put(t, "app", archive)
			p.pipe(t, "", "pull", "app").expect(t, 0, digestOf(archive))
			if got := readAll(t, filepath.Join(p.dir, "app.tar.gz")); !bytes.Equal(got, archive) {
				t.Error("the file is not the content")
			}
			p.terminal(t, "pull", "app", "other.tgz").expect(t, 0, digestOf(archive))
			if got := readAll(t, filepath.Join(p.dir, "other.tgz")); !bytes.Equal(got, archive) {
				t.Error("the file is not the content")
			}
			if got := p.pipe(t, "", "pull", "app", "-").expect(t, 0).stdout; got != string(archive) {
				t.Error("the output is not the content")
			}
			p.terminal(t, "pull", "app", "-").expect(t, 2, "an archive is nothing for a terminal")
			p.pipe(t, "", "pull", "app", "new/folder/").expect(t, 0, "3 files")
			p.pipe(t, "", "verify", "app", "new/folder").expect(t, 0, "has the same files")
			p.pipe(t, "", "pull", "app", "new/folder").expect(t, 9, "is not empty", "--replace")
			if err := os.WriteFile(filepath.Join(p.dir, "new/folder/extra"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			p.terminal(t, "pull", "app", "new/folder", "--replace").expect(t, 0)
			if left := must(os.ReadDir(filepath.Join(p.dir, "new")))(t); len(left) != 1 {
				t.Errorf("beside the folder there is something left: %v", left)
			}
			p.pipe(t, "", "verify", "app", "new/folder").expect(t, 0)
			t.Run("mounted", p.mounted)
			p.pipe(t, "", "pull", "app@"+digestOf(archive)[7:15], "some.tar.gz", "--quiet").expect(t, 0)
			p.pipe(t, "", "pull", "app@-1").expect(t, 4, "has only 1 content", "kubectl bundle history app")
			p.pipe(t, "", "pull", "app@x").expect(t, 2, "no revision")
		})
	}
}

// A transfer that is cut again and again goes on by itself, and gets nothing twice that it has. One file of the same bundle costs
// what the file costs.
func TestPluginPullsOverABadLine(t *testing.T) {
	t.Parallel()
	size := must(strconv.Atoi(orElse(os.Getenv(pullBytesVariable), strconv.Itoa(pullBytes))))(t)
	s := alone(t)
	p := s.plugin(t)
	archive := canonical(t, noise("data/large", 5, size), entry{name: "small", body: "a line\n"})
	class := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Provisioner: v1alpha1.ProvisionerRaw, Limits: &v1alpha1.ContentLimits{
		CompressedBytes: ptr.To(resource.MustParse("4Gi")), Bytes: ptr.To(resource.MustParse("4Gi")),
	}}
	must(p.client(t).RukpakV1alpha1().ProvisionerClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t)
	p.putOf(t, "app", class.Name, archive)

	line := newMeteredLine(t, s.URL)
	const cuts = 10
	line.cuts.Store(cuts)
	line.each.Store(int64(len(archive) / (cuts + 2)))
	p.pipe(t, "", "pull", "app", "-s", line.url).expect(t, 0, digestOf(archive))
	if got := digestOf(readAll(t, filepath.Join(p.dir, "app.tar.gz"))); got != digestOf(archive) {
		t.Errorf("the file is %s, and not %s", got, digestOf(archive))
	}
	ratio := float64(line.bytes.Load()) / float64(len(archive))
	t.Logf("%d bytes came for %d, cut %d times: %.4f", line.bytes.Load(), len(archive), cuts-max(line.cuts.Load(), 0), ratio)
	if line.cuts.Load() > 0 || ratio >= 1.1 {
		t.Errorf("%d cuts were left, and %.3f of the bytes came", line.cuts.Load(), ratio)
	}

	line.bytes.Store(0)
	p.pipe(t, "", "cat", "app", "small", "-s", line.url).expect(t, 0, "a line\n")
	part := float64(line.bytes.Load()) / float64(len(archive))
	t.Logf("one file took %d bytes: %.6f", line.bytes.Load(), part)
	if part >= 0.01 {
		t.Errorf("one small file took %.3f of the bytes", part)
	}
}

// What has come when somebody presses Ctrl-C is kept, and the same command goes on there. So is what has come when the server goes
// away: that it comes back is waited for.
func TestPluginPullGoesOn(t *testing.T) {
	t.Parallel()
	s := alone(t)
	p := s.plugin(t)
	archive := canonical(t, noise("data", 6, 8<<20))
	p.put(t, "app", archive)
	line := newMeteredLine(t, s.URL)
	destination := filepath.Join(p.dir, "app.tar.gz")
	begin := func() (*exec.Cmd, *bytes.Buffer) {
		line.rate.Store(1 << 20)
		cmd := p.command(t.Context(), "pull", "app", "-s", line.url)
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "some of it came", func() string {
			for _, part := range partsOf(t, destination) {
				if info, err := os.Stat(part); err == nil && info.Size() > 1<<20 {
					return ""
				}
			}
			return "not yet"
		})
		return cmd, &said
	}
	cmd, said := begin()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd.Wait()); code != 130 || !strings.Contains(said.String(), "what has come is kept: the same command goes on") {
		t.Errorf("after Ctrl-C it ended with %d and said %s", code, said)
	}
	if _, err := os.Stat(destination); !os.IsNotExist(err) {
		t.Errorf("there is something at the destination: %v", err)
	}
	kept := must(os.Stat(partsOf(t, destination)[0]))(t).Size()
	line.rate.Store(0)
	line.bytes.Store(0)
	p.pipe(t, "", "pull", "app", "-s", line.url).expect(t, 0, "going on after", digestOf(archive))
	if came := line.bytes.Load(); came > int64(len(archive))-kept+1<<20 {
		t.Errorf("%d bytes came, though %d of %d were there", came, kept, len(archive))
	}
	if len(partsOf(t, destination)) > 0 {
		t.Error("a part is left")
	}

	// Who looks on sees how far it is.
	line.rate.Store(4 << 20)
	p.terminal(t, "pull", "app", "seen.tar.gz", "-s", line.url).expect(t, 0, "seen.tar.gz [=", "%", "MiB/s", "s left", "\r\x1b[K", digestOf(archive))

	// A part that is damaged is not used.
	if err := os.Remove(destination); err != nil {
		t.Fatal(err)
	}
	part := destination + "." + strings.Replace(digestOf(archive), ":", "-", 1) + ".part"
	if err := os.WriteFile(part, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	p.pipe(t, "", "pull", "app").expect(t, 0, "beginning anew", digestOf(archive))

	cmd, said = begin()
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	line.rate.Store(0)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd.Wait()); code != 0 {
		t.Errorf("after a restart it ended with %d and said %s", code, said)
	}
	if got := digestOf(readAll(t, destination)); got != digestOf(archive) {
		t.Errorf("the file is %s, and not %s", got, digestOf(archive))
	}
}

// What cannot be done ends with a code of its own, and says what to do.
func TestPluginFailures(t *testing.T) {
	t.Parallel()
	archive := canonical(t, noise("data", 8, 3<<20), entry{name: "manifests/a.yaml", body: "a: 1\n"}, entry{name: "latest", flag: '2', link: "manifests"})
	servers := pluginServers(t)
	for name, p := range servers {
		t.Run(name, func(t *testing.T) {
			p.put(t, "app", archive)
			if _, err := p.bundles.Create(t.Context(), uploadBundle("empty", "raw"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the server has seen the bundle", func() string {
				b, err := p.bundles.Get(t.Context(), "empty", metav1.GetOptions{})
				if err != nil {
					return err.Error()
				}
				if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked); c == nil || c.Reason != v1alpha1.ReasonWaitingForUpload {
					return fmt.Sprintf("Unpacked is %+v", c)
				}
				return ""
			})
			for _, test := range []struct {
				name  string
				args  []string
				code  int
				texts []string
			}{
				{"no such bundle", []string{"pull", "nobody"}, 4, []string{`"nobody" not found`, "kubectl bundle"}},
				{"no such bundle to describe", []string{"describe", "nobody"}, 4, []string{"not found", "kubectl bundle list -n " + p.namespace}},
				{"no content", []string{"pull", "empty"}, 6, []string{"WaitingForUpload", "kubectl bundle describe"}},
				{"no such file", []string{"cat", "app", "none"}, 4, []string{"none", "kubectl bundle tree"}},
				{"a directory", []string{"cat", "app", "/"}, 2, []string{"kubectl bundle ls app"}},
				{"another directory", []string{"cat", "app", "manifests"}, 4, []string{"manifests is a directory", "kubectl bundle ls app manifests"}},
				{"a link to a directory", []string{"cat", "app", "latest"}, 4, []string{"latest is a directory", "kubectl bundle ls app latest"}},
				{"a file for a directory", []string{"tree", "app", "data"}, 4, []string{"data is no directory", "kubectl bundle cat app data"}},
				{"no selector", []string{"list", "-l", "a=b=c"}, 2, []string{"found '='"}},
				{"no such digest", []string{"pull", "app@" + digestOf(nil)}, 4, []string{"no more, served", "kubectl bundle history"}},
				{"no server", []string{"list", "-s", "https://127.0.0.1:1"}, 8, []string{"refused", "--context"}},
				{"no kubeconfig", []string{"list", "--kubeconfig", "/none"}, 9, []string{"/none"}},
				{"no such flag", []string{"pull", "app", "--fast"}, 2, []string{"unknown flag: --fast", "usage: kubectl bundle pull"}},
				{"no name", []string{"pull"}, 2, []string{"accepts between 1 and 2 arg(s)"}},
				{"no such command", []string{"pul", "app"}, 2, []string{`"pul"`}},
				{"no folder to write to", []string{"pull", "app", "none/app.tar.gz"}, 9, []string{"none"}},
				{"no archive to push", []string{"push", "app", "none"}, 9, []string{"none"}},
				{"other content to replace", []string{"push", "app", ".", "--if-digest", digestOf(nil)}, 6, []string{"it has other content by now"}},
				{"no pods", []string{"logs", "app"}, 4, []string{"has no unpack pod now"}},
			} {
				t.Run(test.name, func(t *testing.T) {
					p.pipe(t, "", test.args...).expect(t, test.code, append(test.texts, "error: ")...)
					p.terminal(t, test.args...).expect(t, test.code, append(test.texts, "error: ")...)
				})
			}
			t.Run("disk full", func(t *testing.T) { p.fullDisk(t) })
		})
	}
	t.Run("not allowed", func(t *testing.T) {
		p := servers["cluster"]
		p = p.as(t, newUser(t, p.namespace, rule("bundles", "get")))
		p.pipe(t, "", "describe", "app").expect(t, 0, digestOf(archive))
		for _, args := range [][]string{{"pull", "app"}, {"list"}, {"tree", "app"}, {"push", "app", "."}, {"create", "new", "--upload"}} {
			p.pipe(t, "", args...).expect(t, 5, "forbidden", "hint: ask an administrator")
		}
		p.terminal(t, "pull", "app").expect(t, 5, "cannot get resource", "kubectl bundle doctor")
		p.pipe(t, "", "doctor").expect(t, 0, "you may not see bundles nor read content", "kubectl create role")
	})
}

// mounted pulls to where something is mounted, beside which nothing can be written.
func (p *plugin) mounted(t *testing.T) {
	t.Helper()
	mayMount(t)
	cmd := inNamespace(t, p.command(t.Context(), "pull", "app", "ro/mount"), `mkdir ro; mount -t tmpfs tmpfs ro; mkdir ro/mount; mount -t tmpfs tmpfs ro/mount; mount -o remount,ro ro
"$@"; touch ro/mount/extra; "$@" --replace; find ro/mount | sort`)
	stdout, stderr, err := output(cmd, "")
	o := outcome{stdout, stderr, exitCode(t, err)}.expect(t, 0, "3 files")
	if want := "ro/mount\nro/mount/bin\nro/mount/bin/run\nro/mount/current\nro/mount/manifests\nro/mount/manifests/a.yaml\n"; o.stdout != want {
		t.Errorf("there is\n%s, not\n%s", o.stdout, want)
	}
}

// mayMount skips a test where nobody may mount.
func mayMount(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "unshare", "-rm", "sh", "-c", "mount -t tmpfs tmpfs /tmp").CombinedOutput(); err != nil {
		t.Skipf("this machine gives no user namespace: %v: %s", err, out)
	}
}

// inShell is a command in a script, whose arguments it is.
func inShell(t *testing.T, cmd *exec.Cmd, script string) *exec.Cmd {
	return wrapped(t, cmd, "sh", "-ec", script, "sh")
}

// inNamespace is the same where the script may mount.
func inNamespace(t *testing.T, cmd *exec.Cmd, script string) *exec.Cmd {
	return wrapped(t, cmd, "unshare", "-rm", "sh", "-ec", script, "sh")
}

func wrapped(t *testing.T, cmd *exec.Cmd, by ...string) *exec.Cmd {
	outer := exec.CommandContext(t.Context(), by[0], append(by[1:], cmd.Args...)...)
	outer.Dir, outer.Env = cmd.Dir, cmd.Env
	return outer
}

// fullDisk pulls to a disk on which there is no room.
func (p *plugin) fullDisk(t *testing.T) {
	mayMount(t)
	cmd := inNamespace(t, p.command(t.Context(), "pull", "app", "disk/app.tar.gz"), `mkdir -p disk; mount -t tmpfs -o size=1m tmpfs disk; "$@"`)
	stdout, stderr, err := output(cmd, "")
	outcome{stdout, stderr, exitCode(t, err)}.expect(t, 9, "no space left on device", "make room and run the same command again", "bytes that are kept")
	full := inShell(t, p.command(t.Context(), "pull", "app", "-"), `"$@" >/dev/full`)
	stdout, stderr, err = output(full, "")
	outcome{stdout, stderr, exitCode(t, err)}.expect(t, 9, "no space left on device")
}
