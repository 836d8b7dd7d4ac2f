// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

const (
	killRounds = 5
	// killWithin is how long after its beginning a round is interrupted, at most. A small bundle is
	// done in a second; a server comes back in two.
	killWithin = 1500 * time.Millisecond
)

// seed is that of RUKPAK_SEED, or a new one. It is printed, so that a failure can be had again.
func seed(t *testing.T) uint64 {
	t.Helper()
	value := rand.Uint64()
	if text := os.Getenv("RUKPAK_SEED"); text != "" {
		var err error
		if value, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("RUKPAK_SEED: %v", err)
		}
	}
	t.Logf("RUKPAK_SEED=%d", value)
	return value
}

// TestKill kills the server, its embedded etcd included, at random moments while images are unpacked and
// contents are uploaded. It always ends with the right contents, and with nothing left over.
func TestKill(t *testing.T) {
	s := begin(t)
	random := rand.New(rand.NewPCG(seed(t), 0))
	volume := s.class("volume", v1alpha1.ProvisionerRaw, nil)
	copying := s.class("copy", v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{Mode: v1alpha1.UnpackModeImageCopy}
	})
	below := func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/manifests" }
	for round := range killRounds {
		tree := generated(random.Uint64(), 20, 60<<10)
		blob := make([]byte, 4<<20)
		if _, err := io.ReadFull(rand.NewChaCha8([32]byte{byte(round), byte(random.Uint64())}), blob); err != nil {
			t.Fatal(err)
		}
		tree["manifests/noise"] = string(blob)
		digest, tagged := s.push(fmt.Sprintf("v%d", round), tree)
		name := func(kind string) string { return fmt.Sprintf("%s-%d", kind, round) }
		upload := s.upload(name("upload"), volume, tree)
		killed := s.killAfter(time.Duration(random.Int64N(int64(killWithin))))
		s.bundle(name("digest"), volume, digest)
		s.bundle(name("tag"), volume, tagged)
		s.bundle(name("copy"), copying, digest, below)
		s.must(<-killed)
		s.must(<-upload)
		for _, kind := range []string{"upload", "digest", "tag"} {
			s.holds(s.unpacked(name(kind)), tree)
		}
		s.holds(s.unpacked(name("copy")), tree.below("manifests"))
		s.noPods()
		if round%2 == 0 {
			s.must(s.retry(func() error { return s.api().Delete(s.ctx, name("digest"), metav1.DeleteOptions{}) }))
		}
	}
	s.noDebris()
}

// upload makes a bundle of source Upload, and sends a tree as often as it takes. What it returns delivers one result.
func (s *scope) upload(name, class string, tree files) <-chan error {
	s.Helper()
	s.bundle(name, class, "", func(b *v1alpha1.Bundle) {
		b.Spec.Source = v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}
	})
	archive := tree.archive()
	result := make(chan error, 1)
	go func() {
		result <- s.retry(func() error {
			_, err := s.api().PutContent(s.ctx, name, bytes.NewReader(archive), typed.PutContentOptions{})
			return err
		})
	}()
	return result
}

// killAfter kills the server's process after some time, as the kernel does when memory is short, and
// waits until its successor runs. What it returns delivers one result.
func (s *scope) killAfter(pause time.Duration) <-chan error {
	s.Helper()
	pid, err := s.process()
	s.must(err)
	s.Logf("process %d is killed after %v", pid, pause)
	result := make(chan error, 1)
	time.AfterFunc(pause, func() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			result <- fmt.Errorf("kill process %d: %w", pid, err)
			return
		}
		result <- wait.PollUntilContextTimeout(s.ctx, interval, patience, true, func(context.Context) (bool, error) {
			now, err := s.process()
			return err == nil && now != pid, nil
		})
	})
	return result
}
