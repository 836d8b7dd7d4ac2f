// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

func contents(digests ...string) []rukpak.ContentStatus {
	var list []rukpak.ContentStatus
	for _, d := range digests {
		list = append(list, rukpak.ContentStatus{Digest: d})
	}
	return list
}

func digestsOf(list []rukpak.ContentStatus) []string {
	var digests []string
	for _, c := range list {
		digests = append(digests, c.Digest)
	}
	return digests
}

func TestTrim(t *testing.T) {
	for name, test := range map[string]struct {
		history []string
		current string
		limit   *int32
		want    []string
	}{
		"none":                            {current: "a", limit: ptr.To[int32](2)},
		"within the limit":                {history: []string{"b", "c"}, current: "a", limit: ptr.To[int32](2), want: []string{"b", "c"}},
		"the oldest goes":                 {history: []string{"b", "c", "d"}, current: "a", limit: ptr.To[int32](2), want: []string{"b", "c"}},
		"limit 0":                         {history: []string{"b", "c"}, current: "a", limit: ptr.To[int32](0)},
		"no limit in an old class":        {history: []string{"b"}, current: "a"},
		"the current one is not its past": {history: []string{"b", "a", "c"}, current: "a", limit: ptr.To[int32](2), want: []string{"b", "c"}},
		"each once, where it is newest":   {history: []string{"b", "c", "b"}, current: "a", limit: ptr.To[int32](5), want: []string{"b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := trim(contents(test.history...), test.current, &rukpak.ProvisionerClass{RevisionHistoryLimit: test.limit})
			if !slices.Equal(digestsOf(got), test.want) {
				t.Errorf("got %q, want %q", digestsOf(got), test.want)
			}
		})
	}
}

func TestApply(t *testing.T) {
	const (
		a = "sha256:a"
		b = "sha256:b"
	)
	has := func(digest string, generation int64, history ...string) func(*rukpak.Bundle) {
		return func(x *rukpak.Bundle) {
			x.Status.Content = &rukpak.ContentStatus{Digest: digest, Generation: generation}
			x.Status.History = contents(history...)
			conditions.SetContentAvailable(&x.Status.Conditions, 1, true, v1alpha1.ReasonAvailable, "")
		}
	}
	ended := func(f func(*rukpak.Bundle)) func(*rukpak.Bundle) {
		return func(x *rukpak.Bundle) { f(x); x.Status.Unpack.EndTime = &someTime }
	}
	lost := func(f func(*rukpak.Bundle)) func(*rukpak.Bundle) {
		return func(x *rukpak.Bundle) {
			f(x)
			conditions.SetContentAvailable(&x.Status.Conditions, 1, false, v1alpha1.ReasonContentLost, "")
		}
	}
	for name, test := range map[string]struct {
		before  func(*rukpak.Bundle)
		upload  bool // by a client, not by an attempt
		changed bool
		refused bool
		content string
		history []string
	}{
		"the first":                               {changed: true, content: a},
		"another":                                 {before: has(b, 0), changed: true, content: a, history: []string{b}},
		"one from history":                        {before: has(b, 0, a, "c"), changed: true, content: a, history: []string{b, "c"}},
		"the same for the same generation":        {before: has(a, 1, "c"), content: a, history: []string{"c"}},
		"the same for a new generation":           {before: has(a, 0, "c"), content: a, history: []string{"c"}},
		"the same again after the attempt":        {before: ended(has(a, 1)), content: a},
		"other content after the attempt":         {before: ended(has(b, 1)), refused: true, content: b},
		"other content by a client":               {before: has(b, 1), upload: true, changed: true, content: a, history: []string{b}},
		"other content of an attempt that is on":  {before: has(b, 1), changed: true, content: a, history: []string{b}},
		"other content in place of what was lost": {before: lost(has(b, 0, "c")), changed: true, content: a, history: []string{"c"}},
		"the same where the bytes were lost":      {before: ended(lost(has(a, 1))), content: a},
		"other content where the bytes were lost": {before: ended(lost(has(b, 1))), refused: true, content: b},
	} {
		t.Run(name, func(t *testing.T) {
			x := attempted()
			conditions.Begin(&x.Status.Conditions, 1)
			if test.before != nil {
				test.before(x)
			}
			x.Status.Unpack.Failures, x.Status.Unpack.Reason = 3, "PullFailed"
			before := *x.Status.DeepCopy()
			g := &grant{uid: "uid-1", generation: 1, builtIn: true, attempt: !test.upload, podUID: "pod-uid"}
			unchanged := x.Status.Content != nil && x.Status.Content.Digest == a && x.Status.Content.Generation == 1 && g.settled(&x.Status)
			summary := tarball.Summary{Digest: a, Size: 1, UncompressedDigest: "sha256:u", UncompressedSize: 2, Files: 3}
			resolved := &rukpak.ResolvedSource{Type: rukpak.SourceTypeImage, Image: &rukpak.ResolvedImage{Reference: "app@" + a}}
			changed, err := g.apply(x, &rukpak.ProvisionerClass{Provisioner: v1alpha1.ProvisionerRaw, RevisionHistoryLimit: ptr.To[int32](2)}, summary, resolved, time.Unix(2e9, 0))
			if (err != nil) != test.refused || changed != test.changed {
				t.Errorf("changed %v, error %v", changed, err)
			}
			if x.Status.Content.Digest != test.content || !slices.Equal(digestsOf(x.Status.History), test.history) {
				t.Errorf("content %s, history %q; want %s, %q", x.Status.Content.Digest, digestsOf(x.Status.History), test.content, test.history)
			}
			if err != nil || unchanged {
				return
			}
			kept := before.Content != nil && before.Content.Digest == a && !isLost(&before)
			checkApplied(t, x, g, kept)
		})
	}
}

