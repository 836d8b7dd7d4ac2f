// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// askRefresh asks to look up what the tag of a bundle names now, and waits until that is done. It returns the bundle then.
func (s *scope) askRefresh(name, value string) *v1alpha1.Bundle {
	s.Helper()
	s.update(name, func(b *v1alpha1.Bundle) {
		metav1.SetMetaDataAnnotation(&b.ObjectMeta, v1alpha1.AnnotationRefresh, value)
	})
	return s.until(name, "is refreshed", func(b *v1alpha1.Bundle) error {
		if u := b.Status.Unpack; b.Status.LastHandledRefresh != value || u.EndTime == nil {
			return fmt.Errorf("lastHandledRefresh is %q, the attempt %+v, %s", b.Status.LastHandledRefresh, u, said(b))
		}
		return nil
	})
}

// stillServed checks that a refresh has not come between a bundle and its readers.
func (s *scope) stillServed(b *v1alpha1.Bundle) {
	s.Helper()
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionUnpacked, v1alpha1.ConditionContentAvailable} {
		before := meta.FindStatusCondition(b.Status.Conditions, kind)
		if before == nil || before.Status != metav1.ConditionTrue {
			s.Errorf("bundle %s: condition %s is %+v", b.Name, kind, before)
		}
	}
}

// TestRefresh moves a tag under a bundle, in every mode.
func TestRefresh(t *testing.T) {
	t.Parallel()
	s := begin(t)
	alone := s.standalone()
	for _, mode := range []v1alpha1.UnpackMode{v1alpha1.UnpackModeImageVolume, v1alpha1.UnpackModeImageCopy, v1alpha1.UnpackModeDirect} {
		of, class, tag := s, "raw", strings.ToLower(string(mode))
		if mode == v1alpha1.UnpackModeDirect {
			of = alone
		} else {
			class = s.class(tag, v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
				c.Unpack = &v1alpha1.UnpackPolicy{Mode: mode}
			})
		}
		first := files{"manifests/file": tag + " first"}
		digest, tagged := s.push(tag, first)
		of.bundle(tag, class, tagged, func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/manifests" })
		t.Run(tag, func(t *testing.T) {
			t.Parallel()
			of.in(t).refreshes(tag, tag, digest, first.below("manifests"))
		})
	}
}

// refreshes is one mode of TestRefresh.
func (s *scope) refreshes(name, tag, digest string, first files) {
	before := s.unpacked(name)
	resolved := func(b *v1alpha1.Bundle, want string) {
		s.Helper()
		if got := b.Status.ResolvedSource.Image.Reference; got != want {
			s.Errorf("resolved to %s, want %s", got, want)
		}
	}
	resolved(before, digest)

	// What has not moved: only the look is noted.
	same := s.askRefresh(name, "1")
	if !meta.IsStatusConditionTrue(same.Status.Conditions, v1alpha1.ConditionRefreshed) || same.Status.Refresh.LastTime == nil {
		s.Errorf("refresh is %+v, conditions %+v", same.Status.Refresh, same.Status.Conditions)
	}
	quiet := same.DeepCopy()
	quiet.Status.LastHandledRefresh, quiet.Status.Refresh = "", nil
	meta.RemoveStatusCondition(&quiet.Status.Conditions, v1alpha1.ConditionRefreshed)
	if !equality.Semantic.DeepEqual(quiet.Status, before.Status) {
		s.Errorf("a look changed the status from %+v to %+v", before.Status, quiet.Status)
	}

	// The same files in another image.
	rebuilt, _ := s.pushImage(nodeRegistry, tag, s.image(files{"manifests/file": first["file"]}.archive(), v1.Config{User: "somebody"}))
	b := s.askRefresh(name, "2")
	resolved(b, rebuilt)
	if !equality.Semantic.DeepEqual(b.Status.Content, before.Status.Content) || len(b.Status.History) > 0 {
		s.Errorf("the same files became %+v, history %+v", b.Status.Content, b.Status.History)
	}

	// Other files.
	next := files{"manifests/file": name + " next"}
	moved, _ := s.push(tag, next)
	b = s.askRefresh(name, "3")
	s.stillServed(b)
	resolved(b, moved)
	s.holds(b, next.below("manifests"))
	if h := b.Status.History; len(h) != 1 || h[0].Digest != before.Status.Content.Digest || b.Generation != before.Generation {
		s.Errorf("generation %d, history %+v", b.Generation, h)
	}
	data, err := s.read(name, before.Status.Content.Digest)
	s.must(err)
	compare(s.T, name+", the earlier content", data, first)

	// No tag any more: what is there stays, and it is said.
	s.untag(s.reference(nodeRegistry, tag))
	s.askRefresh(name, "4")
	b = s.until(name, "says that the refresh failed", func(b *v1alpha1.Bundle) error {
		if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionRefreshed); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonImageNotFound {
			return fmt.Errorf("Refreshed is %+v", c)
		}
		return nil
	})
	s.stillServed(b)
	resolved(b, moved)
	s.push(tag, next)
	s.until(name, "heals by itself", func(b *v1alpha1.Bundle) error {
		if !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionRefreshed) || b.Status.Refresh.Failures != 0 {
			return fmt.Errorf("refresh is %+v", b.Status.Refresh)
		}
		return nil
	})
}

