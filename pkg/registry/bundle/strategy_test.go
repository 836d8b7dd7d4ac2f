// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/install"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

var (
	digestA = "sha256:" + strings.Repeat("a", 64)
	digestB = "sha256:" + strings.Repeat("b", 64)
	pinned  = "registry.example/app@" + digestA
)

func imageBundle(name string) *rukpak.Bundle {
	return &rukpak.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team"},
		Spec: rukpak.BundleSpec{
			ProvisionerClassName: "plain", ServiceAccountName: "default",
			Source: rukpak.BundleSource{Type: rukpak.SourceTypeImage, Image: &rukpak.ImageSource{Reference: pinned, PullPolicy: "Always", Path: "/"}},
		},
	}
}

func uploadBundle(name string) *rukpak.Bundle {
	return &rukpak.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team"},
		Spec: rukpak.BundleSpec{
			ProvisionerClassName: "plain", Source: rukpak.BundleSource{Type: rukpak.SourceTypeUpload, Upload: &rukpak.UploadSource{}},
		},
	}
}

// setContent does to a status what a commit of content does.
func setContent(b *rukpak.Bundle, digest string) {
	if b.Status.Content != nil {
		b.Status.History = append([]rukpak.ContentStatus{*b.Status.Content}, b.Status.History...)
	}
	b.Status.Content = &rukpak.ContentStatus{Digest: digest, Size: 1, Generation: b.Generation}
	b.Status.ResolvedSource = &rukpak.ResolvedSource{Type: b.Spec.Source.Type, Image: &rukpak.ResolvedImage{Reference: digest}}
	b.Status.ObservedGeneration = b.Generation
	conditions.SetContentAvailable(&b.Status.Conditions, b.Generation, true, v1alpha1.ReasonAvailable, "")
	conditions.SetProgress(&b.Status.Conditions, b.Generation, metav1.ConditionTrue, v1alpha1.ReasonUnpacked, "")
}

// stored is a bundle as etcd holds it: unpacked, with an attempt.
func stored(b *rukpak.Bundle) *rukpak.Bundle {
	s := testStrategy()
	s.PrepareForCreate(context.Background(), b)
	b.UID, b.ResourceVersion, b.CreationTimestamp = "uid", "7", metav1.NewTime(time.Unix(1e9, 0))
	setContent(b, digestB)
	setContent(b, digestA)
	b.Status.Unpack = &rukpak.UnpackStatus{Generation: b.Generation, Attempt: 1, Nonce: "n1", PodName: "p1", PodUID: "u1"}
	b.Status.Refresh = &rukpak.RefreshStatus{Failures: 1}
	conditions.SetRefreshed(&b.Status.Conditions, b.Generation)
	b.Status.Phase = rukpak.BundleUnpacked
	return b
}

func testStrategy() strategy {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return newStrategy(scheme)
}

// testStatusStrategy is that of bundles of a built-in provisioner.
func testStatusStrategy() statusStrategy {
	return statusStrategy{testStrategy(), func(context.Context, *rukpak.Bundle) string { return v1alpha1.ProvisionerPlain }}
}

func TestCreateClearsTheStatusAndBegins(t *testing.T) {
	b := imageBundle("app")
	b.UID, b.CreationTimestamp, b.Generation = "uid", metav1.Now(), 9
	setContent(b, digestB)
	b.Status.Unpack = &rukpak.UnpackStatus{Nonce: "forged"}
	b.Status.Phase = rukpak.BundleUnpacked
	if err := rest.BeforeCreate(testStrategy(), asClient(t.Context(), "jane", ""), b); err != nil {
		t.Fatal(err)
	}
	if b.Generation != 1 {
		t.Errorf("generation %d, want 1", b.Generation)
	}
	if s := b.Status; s.Content != nil || s.History != nil || s.Unpack != nil || s.ResolvedSource != nil || s.ObservedGeneration != 0 {
		t.Errorf("the status of the request was taken: %+v", s)
	}
	checkBegun(t, b)
	if meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionContentAvailable) {
		t.Error("content is available at once")
	}
}