// An attempt that somebody asked for brings what is there already: it has ended well, and the bundle is Ready again.
func TestTheSameContentEndsTheAttempt(t *testing.T) {
	x := attempted()
	conditions.Begin(&x.Status.Conditions, 1)
	x.Status.Content = &rukpak.ContentStatus{Digest: "sha256:a", Generation: 1}
	conditions.SetContentAvailable(&x.Status.Conditions, 1, true, v1alpha1.ReasonAvailable, "")
	g := &grant{uid: "uid-1", generation: 1, builtIn: true, attempt: true, podUID: "pod-uid"}
	changed, err := g.apply(x, &rukpak.ProvisionerClass{}, tarball.Summary{Digest: "sha256:a"}, &rukpak.ResolvedSource{}, time.Unix(2e9, 0))
	if err != nil || changed {
		t.Errorf("changed %v, error %v", changed, err)
	}
	if x.Status.Unpack.EndTime == nil || !meta.IsStatusConditionTrue(x.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("the attempt goes on: %+v, %+v", x.Status.Unpack, x.Status.Conditions)
	}
	if !g.settled(&x.Status) {
		t.Error("the same once more would change something")
	}
}

// What was lost comes back as it was, or not at all, unless somebody asks for what there is now.
func TestLostContentIsRestoredAsItWas(t *testing.T) {
	for name, test := range map[string]struct {
		files   string
		asked   bool
		refused bool
	}{
		"the same files":                     {files: "sha256:u"},
		"other files":                        {files: "sha256:v", refused: true},
		"other files that were asked for":    {files: "sha256:v", asked: true},
		"the same files that were asked for": {files: "sha256:u", asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			x := attempted()
			conditions.Begin(&x.Status.Conditions, 1)
			x.Status.Content = &rukpak.ContentStatus{Digest: "sha256:a", UncompressedDigest: "sha256:u", Generation: 1}
			x.Status.Unpack.Refresh = test.asked
			conditions.SetContentAvailable(&x.Status.Conditions, 1, false, v1alpha1.ReasonContentLost, "")
			g := &grant{uid: "uid-1", generation: 1, builtIn: true, attempt: true, podUID: "pod-uid"}
			_, err := g.apply(x, &rukpak.ProvisionerClass{}, tarball.Summary{Digest: "sha256:b", UncompressedDigest: test.files}, &rukpak.ResolvedSource{}, time.Unix(2e9, 0))
			if (err != nil) != test.refused {
				t.Errorf("error %v", err)
			}
			if test.refused && x.Status.Content.Digest != "sha256:a" {
				t.Errorf("the content is %+v", x.Status.Content)
			}
		})
	}
}