// untag takes a tag, or with a digest an image, out of the node's registry.
func (s *scope) untag(reference string) {
	s.Helper()
	ref, err := name.ParseReference(reference)
	s.must(err)
	s.must(remote.Delete(ref, remote.WithContext(s.ctx)))
}

// TestRefreshInterval has the server follow a tag by itself, unless the bundle is suspended.
func TestRefreshInterval(t *testing.T) {
	t.Parallel()
	s := begin(t)
	first, next := small(s.ns+" first"), small(s.ns+" next")
	_, tagged := s.push("v1", first)
	every := func(b *v1alpha1.Bundle) { b.Spec.RefreshIntervalSeconds = ptr.To[int32](30) }
	s.bundle("follows", "plain", tagged, every)
	s.bundle("stays", "plain", tagged)
	s.bundle("suspended", "plain", tagged, every)
	for _, name := range []string{"follows", "stays", "suspended"} {
		s.unpacked(name)
	}
	s.update("suspended", func(b *v1alpha1.Bundle) { b.Spec.Suspend = true })
	moved, _ := s.push("v1", next)
	b := s.until("follows", "follows its tag", func(b *v1alpha1.Bundle) error {
		if got := b.Status.ResolvedSource.Image.Reference; got != moved {
			return fmt.Errorf("it is of %s", got)
		}
		return nil
	})
	s.stillServed(b)
	s.holds(b, next)
	for _, name := range []string{"stays", "suspended"} {
		b, err := s.api().Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		s.holds(b, first)
		s.stillServed(b)
	}
}

// TestTheSameImageOfSomebodyElse has a node tell an image under the name that another tenant gave it: what is
// noted is the one that the bundle may read.
func TestTheSameImageOfSomebodyElse(t *testing.T) {
	t.Parallel()
	s, other := begin(t), begin(t)
	image := s.image(small(s.ns).archive(), v1.Config{})
	theirs, _ := other.pushImage(nodeRegistry, "v1", image)
	other.bundle("app", "plain", theirs)
	other.unpacked("app")
	digest, tagged := s.pushImage(nodeRegistry, "v1", image)
	s.bundle("app", "plain", tagged)
	if got := s.unpacked("app").Status.ResolvedSource.Image.Reference; got != digest {
		t.Errorf("resolved to %s, want %s", got, digest)
	}
}