// checkBegun checks that a bundle is as one whose generation nobody has worked on.
func checkBegun(t *testing.T, b *rukpak.Bundle) {
	t.Helper()
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionUnpacked} {
		c := meta.FindStatusCondition(b.Status.Conditions, kind)
		if c == nil || c.Status != metav1.ConditionUnknown || c.ObservedGeneration != b.Generation {
			t.Errorf("condition %s is %+v, want Unknown of generation %d", kind, c, b.Generation)
		}
	}
	if !meta.IsStatusConditionFalse(b.Status.Conditions, v1alpha1.ConditionStalled) {
		t.Error("it is stalled")
	}
	if b.Status.Phase != rukpak.BundlePending {
		t.Errorf("phase %s, want Pending", b.Status.Phase)
	}
}

func TestUpdateOfTheSpec(t *testing.T) {
	const (
		same    = "same generation"
		current = "new generation, same content"
		begun   = "new generation, new content"

		pinnedStill = "new generation, the content that was lost"
		lostBefore  = "new generation, new content, the old one is lost"
	)
	for name, test := range map[string]struct {
		bundle *rukpak.Bundle
		old    func(*rukpak.Bundle) // changes what is stored
		change func(*rukpak.Bundle)
		want   string
	}{
		"nothing":               {change: func(*rukpak.Bundle) {}, want: same},
		"labels":                {change: func(b *rukpak.Bundle) { b.Labels = map[string]string{"a": "b"} }, want: same},
		"the generation itself": {change: func(b *rukpak.Bundle) { b.Generation = 100 }, want: same},
		"suspend":               {change: func(b *rukpak.Bundle) { b.Spec.Suspend = true }, want: current},
		"pull secrets": {change: func(b *rukpak.Bundle) {
			b.Spec.ImagePullSecrets = []rukpak.LocalObjectReference{{Name: "s"}}
		}, want: current},
		"service account":           {change: func(b *rukpak.Bundle) { b.Spec.ServiceAccountName = "other" }, want: current},
		"pull policy":               {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.PullPolicy = "Never" }, want: current},
		"reference":                 {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.Reference = "registry.example/other@" + digestB }, want: begun},
		"path":                      {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.Path = "/manifests" }, want: begun},
		"platform":                  {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.Platform = "linux/arm64" }, want: begun},
		"source type":               {change: func(b *rukpak.Bundle) { b.Spec = uploadBundle("").Spec }, want: begun},
		"the interval of refreshes": {change: func(b *rukpak.Bundle) { b.Spec.RefreshIntervalSeconds = ptr.To[int32](60) }, want: current},
		"pull secrets of one that is lost": {
			old: func(b *rukpak.Bundle) {
				conditions.SetProgress(&b.Status.Conditions, b.Generation, metav1.ConditionFalse, "PullFailed", "")
				conditions.SetContentAvailable(&b.Status.Conditions, b.Generation, false, v1alpha1.ReasonContentLost, "")
			},
			change: func(b *rukpak.Bundle) { b.Spec.ImagePullSecrets = []rukpak.LocalObjectReference{{Name: "s"}} }, want: pinnedStill,
		},
		"reference of one that is lost": {
			old: func(b *rukpak.Bundle) {
				conditions.SetContentAvailable(&b.Status.Conditions, b.Generation, false, v1alpha1.ReasonContentLost, "")
			},
			change: func(b *rukpak.Bundle) { b.Spec.Source.Image.Reference = "registry.example/other@" + digestB }, want: lostBefore,
		},
		"suspend where the content is of an earlier generation": {
			old: func(b *rukpak.Bundle) { b.Generation = 2 }, change: func(b *rukpak.Bundle) { b.Spec.Suspend = true }, want: begun,
		},
		"suspend of an upload":         {bundle: uploadBundle("app"), change: func(b *rukpak.Bundle) { b.Spec.Suspend = true }, want: current},
		"wanted digest of an upload":   {bundle: uploadBundle("app"), change: func(b *rukpak.Bundle) { b.Spec.Source.Upload.Digest = digestB }, want: begun},
		"class of one that has no one": {old: func(b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "" }, change: func(b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "raw" }, want: begun},
	} {
		t.Run(name, func(t *testing.T) {
			old := test.bundle
			if old == nil {
				old = imageBundle("app")
			}
			old = stored(old)
			if test.old != nil {
				test.old(old)
			}
			b := old.DeepCopy()
			test.change(b)
			before := old.DeepCopy()
			if err := rest.BeforeUpdate(testStrategy(), asClient(t.Context(), "jane", ""), b, old); err != nil {
				t.Fatal(err)
			}
			if !apiequality.Semantic.DeepEqual(old, before) {
				t.Error("the stored bundle was changed under the feet of others")
			}
			switch test.want {
			case same:
				if b.Generation != old.Generation || !apiequality.Semantic.DeepEqual(b.Status, old.Status) {
					t.Errorf("generation %d, status %+v", b.Generation, b.Status)
				}
			case current:
				checkFollowed(t, b, old)
			case pinnedStill:
				// Another image would be taken in its place otherwise, once the tag has moved.
				checkBegun(t, b)
				if b.Status.Content.Generation != b.Generation || !apiequality.Semantic.DeepEqual(b.Status.ResolvedSource, old.Status.ResolvedSource) {
					t.Errorf("generation %d, content %+v", b.Generation, b.Status.Content)
				}
			case lostBefore:
				checkBegun(t, b)
				if b.Status.Content.Generation != old.Generation || b.Status.Refresh != nil || meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionRefreshed) != nil {
					t.Errorf("generation %d, status %+v", b.Generation, b.Status)
				}
			case begun:
				if b.Generation != old.Generation+1 {
					t.Errorf("generation %d, want %d", b.Generation, old.Generation+1)
				}
				checkBegun(t, b)
				if !apiequality.Semantic.DeepEqual(b.Status.Content, old.Status.Content) || !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionContentAvailable) {
					t.Error("the old content is not served any more")
				}
			}
		})
	}
}