// A refresh that has brought something ends what is said of those that failed.
func TestCommitEndsARefresh(t *testing.T) {
	for name, refresh := range map[string]bool{"a refresh": true, "another attempt": false} {
		t.Run(name, func(t *testing.T) {
			x := attempted()
			conditions.Begin(&x.Status.Conditions, 1)
			conditions.SetRefreshFailed(&x.Status.Conditions, 1, "ImageNotFound", "")
			x.Status.Unpack.Refresh = refresh
			x.Status.Refresh = &rukpak.RefreshStatus{Failures: 3, LastTime: &someTime, NextTime: &someTime, Refused: "app@sha256:r"}
			g := &grant{uid: "uid-1", generation: 1, builtIn: true, attempt: true, podUID: "pod-uid"}
			resolved := &rukpak.ResolvedSource{Type: rukpak.SourceTypeImage, Image: &rukpak.ResolvedImage{Reference: "app@sha256:a"}}
			if _, err := g.apply(x, &rukpak.ProvisionerClass{}, tarball.Summary{Digest: "sha256:a"}, resolved, time.Unix(2e9, 0)); err != nil {
				t.Fatal(err)
			}
			r := x.Status.Refresh
			if ended := r.Failures == 0 && r.NextTime == nil && r.Refused == ""; ended != refresh || r.LastTime == nil {
				t.Errorf("refresh is %+v", r)
			}
			if meta.IsStatusConditionTrue(x.Status.Conditions, v1alpha1.ConditionRefreshed) != refresh {
				t.Errorf("conditions are %+v", x.Status.Conditions)
			}
		})
	}
}

// checkApplied checks what a commit says about the content that it brought. What was there already keeps its time.
func checkApplied(t *testing.T, x *rukpak.Bundle, g *grant, kept bool) {
	t.Helper()
	want := rukpak.ContentStatus{
		Digest: "sha256:a", Size: 1, UncompressedDigest: "sha256:u", UncompressedSize: 2, Files: 3, Generation: 1,
		MediaType: "application/gzip", Format: "v1", UpdateTime: metav1.NewTime(time.Unix(2e9, 0)),
	}
	if kept {
		want.UpdateTime = metav1.Time{}
	}
	if *x.Status.Content != want {
		t.Errorf("content is %+v", *x.Status.Content)
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionUnpacked, v1alpha1.ConditionContentAvailable} {
		if !meta.IsStatusConditionTrue(x.Status.Conditions, kind) {
			t.Errorf("%s is not True", kind)
		}
	}
	if x.Status.ObservedGeneration != 1 || x.Status.Provisioner != v1alpha1.ProvisionerRaw || x.Status.ResolvedSource == nil {
		t.Errorf("status is %+v", x.Status)
	}
	if u := x.Status.Unpack; g.attempt && (u.EndTime == nil || u.Failures != 0 || u.Reason != "" || u.ResolvedReference != "app@sha256:a") {
		t.Errorf("the attempt is %+v", u)
	}
}

// Whether the content of somebody else's provisioner is what was asked for, its controller says.
func TestApplyForAnotherProvisioner(t *testing.T) {
	x := attempted()
	conditions.Begin(&x.Status.Conditions, 1)
	g := &grant{uid: "uid-1", generation: 1}
	changed, err := g.apply(x, &rukpak.ProvisionerClass{Provisioner: "example.com/mine"}, tarball.Summary{Digest: "sha256:" + strings.Repeat("a", 64)}, nil, time.Now())
	if err != nil || !changed || !available(x) {
		t.Fatalf("changed %v, error %v, available %v", changed, err, available(x))
	}
	if c := meta.FindStatusCondition(x.Status.Conditions, v1alpha1.ConditionReady); c.Status != metav1.ConditionUnknown || x.Status.ObservedGeneration != 0 {
		t.Errorf("the server speaks for the controller: %+v", c)
	}
}
