// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

const digested = "registry.example/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func member(n int, pod string) Member {
	b := &v1alpha1.Bundle{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: fmt.Sprint("app-", n), UID: types.UID(fmt.Sprint("uid-", n)), Generation: 1},
		Spec: v1alpha1.BundleSpec{Source: v1alpha1.BundleSource{
			Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ImageSource{Reference: digested, Path: fmt.Sprint("/p", n), PullPolicy: corev1.PullAlways},
		}},
		Status: v1alpha1.BundleStatus{Unpack: &v1alpha1.UnpackStatus{
			Generation: 1, Attempt: int32(n) + 1, Nonce: NewNonce(), Mode: v1alpha1.UnpackModeImageVolume, PodName: pod,
		}},
	}
	if n > 1 {
		b.Spec.Source.Image.Reference = fmt.Sprint("registry.example/app-", n, "@sha256:00")
	}
	return Member{Bundle: b, Reference: b.Spec.Source.Image.Reference}
}

func sharedPod(t *testing.T) (*corev1.Pod, []Member, []byte) {
	t.Helper()
	key := []byte(strings.Repeat("k", 32))
	name := NewSharedName()
	members := []Member{member(0, name), member(1, name), member(2, name)}
	p, err := BuildShared(Params{
		Class: &v1alpha1.ProvisionerClass{}, Image: "server:1", Key: key, Endpoint: Endpoint{URL: "https://10.0.0.1:443", ServerName: "s", CA: []byte("ca")},
	}, members)
	if err != nil {
		t.Fatal(err)
	}
	return p, members, key
}

// Each image has a volume of its own, and the job of a bundle leads from that to its own content.
func TestBuildShared(t *testing.T) {
	p, members, key := sharedPod(t)
	if len(p.Spec.Containers) != 1 || len(p.Spec.InitContainers) != 0 {
		t.Fatalf("%d containers, %d before them", len(p.Spec.Containers), len(p.Spec.InitContainers))
	}
	c := p.Spec.Containers[0]
	var jobs []contract.Job
	for _, e := range c.Env {
		if e.Name == contract.EnvJobs {
			if err := json.Unmarshal([]byte(e.Value), &jobs); err != nil {
				t.Fatal(err)
			}
		}
	}
	made, err := MadeFor(key, p)
	if err != nil || len(made) != len(members) || len(jobs) != len(members) {
		t.Fatalf("made for %v, %v; jobs %v", made, err, jobs)
	}
	roots := map[string]bool{}
	for i, m := range members {
		if made[i] != (Owned{AttemptOf(m.Bundle), m.Bundle.Name}) {
			t.Errorf("made for %+v, want %+v", made[i], AttemptOf(m.Bundle))
		}
		if p.OwnerReferences[i].UID != m.Bundle.UID || p.OwnerReferences[i].BlockOwnerDeletion != nil || p.OwnerReferences[i].Controller != nil {
			t.Errorf("owner %+v", p.OwnerReferences[i])
		}
		job := jobs[i]
		if job.URL != fmt.Sprintf("https://10.0.0.1:443/apis/rukpak.io/v1alpha1/namespaces/team-a/bundles/%s/content", m.Bundle.Name) || job.Path != m.Bundle.Spec.Source.Image.Path {
			t.Errorf("job %+v", job)
		}
		if !mounted(p, c, job.Root, m) {
			t.Errorf("root %s is not the volume of the image", job.Root)
		}
		roots[job.Root] = true
	}
	if len(roots) != 2 || len(p.Spec.Volumes) != 3 {
		t.Errorf("the images are at %v, in volumes %v; two of three bundles have the same", roots, p.Spec.Volumes)
	}
	if p.Name != members[0].Bundle.Status.Unpack.PodName || p.Labels[LabelManagedBy] != ManagedBy || p.Labels[v1alpha1.LabelBundleUID] != SharedUID {
		t.Errorf("metadata %+v", p.ObjectMeta)
	}
}

func mounted(p *corev1.Pod, c corev1.Container, root string, m Member) bool {
	for _, mount := range c.VolumeMounts {
		for _, v := range p.Spec.Volumes {
			if mount.MountPath == root && mount.ReadOnly && v.Name == mount.Name && v.Image != nil &&
				v.Image.Reference == m.Reference && v.Image.PullPolicy == m.Bundle.Spec.Source.Image.PullPolicy {
				return true
			}
		}
	}
	return false
}