// checkFollowed checks that the content has become that of the new generation.
func checkFollowed(t *testing.T, b, old *rukpak.Bundle) {
	t.Helper()
	if b.Generation != old.Generation+1 || b.Status.Content.Generation != b.Generation {
		t.Errorf("generation %d with content of generation %d, want both %d", b.Generation, b.Status.Content.Generation, old.Generation+1)
	}
	if b.Status.ObservedGeneration != b.Generation {
		t.Errorf("observed is generation %d of %d", b.Status.ObservedGeneration, b.Generation)
	}
	ready := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != b.Generation {
		t.Errorf("condition Ready is %+v", ready)
	}
	if b.Status.Phase != old.Status.Phase || b.Status.Content.Digest != old.Status.Content.Digest {
		t.Errorf("the status has become %+v", b.Status)
	}
}

func TestUpdateNeverChangesTheStatus(t *testing.T) {
	for _, caller := range []string{"jane", user.APIServerUser} {
		t.Run(caller, func(t *testing.T) {
			old := stored(imageBundle("app"))
			b := old.DeepCopy()
			b.Status = rukpak.BundleStatus{Phase: rukpak.BundleFailing, Content: &rukpak.ContentStatus{Digest: digestB}}
			if err := rest.BeforeUpdate(testStrategy(), asClient(t.Context(), caller, ""), b, old); err != nil {
				t.Fatal(err)
			}
			if !apiequality.Semantic.DeepEqual(b.Status, old.Status) {
				t.Errorf("the status has become %+v", b.Status)
			}
		})
	}
}

