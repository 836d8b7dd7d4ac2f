// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

const (
	defaultLargeBytes = 128 << 20
	readers           = 8
	// maxServerRSS and maxUnpackRSS are what the processes may occupy, in bytes.
	maxServerRSS = 200 << 20
	maxUnpackRSS = 100 << 20
)

// largeBytes is how large the large bundle is.
func largeBytes(t *testing.T) int64 {
	t.Helper()
	text := os.Getenv("RUKPAK_LARGE_BYTES")
	if text == "" {
		return defaultLargeBytes
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		t.Fatalf("RUKPAK_LARGE_BYTES is %q", text)
	}
	return n
}

// noise is content that cannot be compressed: as many bytes, the same each time.
func noise(size int64) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), size) }

// noisyLayer is the tar of one file of noise, made while it is read.
func noisyLayer(size int64) (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		err := t.WriteHeader(&tar.Header{Name: "noise", Typeflag: tar.TypeReg, Mode: 0o644, Size: size})
		if err == nil {
			_, err = io.Copy(t, noise(size))
		}
		w.CloseWithError(errors.Join(err, t.Close()))
	}()
	return r, nil
}

// TestLarge unpacks a bundle that is far larger than what the processes may occupy, and reads it
// many times at once, through kube-apiserver and at the Service.
func TestLarge(t *testing.T) {
	s := begin(t)
	size := largeBytes(t)
	digest, _ := s.pushImage(nodeRegistry, "v1", s.imageOf(func() (io.ReadCloser, error) { return noisyLayer(size) }, v1.Config{}))
	class := s.class("large", v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{Mode: v1alpha1.UnpackModeImageVolume, TimeoutSeconds: ptr.To[int32](1200)}
		c.Limits = &v1alpha1.ContentLimits{
			CompressedBytes: resource.NewQuantity(2*size, resource.BinarySI), Bytes: resource.NewQuantity(2*size, resource.BinarySI),
		}
	})
	pid, err := s.process()
	s.must(err)
	server := s.watchProcess("/rukpak-apiserver", func() (int, error) { return pid, nil })
	idle := server.largest()

	start := time.Now()
	b := s.bundle("large", class, digest)
	unpack := s.watchProcess("/rukpak-unpack", func() (int, error) { return findProcess("/rukpak-unpack", s.podUID("large")) })
	s.within(20*time.Minute, "the large bundle is unpacked", func() error {
		found, err := s.api().Get(s.ctx, b.Name, getOptions)
		if err != nil {
			return err
		}
		b = found
		return isUnpacked(found)
	})
	unpacked := time.Since(start)
	if b.Status.Content.Size < size {
		t.Errorf("the content has %d bytes, which is less than the %d of its noise", b.Status.Content.Size, size)
	}
	start = time.Now()
	s.readAtOnce(b)
	read := time.Since(start)

	serverRSS, unpackRSS := server.stop(), unpack.stop()
	t.Logf("%d MiB: unpacked in %.1f s, read by %d in %.1f s; server %d MiB before, at most %d MiB (and %d MiB in all its life); unpack pod at most %d MiB",
		size>>20, unpacked.Seconds(), readers, read.Seconds(), idle>>20, serverRSS.sampled>>20, serverRSS.peak>>20, unpackRSS.max()>>20)
	if serverRSS.max() >= maxServerRSS {
		t.Errorf("the server occupied %d bytes, which is not below %d", serverRSS.max(), maxServerRSS)
	}
	if unpackRSS.max() == 0 || unpackRSS.max() >= maxUnpackRSS {
		t.Errorf("the unpack pod occupied %d bytes, which is not below %d", unpackRSS.max(), maxUnpackRSS)
	}
	if now, err := s.process(); err != nil || now != pid {
		t.Errorf("the server did not live through it: process %d, then %d, %v", pid, now, err)
	}
}

// podUID is that of the current attempt of a bundle, or a text that is in no name.
func (s *scope) podUID(name string) string {
	b, err := s.api().Get(s.ctx, name, getOptions)
	if err != nil || b.Status.Unpack == nil || b.Status.Unpack.PodUID == "" {
		return "no pod yet"
	}
	return string(b.Status.Unpack.PodUID)
}

// readAtOnce reads content with many readers at the same time, each of which checks the digest and the file.
func (s *scope) readAtOnce(b *v1alpha1.Bundle) {
	s.Helper()
	want := sha256.New()
	if _, err := io.Copy(want, noise(largeBytes(s.T))); err != nil {
		s.Fatal(err)
	}
	group, ctx := errgroup.WithContext(s.ctx)
	for range readers {
		group.Go(func() (err error) {
			// Within the 60 s after which kube-apiserver cuts a request a slow machine does not read all of it: what is left is asked for.
			content := &resumed{open: func(offset int64) (*typed.Content, error) {
				return s.api().GetContent(ctx, b.Name, typed.GetContentOptions{Offset: offset, IfDigest: b.Status.Content.Digest})
			}, size: b.Status.Content.Size}
			defer func() { err = errors.Join(err, content.Close()) }()
			whole, file := sha256.New(), sha256.New()
			if err := fileOf(io.TeeReader(content, whole), file); err != nil {
				return err
			}
			if got := fmt.Sprintf("sha256:%x", whole.Sum(nil)); got != b.Status.Content.Digest {
				return fmt.Errorf("read %s, want %s", got, b.Status.Content.Digest)
			}
			if !bytes.Equal(file.Sum(nil), want.Sum(nil)) {
				return errors.New("the file has other bytes than in the image")
			}
			return nil
		})
	}
	s.must(group.Wait())
}

// memory is what a process occupied, in bytes: at most in samples, and by its own account at most ever.
type memory struct{ sampled, peak int64 }

func (m memory) max() int64 { return max(m.sampled, m.peak) }

// watcher samples the memory of a process.
type watcher struct {
	mu    sync.Mutex
	seen  memory
	first chan struct{}
	end   chan struct{}
	done  chan struct{}
}

// watchProcess begins to sample the memory of a process, as soon as it is there.
func (s *scope) watchProcess(program string, find func() (int, error)) *watcher {
	w := &watcher{first: make(chan struct{}), end: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		pid := 0
		for ticker := time.NewTicker(20 * time.Millisecond); ; {
			if pid == 0 {
				if found, err := find(); err == nil {
					pid = found
				}
			}
			w.sample(pid, program)
			select {
			case <-ticker.C:
			case <-w.end:
				ticker.Stop()
				return
			}
		}
	}()
	return w
}

// sample looks once, unless the process has ended or is another by now.
func (w *watcher) sample(pid int, program string) {
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.HasPrefix(command, []byte(program+"\x00")) {
		return
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen == (memory{}) {
		defer close(w.first)
	}
	w.seen.sampled = max(w.seen.sampled, kilobytes(status, "VmRSS:"))
	w.seen.peak = max(w.seen.peak, kilobytes(status, "VmHWM:"))
}

// kilobytes reads a line of /proc/PID/status, in bytes.
func kilobytes(status []byte, key string) int64 {
	_, rest, _ := strings.Cut(string(status), key)
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

// largest waits for the first sample and returns the largest so far.
func (w *watcher) largest() int64 {
	<-w.first
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.sampled
}

// stop ends the sampling and returns what was seen.
func (w *watcher) stop() memory {
	close(w.end)
	<-w.done
	return w.seen
}