func TestMadeForRefuses(t *testing.T) {
	for name, change := range map[string]func(p *corev1.Pod){
		"an owner more": func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, p.OwnerReferences[0]) },
		"a proof less": func(p *corev1.Pod) {
			_, rest, _ := strings.Cut(p.Annotations[v1alpha1.AnnotationAttempt], ",")
			p.Annotations[v1alpha1.AnnotationAttempt] = rest
		},
		"owners exchanged": func(p *corev1.Pod) { o := p.OwnerReferences; o[0], o[1] = o[1], o[0] },
		"another owner":    func(p *corev1.Pod) { p.OwnerReferences[2].UID = "other" },
		"a proof exchanged": func(p *corev1.Pod) {
			p.Annotations[v1alpha1.AnnotationAttempt] = strings.Repeat("1.1.a.b,", 2) + "1.1.a.b"
		},
		"no proof":           func(p *corev1.Pod) { delete(p.Annotations, v1alpha1.AnnotationAttempt) },
		"no owner, no proof": func(p *corev1.Pod) { p.OwnerReferences = nil; delete(p.Annotations, v1alpha1.AnnotationAttempt) },
	} {
		t.Run(name, func(t *testing.T) {
			p, _, key := sharedPod(t)
			change(p)
			if made, err := MadeFor(key, p); !errors.Is(err, ErrNotOurs) {
				t.Errorf("made for %v, %v", made, err)
			}
		})
	}
	t.Run("another key", func(t *testing.T) {
		p, _, _ := sharedPod(t)
		if _, err := MadeFor([]byte(strings.Repeat("x", 32)), p); !errors.Is(err, ErrNotOurs) {
			t.Error(err)
		}
	})
}

// TestMadeForThoseThatAreLeft has the garbage collector take owners off that are gone.
func TestMadeForThoseThatAreLeft(t *testing.T) {
	for name, left := range map[string][]int{"the first gone": {1, 2}, "one in the middle gone": {0, 2}, "the last left": {2}, "the first left": {0}} {
		t.Run(name, func(t *testing.T) {
			p, _, key := sharedPod(t)
			all, err := MadeFor(key, p)
			if err != nil {
				t.Fatal(err)
			}
			owners, want := p.OwnerReferences, []Owned{}
			p.OwnerReferences = nil
			for _, i := range left {
				p.OwnerReferences = append(p.OwnerReferences, owners[i])
				want = append(want, all[i])
			}
			if made, err := MadeFor(key, p); err != nil || !slices.Equal(made, want) {
				t.Errorf("made for %v, %v, want %v", made, err, want)
			}
		})
	}
}

func TestShareKind(t *testing.T) {
	class := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{UID: "c", Generation: 1}}
	kind := func(change func(c *v1alpha1.ProvisionerClass, b *v1alpha1.Bundle)) string {
		c, b := class.DeepCopy(), member(0, "p").Bundle
		change(c, b)
		return ShareKind(c, b, v1alpha1.UnpackModeImageVolume, b.Spec.Source.Image.Reference)
	}
	same := kind(func(*v1alpha1.ProvisionerClass, *v1alpha1.Bundle) {})
	if same == "" {
		t.Fatal("a bundle by digest is of no kind")
	}
	for name, test := range map[string]struct {
		change func(c *v1alpha1.ProvisionerClass, b *v1alpha1.Bundle)
		shares bool
		alone  bool
	}{
		"another image": {change: func(_ *v1alpha1.ProvisionerClass, b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = "x@sha256:0" }, shares: true},
		"another path":  {change: func(_ *v1alpha1.ProvisionerClass, b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/x" }, shares: true},
		"the default service account, by its name": {change: func(_ *v1alpha1.ProvisionerClass, b *v1alpha1.Bundle) {
			b.Spec.ServiceAccountName = v1alpha1.DefaultServiceAccountName
		}, shares: true},
		"another service account": {change: func(_ *v1alpha1.ProvisionerClass, b *v1alpha1.Bundle) { b.Spec.ServiceAccountName = "x" }},
		"another platform":        {change: func(_ *v1alpha1.ProvisionerClass, b *v1alpha1.Bundle) { b.Spec.Source.Image.Platform = "linux/arm64" }},
		"a pull secret": {change: func(_ *v1alpha1.ProvisionerClass, b *v1alpha1.Bundle) {
			b.Spec.ImagePullSecrets = []v1alpha1.LocalObjectReference{{Name: "s"}}
		}},
		"another class":            {change: func(c *v1alpha1.ProvisionerClass, _ *v1alpha1.Bundle) { c.UID = "x" }},
		"the class as it is later": {change: func(c *v1alpha1.ProvisionerClass, _ *v1alpha1.Bundle) { c.Generation = 2 }},
		"a tag":                    {change: func(_ *v1alpha1.ProvisionerClass, b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = "x:1" }, alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			got := kind(test.change)
			if (got == same) != test.shares || (got == "") != test.alone {
				t.Errorf("kind %q, like %q", got, same)
			}
		})
	}
	for _, mode := range []v1alpha1.UnpackMode{v1alpha1.UnpackModeImageCopy, v1alpha1.UnpackModeDirect} {
		if got := ShareKind(class, member(0, "p").Bundle, mode, digested); got != "" {
			t.Errorf("mode %s is of kind %q", mode, got)
		}
	}
}