func TestUpdateOfTheStatus(t *testing.T) {
	const foreign = "example.com/own"
	for name, test := range map[string]struct {
		caller      string
		provisioner string
		commit      bool
		content     string // of the digest that a forger writes
		nonce       string
		progress    bool // what the caller says about it is taken
		stored      bool // and about what is stored
	}{
		"a client":                             {caller: "mallory", provisioner: v1alpha1.ProvisionerPlain, content: digestA, nonce: "n1"},
		"an administrator":                     {caller: "admin", provisioner: v1alpha1.ProvisionerRaw, content: digestA, nonce: "n1"},
		"somebody where nobody knows whose":    {caller: "mallory", content: digestA, nonce: "n1"},
		"the controller of another class":      {caller: "controller", provisioner: foreign, content: digestA, nonce: "n1", progress: true},
		"the reconciler":                       {caller: user.APIServerUser, provisioner: v1alpha1.ProvisionerPlain, content: digestA, nonce: "n2", progress: true, stored: true},
		"the reconciler, of somebody's bundle": {caller: user.APIServerUser, provisioner: foreign, content: digestA, nonce: "n2", progress: true, stored: true},
		"a commit of content":                  {caller: "uploader", provisioner: v1alpha1.ProvisionerPlain, commit: true, content: digestB, nonce: "n2", progress: true, stored: true},
	} {
		t.Run(name, func(t *testing.T) {
			old := stored(imageBundle("app"))
			b := old.DeepCopy()
			b.Spec.Source.Image.Reference = "registry.example/evil@" + digestB
			b.Labels = map[string]string{"a": "b"}
			b.Status.Content.Digest = digestB
			b.Status.History = []rukpak.ContentStatus{}
			b.Status.ResolvedSource.Image.Reference = digestB
			b.Status.Unpack.Nonce = "n2"
			b.Status.Phase = "Nonsense"
			b.Status.LastHandledRetry, b.Status.LastHandledRefresh = "r1", "r2"
			b.Status.ObservedGeneration = 0
			b.Status.Refresh, b.Status.Provisioner = nil, "evil.example/own"
			conditions.SetStalled(&b.Status.Conditions, 1, true, "Broken", "")
			conditions.SetProgress(&b.Status.Conditions, 1, metav1.ConditionFalse, "Broken", "")
			conditions.SetContentAvailable(&b.Status.Conditions, 1, false, v1alpha1.ReasonContentLost, "")
			conditions.SetStorageFull(&b.Status.Conditions, 1, true)
			meta.RemoveStatusCondition(&b.Status.Conditions, v1alpha1.ConditionRefreshed)
			theirs := metav1.Condition{Type: "example.com/Scanned", Status: metav1.ConditionTrue, Reason: "Clean", LastTransitionTime: metav1.Now()}
			b.Status.Conditions = append([]metav1.Condition{theirs}, b.Status.Conditions...)
			of := statusStrategy{testStrategy(), func(context.Context, *rukpak.Bundle) string { return test.provisioner }}
			var s rest.RESTUpdateStrategy = of
			if test.commit {
				s = commitStrategy{of}
			}
			if err := rest.BeforeUpdate(s, asClient(t.Context(), test.caller, "status"), b, old); err != nil {
				t.Fatal(err)
			}
			if b.Status.Content.Digest != test.content || b.Status.ResolvedSource.Image.Reference != test.content {
				t.Errorf("content is %s from %s, want %s", b.Status.Content.Digest, b.Status.ResolvedSource.Image.Reference, test.content)
			}
			if kept := len(b.Status.History) == 1; kept != (test.content == digestA) {
				t.Errorf("history is %+v", b.Status.History)
			}
			if b.Status.Unpack.Nonce != test.nonce {
				t.Errorf("the attempt is %q, want %q", b.Status.Unpack.Nonce, test.nonce)
			}
			if own := b.Status.Refresh != nil && b.Status.Provisioner == ""; own == test.stored {
				t.Errorf("provisioner %q, refresh %+v", b.Status.Provisioner, b.Status.Refresh)
			}
			phase, generation, retry := rukpak.BundleUnpacked, int64(1), ""
			if test.progress {
				phase, generation, retry = rukpak.BundleFailing, 0, "r1"
			}
			if b.Status.Phase != phase || b.Status.ObservedGeneration != generation || b.Status.LastHandledRetry != retry {
				t.Errorf("phase %s of generation %d, retry %q: want %s, %d, %q", b.Status.Phase, b.Status.ObservedGeneration, b.Status.LastHandledRetry, phase, generation, retry)
			}
			checkConditions(t, b.Status.Conditions, map[string]bool{
				theirs.Type: true, v1alpha1.ConditionUnpacked: !test.progress, v1alpha1.ConditionReady: !test.progress,
				v1alpha1.ConditionStalled: test.progress, v1alpha1.ConditionContentAvailable: !test.stored, v1alpha1.ConditionStorageFull: test.stored,
			})
			if meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionRefreshed) == nil != test.stored {
				t.Error("a condition was left out")
			}
			if !apiequality.Semantic.DeepEqual(b.Spec, old.Spec) || b.Labels != nil || b.Generation != old.Generation {
				t.Error("more than the status has changed")
			}
		})
	}
}

