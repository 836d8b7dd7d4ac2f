// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/failpoint"
)

// planFile is where the server with failpoints looks for what to do, in its volume.
const planFile = "failpoints"

// dataDir is where the server has its volume.
const dataDir = "/var/lib/rukpak-apiserver"

// TestCrashPoints kills the server once at each of its failpoints. Each time a bundle with content is
// given another image: the old content is collected and the new one unpacked, so that every point is passed.
func TestCrashPoints(t *testing.T) {
	const bundle = "app"
	s := begin(t)
	s.deployFailpoints()
	class := s.class("forgetful", v1alpha1.ProvisionerPlain, func(c *v1alpha1.ProvisionerClass) {
		c.RevisionHistoryLimit = ptr.To[int32](0)
	})
	first := small("first")
	ref, _ := s.push("first", first)
	s.bundle(bundle, class, ref)
	s.holds(s.unpacked(bundle), first)
	for i, point := range failpoint.Names() {
		switch part, _, _ := strings.Cut(point, "/"); part {
		case "upload":
			continue // no image passes it: TestKilledUploadsGoOn of test/integration does
		case "bucket", "etcdstore":
			continue // content is in a folder here: the suite of content stores kills those at theirs
		}
		passed := t.Run(point, func(t *testing.T) {
			s := s.in(t)
			next := small(point)
			ref, _ := s.push(fmt.Sprintf("v%d", i), next)
			change := func() {
				s.update(bundle, func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = ref })
			}
			if point == "collect/after-remove-record" {
				// A commit removes the records of what it drops itself. Only one that dies before leaves them.
				s.killedAt("content/after-status", change)
				change = func() {}
			}
			s.killedAt(point, change)
			s.holds(s.unpacked(bundle), next)
			s.noPods()
		})
		if !passed {
			t.FailNow() // the server is in no state to go on
		}
	}
	s.noDebris()
}

// killedAt does something that makes the server pass a failpoint, and waits until it has been killed there.
func (s *scope) killedAt(point string, act func()) {
	s.Helper()
	pid, err := s.process()
	s.must(err)
	s.arm(point + "=exit")
	act()
	s.within(time.Minute, "the server is killed at "+point, func() error {
		if _, err := os.Stat(s.plan()); !os.IsNotExist(err) {
			return fmt.Errorf("the plan is still there: %v", err)
		}
		now, err := s.process()
		if err == nil && now == pid {
			return fmt.Errorf("process %d still runs", pid)
		}
		return err
	})
}

func (s *scope) plan() string { return filepath.Join(s.volume(), planFile) }

// arm tells the server what to do at a failpoint. It comes in one piece.
func (s *scope) arm(plan string) {
	s.Helper()
	s.must(os.WriteFile(s.plan()+".new", []byte(plan), 0o644))
	s.must(os.Rename(s.plan()+".new", s.plan()))
}

// deployFailpoints replaces the server by one with failpoints, which collects content soon, for as long as the test runs.
func (s *scope) deployFailpoints() {
	s.Helper()
	var before corev1.Container
	s.replaceServer(func(c *corev1.Container) {
		before = *c.DeepCopy()
		c.Image = s.failpointImage(before.Image)
		c.Env = append(c.Env, corev1.EnvVar{Name: "RUKPAK_FAILPOINTS", Value: "@" + dataDir + "/" + planFile})
		c.Args = append(c.Args, "--content-gc-interval=1s", "--content-gc-grace=6s")
	})
	plan := s.plan()
	s.Cleanup(func() {
		s, cancel := s.afterwards()
		defer cancel()
		if err := os.Remove(plan); err != nil && !os.IsNotExist(err) {
			s.Error(err)
		}
		s.replaceServer(func(c *corev1.Container) { *c = before })
	})
}

// replaceServer changes the server's container and waits until the new one is ready.
func (s *scope) replaceServer(change func(*corev1.Container)) {
	s.Helper()
	sets := s.kube.AppsV1().StatefulSets(serverNamespace)
	s.must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		set, err := sets.Get(s.ctx, serverName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&set.Spec.Template.Spec.Containers[0])
		_, err = sets.Update(s.ctx, set, metav1.UpdateOptions{})
		return err
	}))
	out, err := exec.CommandContext(s.ctx, "kubectl", "-n", serverNamespace, "rollout", "status", "statefulset/"+serverName, "--timeout="+patience.String()).CombinedOutput()
	if err != nil {
		s.Fatalf("roll the server: %v: %s", err, out)
	}
	s.answers()
}

// failpointImage is an image of the server whose program has failpoints.
func (s *scope) failpointImage(image string) string {
	s.Helper()
	program := filepath.Join(s.TempDir(), "rukpak-apiserver")
	build := exec.CommandContext(s.ctx, "go", "build", "-tags", "failpoints", "-ldflags", "-s -w", "-o", program, "rukpak.io/apiserver/cmd/rukpak-apiserver")
	if out, err := build.CombinedOutput(); err != nil {
		s.Fatalf("build the server with failpoints: %v: %s", err, out)
	}
	ref, err := name.ParseReference(image)
	s.must(err)
	base, err := remote.Image(ref, remote.WithContext(s.ctx))
	s.must(err)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return programLayer(program) },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(1))
	s.must(err)
	with, err := mutate.AppendLayers(base, layer)
	s.must(err)
	digest, _ := s.pushImage(nodeRegistry, "failpoints", with)
	return digest
}

// programLayer is the tar of a program at the root, made while it is read.
func programLayer(program string) (io.ReadCloser, error) {
	f, err := os.Open(program)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		err := t.WriteHeader(&tar.Header{Name: filepath.Base(program), Typeflag: tar.TypeReg, Mode: 0o555, Size: info.Size()})
		if err == nil {
			_, err = io.Copy(t, f)
		}
		w.CloseWithError(errors.Join(err, t.Close(), f.Close()))
	}()
	return r, nil
}
