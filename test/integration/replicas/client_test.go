// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package replicas

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

const (
	namespace = "default"
	// patience bounds the wait for something that happens by itself.
	patience = 90 * time.Second
	// pause is the time between two looks at it, and between two tries of a client.
	pause = 100 * time.Millisecond
	// stubborn is how long a client tries without getting any further.
	stubborn = 90 * time.Second
)

func bundles() typed.BundleInterface { return shared.Rukpak.RukpakV1alpha1().Bundles(namespace) }

// eventually waits until check returns nil.
func eventually(t *testing.T, what string, within time.Duration, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		if last == nil || ctx.Err() == nil {
			last = err // not the end of ctx, which says nothing
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: still not so after %v: %v", what, within, last)
		case <-time.After(pause):
		}
	}
}

// archive makes a canonical archive that cannot be compressed, always the same for a seed.
func archive(t *testing.T, seed uint64, size int) (content []byte, digest string) {
	t.Helper()
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	body := make([]byte, size)
	// Never an error.
	_, _ = rand.NewChaCha8(key).Read(body)
	var raw, out bytes.Buffer
	w := tar.NewWriter(&raw)
	err := errors.Join(w.WriteHeader(&tar.Header{Name: "data", Mode: 0o644, Size: int64(size), Typeflag: tar.TypeReg}))
	if err == nil {
		_, err = w.Write(body)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := tarball.Canonicalize(t.Context(), &out, &raw, tarball.Options{Scratch: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), digestOf(out.Bytes())
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// newBundle makes a bundle of a class that waits for an upload, and goes with the test.
func newBundle(t *testing.T, class, name string) {
	t.Helper()
	_, err := bundles().Create(t.Context(), &v1alpha1.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.BundleSpec{ProvisionerClassName: class, Source: v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := bundles().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
}

// passing reports whether an error is one that goes away: of a connection, or of a server that cannot now.
func passing(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return !errors.Is(err, typed.ErrDigestMismatch)
	}
	code := status.Status().Code
	return code >= http.StatusInternalServerError && code != http.StatusInsufficientStorage || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout
}

// download reads the content of a bundle at bytesPerSecond with the clientset, which goes on by itself where it was cut off,
// and returns the digest of what it got.
func download(ctx context.Context, name string, bytesPerSecond int) (digest string, err error) {
	c, err := bundles().GetContent(ctx, name, typed.GetContentOptions{Patience: stubborn})
	if err != nil {
		return "", err
	}
	defer c.Close()
	hash := sha256.New()
	n, err := io.Copy(hash, &paced{ctx, c, rate.NewLimiter(rate.Limit(bytesPerSecond), 32<<10)})
	if err == nil && n != c.Size {
		err = io.ErrUnexpectedEOF
	}
	return "sha256:" + hex.EncodeToString(hash.Sum(nil)), err
}

// paced reads no faster than the limit.
type paced struct {
	ctx   context.Context
	from  io.Reader
	limit *rate.Limiter
}

func (p *paced) Read(b []byte) (int, error) {
	n, err := p.from.Read(b[:min(len(b), p.limit.Burst())])
	if wait := p.limit.WaitN(p.ctx, n); wait != nil {
		return n, wait
	}
	return n, err
}

// upload writes content until it is acknowledged, each time from its beginning.
func upload(ctx context.Context, name string, content []byte) (*v1alpha1.Bundle, error) {
	for since := time.Now(); ; {
		b, err := bundles().PutContent(ctx, name, bytes.NewReader(content), typed.PutContentOptions{})
		if err == nil || !passing(err) {
			return b, err
		}
		if time.Since(since) > stubborn {
			return nil, fmt.Errorf("no success for %v: %w", stubborn, err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// uploadInParts writes content with the clientset, which goes on by itself where it broke off.
func uploadInParts(ctx context.Context, name string, content []byte) (*v1alpha1.Bundle, error) {
	return bundles().UploadContent(ctx, name, bytes.NewReader(content), int64(len(content)), typed.UploadContentOptions{})
}