// Whoever has set a condition of his own may take it away, so that there is room for another one; the server's own nobody takes away.
func TestConditionsAreTakenAway(t *testing.T) {
	for _, who := range []string{v1alpha1.ProvisionerPlain, "example.com/own"} {
		of := statusStrategy{testStrategy(), func(context.Context, *rukpak.Bundle) string { return who }}
		old := stored(imageBundle("app"))
		for i := range 32 {
			meta.SetStatusCondition(&old.Status.Conditions, metav1.Condition{Type: fmt.Sprint("example.com/C", i), Status: metav1.ConditionTrue, Reason: "R"})
		}
		b := old.DeepCopy()
		meta.RemoveStatusCondition(&b.Status.Conditions, "example.com/C0")
		meta.RemoveStatusCondition(&b.Status.Conditions, v1alpha1.ConditionUnpacked)
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: "example.com/New", Status: metav1.ConditionTrue, Reason: "R"})
		if err := rest.BeforeUpdate(of, asClient(t.Context(), "controller", "status"), b, old); err != nil {
			t.Errorf("provisioner %s: %v", who, err)
		}
		checkConditions(t, b.Status.Conditions, map[string]bool{"example.com/C0": false, "example.com/New": true, v1alpha1.ConditionUnpacked: true})
	}
}

// checkConditions checks which conditions are True, and that none is there twice.
func checkConditions(t *testing.T, list []metav1.Condition, want map[string]bool) {
	t.Helper()
	for kind, yes := range want {
		if meta.IsStatusConditionTrue(list, kind) != yes {
			t.Errorf("condition %s is not %v: %+v", kind, yes, list)
		}
	}
	seen := map[string]bool{}
	for _, c := range list {
		if seen[c.Type] {
			t.Errorf("condition %s is there twice", c.Type)
		}
		seen[c.Type] = true
	}
}

func TestWarnings(t *testing.T) {
	s := testStrategy()
	for reference, want := range map[string]bool{
		pinned:                               false,
		"registry.example/app:v1@" + digestA: false,
		"registry.example/app:v1":            true,
		"app":                                true,
		"":                                   false,
	} {
		t.Run(reference, func(t *testing.T) {
			b := imageBundle("app")
			b.Spec.Source.Image.Reference = reference
			got := s.WarningsOnCreate(t.Context(), b)
			if (len(got) > 0) != want {
				t.Errorf("at create: %q", got)
			}
			for _, w := range got {
				if !strings.HasPrefix(w, "spec.source.image.reference:") || !strings.Contains(w, reference) {
					t.Errorf("the warning does not name the field and its value: %q", w)
				}
			}
			other := imageBundle("app")
			other.Spec.Source.Image.Path = "/other"
			if got := s.WarningsOnUpdate(t.Context(), b, other); (len(got) > 0) != want {
				t.Errorf("at an update of the source: %q", got)
			}
			suspended := b.DeepCopy()
			suspended.Spec.Suspend = true
			if got := s.WarningsOnUpdate(t.Context(), suspended, b); len(got) > 0 {
				t.Errorf("at an update of something else: %q", got)
			}
		})
	}
	for reference, want := range map[string]bool{pinned: true, "registry.example/app:v1": false} {
		b := imageBundle("app")
		b.Spec.Source.Image.Reference = reference
		old := b.DeepCopy()
		b.Spec.RefreshIntervalSeconds = ptr.To[int32](60)
		got := s.WarningsOnUpdate(t.Context(), b, old)
		if (len(got) > 0) != want || want && !strings.HasPrefix(got[0], "spec.refreshIntervalSeconds:") {
			t.Errorf("for an interval of %s: %q", reference, got)
		}
	}
	if got := s.WarningsOnCreate(t.Context(), uploadBundle("app")); len(got) > 0 {
		t.Errorf("for an upload: %q", got)
	}
	if got := testStatusStrategy().WarningsOnUpdate(t.Context(), imageBundle("a"), imageBundle("b")); len(got) > 0 {
		t.Errorf("for a status: %q", got)
	}
}

