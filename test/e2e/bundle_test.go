// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

// counter counts from many goroutines.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *counter) value() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// class makes a class of the test's own and returns its name.
func (s *scope) class(suffix, provisioner string, change func(*v1alpha1.ProvisionerClass)) string {
	s.Helper()
	c := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: s.ns + "-" + suffix}, Provisioner: provisioner}
	if change != nil {
		change(c)
	}
	modest(c)
	s.must(s.create("class "+c.Name, func() error {
		_, err := s.bundles.RukpakV1alpha1().ProvisionerClasses().Create(s.ctx, c, metav1.CreateOptions{})
		return err
	}))
	s.Cleanup(func() {
		s, cancel := s.afterwards()
		defer cancel()
		err := s.retry(func() error {
			return s.bundles.RukpakV1alpha1().ProvisionerClasses().Delete(s.ctx, c.Name, metav1.DeleteOptions{})
		})
		if err != nil && !apierrors.IsNotFound(err) {
			s.Errorf("delete class %s: %v", c.Name, err)
		}
	})
	return c.Name
}

// modest lets many pods be on the one node at once, whose processors they hardly need, unless the class says what it needs.
func modest(c *v1alpha1.ProvisionerClass) {
	if c.Unpack == nil {
		c.Unpack = &v1alpha1.UnpackPolicy{}
	}
	if c.Unpack.PodTemplate == nil {
		c.Unpack.PodTemplate = &v1alpha1.UnpackPodTemplate{}
	}
	if c.Unpack.PodTemplate.Resources == nil {
		c.Unpack.PodTemplate.Resources = &v1alpha1.ResourceRequirements{}
	}
	r := c.Unpack.PodTemplate.Resources
	if _, ok := r.Requests[corev1.ResourceCPU]; !ok {
		r.Requests = maps.Clone(r.Requests)
		if r.Requests == nil {
			r.Requests = map[corev1.ResourceName]resource.Quantity{}
		}
		r.Requests[corev1.ResourceCPU] = resource.MustParse("5m")
	}
}

// updateClass changes a class.
func (s *scope) updateClass(name string, change func(*v1alpha1.ProvisionerClass)) {
	s.Helper()
	classes := s.bundles.RukpakV1alpha1().ProvisionerClasses()
	s.must(s.retry(func() error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			c, err := classes.Get(s.ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(c)
			_, err = classes.Update(s.ctx, c, metav1.UpdateOptions{})
			return err
		})
	}))
}

func (s *scope) api() typed.BundleInterface { return s.bundles.RukpakV1alpha1().Bundles(s.ns) }

// bundle makes a bundle of an image.
func (s *scope) bundle(name, class, reference string, changes ...func(*v1alpha1.Bundle)) *v1alpha1.Bundle {
	s.Helper()
	b := &v1alpha1.Bundle{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name},
		Spec: v1alpha1.BundleSpec{ProvisionerClassName: class, Source: v1alpha1.BundleSource{
			Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ImageSource{Reference: reference},
		}},
	}
	for _, change := range changes {
		change(b)
	}
	var made *v1alpha1.Bundle
	s.must(s.create("bundle "+name, func() (err error) {
		made, err = s.api().Create(s.ctx, b, metav1.CreateOptions{})
		return err
	}))
	return made
}

// update changes a bundle's metadata or spec.
func (s *scope) update(name string, change func(*v1alpha1.Bundle)) *v1alpha1.Bundle {
	s.Helper()
	var updated *v1alpha1.Bundle
	s.must(s.retry(func() error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			b, err := s.api().Get(s.ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(b)
			updated, err = s.api().Update(s.ctx, b, metav1.UpdateOptions{})
			return err
		})
	}))
	return updated
}

// askRetry sets the annotation that asks for a new attempt, through kubectl as a user does.
func (s *scope) askRetry(name, value string) {
	s.Helper()
	s.must(s.retry(func() error {
		_, err := s.tryKubectl("", "annotate", "--overwrite", "bundle", name, v1alpha1.AnnotationRetry+"="+value)
		return err
	}))
}