// TestSuspendAndEditEndAnAttempt has an attempt in flight end, and its pod go, when nobody wants it any more.
func TestSuspendAndEditEndAnAttempt(t *testing.T) {
	t.Parallel()
	s := begin(t)
	tree := small(s.ns)
	digest, tagged := s.push("v1", tree)
	class, open := s.door("shut")
	for _, c := range []struct {
		name   string
		change func(*v1alpha1.Bundle)
	}{
		{"suspended", func(b *v1alpha1.Bundle) { b.Spec.Suspend = true }},
		{"edited", func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = digest }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s.in(t)
			s.bundle(c.name, class, tagged)
			s.says(c.name, metav1.ConditionUnknown, v1alpha1.ReasonUnschedulable)
			before, err := s.api().Get(s.ctx, c.name, metav1.GetOptions{})
			s.must(err)
			s.update(c.name, c.change)
			s.eventually("the pod is gone", func() error {
				return gone(s.kube.CoreV1().Pods(s.ns).Get(s.ctx, before.Status.Unpack.PodName, metav1.GetOptions{}))
			})
		})
	}
	s.says("suspended", metav1.ConditionUnknown, v1alpha1.ReasonSuspended)
	open(true)
	s.holds(s.unpacked("edited"), tree)
	s.update("suspended", func(b *v1alpha1.Bundle) { b.Spec.Suspend = false })
	s.holds(s.unpacked("suspended"), tree)
}

// TestMovedTagAndLostContent moves tags, takes the content out of the store and kills the server: what comes back is
// what was there, or nothing.
func TestMovedTagAndLostContent(t *testing.T) {
	s := begin(t)
	class := s.class("once", v1alpha1.ProvisionerPlain, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{BackoffLimit: ptr.To[int32](0)}
	})
	old, next := map[string]files{}, map[string]files{}
	before := map[string]*v1alpha1.Bundle{}
	for _, name := range []string{"kept", "gone"} {
		old[name], next[name] = small(s.ns+name+" old"), small(s.ns+name+" next")
		_, tagged := s.push(name, old[name])
		s.bundle(name, class, tagged)
	}
	killed := func() <-chan error {
		for name := range old {
			before[name] = s.unpacked(name)
			s.holds(before[name], old[name])
			s.push(name, next[name])
			s.lose(before[name].Status.Content.Digest)
		}
		s.untag(before["gone"].Status.ResolvedSource.Image.Reference)
		return s.killAfter(time.Millisecond)
	}()
	s.must(<-killed)

	back := s.until("kept", "is restored", func(b *v1alpha1.Bundle) error {
		if b.Status.Unpack.Attempt < 2 {
			return fmt.Errorf("attempt %d", b.Status.Unpack.Attempt)
		}
		return isUnpacked(b)
	})
	s.holds(back, old["kept"])
	if !equality.Semantic.DeepEqual(back.Status.ResolvedSource, before["kept"].Status.ResolvedSource) ||
		back.Status.Content.Digest != before["kept"].Status.Content.Digest || len(back.Status.History) > 0 {
		t.Errorf("what came back is %+v of %+v", back.Status.Content, back.Status.ResolvedSource)
	}

	pinned := before["gone"].Status.ResolvedSource.Image.Reference
	lost := s.says("gone", metav1.ConditionFalse, v1alpha1.ReasonImageNotFound, pinned+" alone", v1alpha1.AnnotationRefresh)
	c := meta.FindStatusCondition(lost.Status.Conditions, v1alpha1.ConditionContentAvailable)
	if c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonContentLost || !strings.Contains(c.Message, "not found") {
		t.Errorf("ContentAvailable is %+v", c)
	}
	if _, err := s.read("gone", ""); !apierrors.IsConflict(err) {
		t.Errorf("content that is lost is answered with %v", err)
	}
	s.askRetry("gone", "1")
	s.until("gone", "is retried", func(b *v1alpha1.Bundle) error {
		if b.Status.LastHandledRetry != "1" || b.Status.Unpack.EndTime == nil {
			return fmt.Errorf("attempt %+v", b.Status.Unpack)
		}
		return nil
	})
	s.says("gone", metav1.ConditionFalse, v1alpha1.ReasonImageNotFound, pinned+" alone")
	s.askRefresh("gone", "1")
	s.holds(s.unpacked("gone"), next["gone"])
}

// lose takes stored content away.
func (s *scope) lose(digest string) {
	s.Helper()
	hex := strings.TrimPrefix(digest, "sha256:")
	found, err := filepath.Glob(filepath.Join(s.volume(), "content", "blobs", "sha256", "*", hex))
	s.must(err)
	if len(found) != 1 {
		s.Fatalf("%s is stored as %q", digest, found)
	}
	s.must(os.Remove(found[0]))
}