// The name of the server can be impersonated by whoever may impersonate users, or bear a certificate.
func TestFromLoopback(t *testing.T) {
	for name, test := range map[string]struct {
		user user.Info
		want bool
	}{
		"the server":         {&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup}}, true},
		"its name alone":     {&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.AllAuthenticated}}, false},
		"an administrator":   {&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}, false},
		"a name like it":     {&user.DefaultInfo{Name: user.APIServerUser + "x", Groups: []string{user.SystemPrivilegedGroup}}, false},
		"nobody in the dark": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if test.user != nil {
				ctx = genericapirequest.WithUser(ctx, test.user)
			}
			if got := FromLoopback(ctx); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// What an apply to one end point never changes is owned by nobody through it.
func TestResetFields(t *testing.T) {
	version := fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String())
	for name, test := range map[string]struct {
		strategy rest.ResetFieldsStrategy
		reset    []string
		kept     []string
	}{
		"bundle": {strategy: testStrategy(), reset: []string{"status"}, kept: []string{"spec"}},
		"status": {strategy: testStatusStrategy(), reset: []string{"spec", "metadata/labels", "metadata/annotations", "metadata/finalizers", "metadata/ownerReferences", "status/content", "status/history",
			"status/resolvedSource", "status/phase", "status/unpack", "status/refresh", "status/provisioner"}, kept: []string{"status/conditions", "status/lastHandledRetry"}},
	} {
		t.Run(name, func(t *testing.T) {
			set := test.strategy.GetResetFields()[version]
			path := func(s string) fieldpath.Path {
				var parts []any
				for p := range strings.SplitSeq(s, "/") {
					parts = append(parts, p)
				}
				return fieldpath.MakePathOrDie(parts...)
			}
			for _, p := range test.reset {
				if !set.Has(path(p)) {
					t.Errorf("%s is not reset", p)
				}
			}
			for _, p := range test.kept {
				if set.Has(path(p)) {
					t.Errorf("%s is reset", p)
				}
			}
		})
	}
}

func TestTable(t *testing.T) {
	b := stored(imageBundle("app"))
	b.Status.Content.Size, b.Status.Content.Files = 1536, 3
	conditions.SetProgress(&b.Status.Conditions, 1, metav1.ConditionTrue, "Unpacked", "all is well")
	upload := stored(uploadBundle("up"))
	upload.Status.ResolvedSource = &rukpak.ResolvedSource{Type: rukpak.SourceTypeUpload, Upload: &rukpak.ResolvedUpload{Username: "jane"}}
	fresh := imageBundle("fresh")
	table, err := table{}.ConvertToTable(t.Context(), &rukpak.BundleList{ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "more"}, Items: []rukpak.Bundle{*b, *upload, *fresh}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if table.ResourceVersion != "9" || table.Continue != "more" {
		t.Errorf("the list is %+v", table.ListMeta)
	}
	a := strings.Repeat("a", 12)
	want := []map[string]string{
		{"Name": "app", "Class": "plain", "Source": "Image", "Phase": "Unpacked", "Digest": a, "Size": "1.5KiB", "Files": "3", "Reference": pinned, "Reason": "Unpacked", "Message": "all is well"},
		{"Name": "up", "Source": "Upload", "Digest": a, "Size": "1B", "Reference": ""},
		{"Name": "fresh", "Phase": "", "Digest": "", "Size": "", "Age": "<unknown>", "Files": "", "Reference": pinned, "Reason": ""},
	}
	for i, cells := range want {
		for j, column := range table.ColumnDefinitions {
			if w, ok := cells[column.Name]; ok && table.Rows[i].Cells[j] != w {
				t.Errorf("row %d, column %s: got %v, want %q", i, column.Name, table.Rows[i].Cells[j], w)
			}
		}
		if len(table.Rows[i].Cells) != len(table.ColumnDefinitions) {
			t.Errorf("row %d has %d cells for %d columns", i, len(table.Rows[i].Cells), len(table.ColumnDefinitions))
		}
	}
	if _, err := row(&rukpak.ProvisionerClass{}); err == nil {
		t.Error("a class is printed as a bundle")
	}
}