// until waits until a bundle is as wanted, and returns it.
func (s *scope) until(name, what string, wanted func(*v1alpha1.Bundle) error) *v1alpha1.Bundle {
	s.Helper()
	var b *v1alpha1.Bundle
	s.eventually(fmt.Sprintf("bundle %s: %s", name, what), func() error {
		found, err := s.api().Get(s.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		b = found
		return wanted(found)
	})
	return b
}

// unpacked waits until the content of the bundle's present spec is served.
func (s *scope) unpacked(name string) *v1alpha1.Bundle {
	s.Helper()
	return s.until(name, "is unpacked", func(b *v1alpha1.Bundle) error {
		return isUnpacked(b)
	})
}

func isUnpacked(b *v1alpha1.Bundle) error {
	if b.Status.Phase == v1alpha1.BundleUnpacked && b.Status.ObservedGeneration == b.Generation &&
		meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionReady) {
		return nil
	}
	return fmt.Errorf("phase %s of generation %d (now %d), %s", b.Status.Phase, b.Status.ObservedGeneration, b.Generation, said(b))
}

// said is what the bundle says about its progress.
func said(b *v1alpha1.Bundle) string {
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked)
	if c == nil {
		return "nothing said"
	}
	return fmt.Sprintf("Unpacked %s: %s: %s", c.Status, c.Reason, c.Message)
}

// read reads the content that has a digest, or with an empty one the current content.
func (s *scope) read(name, digest string) ([]byte, error) {
	return readAs(s.ctx, s.bundles, s.ns, name, digest)
}

// readAs reads content with somebody's client, which checks the digest.
func readAs(ctx context.Context, client versioned.Interface, namespace, name, digest string) (_ []byte, err error) {
	content, err := client.RukpakV1alpha1().Bundles(namespace).GetContent(ctx, name, typed.GetContentOptions{Digest: digest})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	return io.ReadAll(content)
}

// holds checks that the content of a bundle is what its status says, and exactly a tree.
func (s *scope) holds(b *v1alpha1.Bundle, tree files) {
	s.Helper()
	c := b.Status.Content
	if c == nil {
		s.Fatalf("bundle %s has no content: %s", b.Name, said(b))
	}
	var data []byte
	s.must(s.retry(func() (err error) {
		data, err = s.read(b.Name, c.Digest)
		return err
	}))
	if digest := fmt.Sprintf("sha256:%x", sha256.Sum256(data)); digest != c.Digest || int64(len(data)) != c.Size {
		s.Fatalf("bundle %s: %d bytes %s are served, status.content says %d bytes %s", b.Name, len(data), digest, c.Size, c.Digest)
	}
	compare(s.T, b.Name, data, tree)
}

// compare checks that an archive is exactly a tree.
func compare(t *testing.T, name string, data []byte, tree files) {
	t.Helper()
	got, listing, err := extract(data)
	if err != nil {
		t.Fatalf("content of %s: %v", name, err)
	}
	slices.Sort(listing)
	if want := tree.listing(); !slices.Equal(listing, want) {
		t.Fatalf("content of %s lists %q, want %q", name, listing, want)
	}
	for _, file := range slices.Sorted(maps.Keys(tree)) {
		if got[file] != tree[file] {
			t.Errorf("content of %s: %s has other bytes (%d of them, want %d)", name, file, len(got[file]), len(tree[file]))
		}
	}
}

// extract reads an archive: the regular files, and the names of all entries in their order.
func extract(data []byte) (files, []string, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, nil, err
	}
	tree, listing := files{}, []string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return tree, listing, nil
		}
		if err != nil {
			return nil, nil, err
		}
		listing = append(listing, h.Name)
		if h.Typeflag != tar.TypeReg {
			continue
		}
		text, err := io.ReadAll(r)
		if err != nil {
			return nil, nil, err
		}
		tree[h.Name] = string(text)
	}
}

// canonical makes the canonical archive of a tree below one of its folders.
func (s *scope) canonical(tree files, folder string) ([]byte, tarball.Summary) {
	s.Helper()
	var out bytes.Buffer
	summary, err := tarball.Canonicalize(s.ctx, &out, bytes.NewReader(tree.archive()), tarball.Options{Path: folder, Scratch: s.TempDir()})
	s.must(err)
	return out.Bytes(), summary
}

// below is the part of a tree below a folder.
func (f files) below(folder string) files {
	part := files{}
	for file, text := range f {
		if rest, ok := strings.CutPrefix(file, folder+"/"); ok {
			part[rest] = text
		}
	}
	return part
}
