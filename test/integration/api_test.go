// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

func TestDiscovery(t *testing.T) {
	u := newUser(t, newNamespace(t))
	for _, w := range bothWays(t) {
		r := w.do(t, http.MethodGet, "/apis", u.token, nil, "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		r.expect(t, http.StatusOK, `"rukpak.io"`, `"bundles"`, `"provisionerclasses"`, `"content"`)
		if got := r.header.Get("Content-Type"); !strings.Contains(got, "APIGroupDiscoveryList") {
			t.Errorf("%s: discovery is not aggregated: %s", w.name, got)
		}
		w.do(t, http.MethodGet, "/apis", u.token, nil, "Accept", "application/json").expect(t, http.StatusOK, `"rukpak.io/v1alpha1"`)
		list := w.do(t, http.MethodGet, "/apis/rukpak.io/v1alpha1", u.token, nil).expect(t, http.StatusOK)
		var resources metav1.APIResourceList
		if err := json.Unmarshal(list.body, &resources); err != nil {
			t.Fatal(err)
		}
		found := map[string]metav1.APIResource{}
		for _, r := range resources.APIResources {
			found[r.Name] = r
		}
		for name, verbs := range map[string][]string{
			"bundles":            {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
			"bundles/status":     {"get", "patch", "update"},
			"bundles/content":    {"get", "update"},
			"bundles/uploads":    {"create", "delete", "get", "patch"},
			"provisionerclasses": {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
		} {
			if got := found[name].Verbs; !slices.Equal(slices.Sorted(slices.Values(got)), verbs) {
				t.Errorf("%s: %s has the verbs %v, want %v", w.name, name, got, verbs)
			}
		}
		if b := found["bundles"]; !b.Namespaced || b.SingularName != "bundle" || !slices.Contains(b.ShortNames, "bun") || !slices.Contains(b.Categories, "rukpak") {
			t.Errorf("%s: bundles are %+v", w.name, b)
		}
		if found["provisionerclasses"].Namespaced {
			t.Errorf("%s: classes are namespaced", w.name)
		}
	}
	for _, line := range []string{"bundles", "provisionerclasses"} {
		if problem := missing(mustKubectl(t, "", "api-resources", "--api-group=rukpak.io"), line); problem != "" {
			t.Error(problem)
		}
	}
}

func TestOpenAPI(t *testing.T) {
	u := newUser(t, newNamespace(t))
	for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/rukpak.io/v1alpha1"} {
		for _, w := range bothWays(t) {
			// kube-apiserver collects these documents on its own time.
			eventually(t, w.name+" "+path, func() string {
				r := w.do(t, http.MethodGet, path, u.token, nil, "Accept", "application/json")
				if r.code != http.StatusOK {
					return short(r.body)
				}
				for _, want := range []string{"/apis/rukpak.io/v1alpha1/namespaces/{namespace}/bundles/{name}/content", "bundles/{name}/content/{path}", "provisionerClassName"} {
					if !bytes.Contains(r.body, []byte(want)) {
						return "no " + want
					}
				}
				return ""
			})
		}
	}
	for field, want := range map[string]string{
		"bundle.spec.source":                 "exactly the member that type names",
		"bundle.spec.source.image.reference": "registry/repository",
		"bundle.status.content":              "uncompressedDigest",
		"provisionerclass.limits":            "compressedBytes",
	} {
		// The list of the documents, which kubectl asks first, is collected after them.
		eventually(t, "kubectl explain "+field, func() string {
			stdout, stderr, err := kubectl(t, "", "explain", field)
			if err != nil {
				return stderr
			}
			return missing(strings.Join(strings.Fields(stdout), " "), want)
		})
	}
}

func TestTable(t *testing.T) {
	s := store(t, "raw", noise("data", 1, 3000))
	digest := strings.TrimPrefix(digestOf(s.content), "sha256:")[:12]
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"get", "bun"}, []string{"NAME", "CLASS", "SOURCE", "PHASE", "DIGEST", "SIZE", "AGE", "app", "raw", "Upload", "Unpacked", digest, "3.1KiB"}},
		{[]string{"get", "bundles", "-o", "wide"}, []string{"FILES", "REFERENCE", "REASON", "MESSAGE", digest}},
		{[]string{"get", "rukpak"}, []string{"app", digest}},
		{[]string{"get", "bundle", s.name, "-o", "name"}, []string{"bundle.rukpak.io/app"}},
		{[]string{"describe", "bundle", s.name}, []string{"Uncompressed Digest", digest}},
		{[]string{"get", "provisionerclasses", "-o", "wide"}, []string{"NAME", "PROVISIONER", "plain", "rukpak.io/raw"}},
	} {
		out := mustKubectl(t, "", append(test.args, "-n", s.namespace)...)
		for _, want := range test.want {
			if problem := missing(out, want); problem != "" {
				t.Errorf("kubectl %s: %s", strings.Join(test.args, " "), problem)
			}
		}
	}
}

func TestFieldSelectors(t *testing.T) {
	s := store(t, "raw", noise("data", 1, 10))
	create(t, s.namespace, uploadBundle("waiting", "plain"))
	image := imageBundle("image", "raw")
	image.Spec.Suspend = true
	create(t, s.namespace, image)
	for selector, want := range map[string][]string{
		"spec.provisionerClassName=raw":                         {"app", "image"},
		"spec.provisionerClassName!=raw":                        {"waiting"},
		"spec.source.type=Image":                                {"image"},
		"status.phase=Unpacked":                                 {"app"},
		"status.phase=Pending,spec.source.type=Upload":          {"waiting"},
		"metadata.name=image":                                   {"image"},
		"metadata.namespace=" + s.namespace + ",status.phase=X": {},
	} {
		eventually(t, selector, func() string {
			list := must(bundles(s.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: selector}))(t)
			got := []string{}
			for _, b := range list.Items {
				got = append(got, b.Name)
			}
			if !slices.Equal(got, want) {
				return strings.Join(got, ", ")
			}
			return ""
		})
	}
	for _, selector := range []string{"spec.suspend=true", "status.content.digest=a"} {
		_, err := bundles(s.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: selector})
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "spec.provisionerClassName") {
			t.Errorf("%s: error is %v; want one that says what can be selected", selector, err)
		}
	}
}

func TestWatch(t *testing.T) {
	namespace := newNamespace(t)
	u := newUser(t, namespace, rule("bundles/content", "update"))
	list := must(bundles(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := must(bundles(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: "metadata.name=app"}))(t)
	defer w.Stop()
	var seen []string
	next := func(kind watch.EventType, what string, matches func(*v1alpha1.Bundle) bool) {
		t.Helper()
		for event := range w.ResultChan() {
			b, ok := event.Object.(*v1alpha1.Bundle)
			if !ok {
				t.Fatalf("event is %+v", event)
			}
			if event.Type == kind && matches(b) {
				return
			}
			seen = append(seen, fmt.Sprintf("%s %s", event.Type, encode(t, b)))
		}
		t.Fatalf("watch ended before %s; it saw %q", what, seen)
	}
	create(t, namespace, uploadBundle("unseen", "raw"))
	create(t, namespace, uploadBundle("app", "raw"))
	next(watch.Added, "creation", func(b *v1alpha1.Bundle) bool { return b.Name == "app" && b.Status.Content == nil })
	direct(t).do(t, http.MethodPut, contentPath(namespace, "app"), u.token, bytes.NewReader(canonical(t, noise("a", 1, 1)))).expect(t, http.StatusCreated)
	next(watch.Modified, "content", func(b *v1alpha1.Bundle) bool {
		return b.Status.Phase == v1alpha1.BundleUnpacked && b.Status.Content != nil && b.Status.Content.URI != ""
	})
	if err := bundles(namespace).Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	next(watch.Deleted, "deletion", func(b *v1alpha1.Bundle) bool { return b.Name == "app" })
	if out := mustKubectl(t, "", "get", "bundles", "-n", namespace, "-w", "--output-watch-events", "--request-timeout=1s"); !strings.Contains(out, "ADDED") || !strings.Contains(out, "unseen") {
		t.Errorf("kubectl get -w prints %s", out)
	}
}

func TestListsComeInParts(t *testing.T) {
	namespace := newNamespace(t)
	want := sets.New[string]()
	for range 5 {
		b := uploadBundle("", "raw")
		b.GenerateName = "made-"
		name := create(t, namespace, b).Name
		if !strings.HasPrefix(name, "made-") || len(name) <= len("made-") {
			t.Fatalf("generated name is %q", name)
		}
		want.Insert(name)
	}
	got, options, parts := sets.New[string](), metav1.ListOptions{Limit: 2}, 0
	for {
		list := must(bundles(namespace).List(t.Context(), options))(t)
		if parts++; len(list.Items) > 2 {
			t.Fatalf("part has %d bundles", len(list.Items))
		}
		if parts == 1 && ptr.Deref(list.RemainingItemCount, 0) != 3 {
			t.Errorf("remaining items are %v, want 3", list.RemainingItemCount)
		}
		for _, b := range list.Items {
			got.Insert(b.Name)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	if parts != 3 || !got.Equal(want) {
		t.Errorf("%d parts hold %v, want %v in 3", parts, got, want)
	}
	if _, err := bundles(namespace).List(t.Context(), metav1.ListOptions{Limit: 2, Continue: "nonsense"}); !apierrors.IsBadRequest(err) {
		t.Errorf("error of a wrong continue token is %v", err)
	}
	if err := bundles(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "status.phase=Pending"}); err != nil {
		t.Fatal(err)
	}
	if list := must(bundles(namespace).List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) != 0 {
		t.Errorf("%d bundles outlive the deletion of all", len(list.Items))
	}
}

func TestServerSideApply(t *testing.T) {
	namespace := newNamespace(t)
	manifest := func(reference string) string {
		return encode(t, map[string]any{
			"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "Bundle", "metadata": map[string]any{"name": "app", "namespace": namespace},
			"spec": map[string]any{"provisionerClassName": "raw", "suspend": true, "source": map[string]any{"type": "Image", "image": map[string]any{"reference": reference}}},
		})
	}
	apply := func(manager, reference string, args ...string) (string, error) {
		_, stderr, err := kubectl(t, manifest(reference), append([]string{"apply", "--server-side", "--field-manager=" + manager, "-f", "-"}, args...)...)
		return stderr, err
	}
	if out, err := apply("one", imageReference); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := apply("two", imageReference); err != nil {
		t.Errorf("two managers that want the same: %v: %s", err, out)
	}
	out, err := apply("two", "registry.invalid/other:v1")
	if err == nil || !strings.Contains(out, "conflict") || !strings.Contains(out, ".spec.source.image.reference") || !strings.Contains(out, `"one"`) {
		t.Errorf("a conflict is answered with %v: %s", err, out)
	}
	if out, err = apply("two", "registry.invalid/other:v1", "--force-conflicts"); err != nil || !strings.Contains(out, "Warning") || !strings.Contains(out, "no digest") {
		t.Errorf("a tag is answered with %v: %s; want a warning", err, out)
	}
	b := get(t, namespace, "app")
	if b.Spec.Source.Image.Reference != "registry.invalid/other:v1" || b.Generation != 2 {
		t.Errorf("after the apply the bundle is %s", encode(t, b))
	}
	if len(b.ManagedFields) < 2 {
		t.Errorf("managed fields are %v", b.ManagedFields)
	}
}

func TestPatches(t *testing.T) {
	namespace := newNamespace(t)
	b := imageBundle("app", "raw")
	b.Spec.Suspend = true
	created := create(t, namespace, b)
	for _, test := range []struct {
		kind       types.PatchType
		patch      string
		generation int64
		check      func(*v1alpha1.Bundle) bool
	}{
		{types.StrategicMergePatchType, `{"metadata":{"labels":{"a":"1"}}}`, 1, func(b *v1alpha1.Bundle) bool { return b.Labels["a"] == "1" }},
		{types.MergePatchType, `{"metadata":{"labels":{"b":"2"},"annotations":{"c":"3"}}}`, 1, func(b *v1alpha1.Bundle) bool { return b.Labels["a"] == "1" && b.Labels["b"] == "2" }},
		{types.JSONPatchType, `[{"op":"test","path":"/spec/suspend","value":true},{"op":"replace","path":"/spec/source/image/path","value":"/x"}]`, 2, func(b *v1alpha1.Bundle) bool { return b.Spec.Source.Image.Path == "/x" }},
		{types.StrategicMergePatchType, `{"spec":{"imagePullSecrets":[{"name":"one"}]}}`, 3, func(b *v1alpha1.Bundle) bool { return len(b.Spec.ImagePullSecrets) == 1 }},
		{types.MergePatchType, `{"spec":{"imagePullSecrets":null}}`, 4, func(b *v1alpha1.Bundle) bool { return len(b.Spec.ImagePullSecrets) == 0 }},
		{types.MergePatchType, `{"spec":{"suspend":true}}`, 4, func(b *v1alpha1.Bundle) bool { return b.Spec.Suspend }},
	} {
		got, err := bundles(namespace).Patch(t.Context(), "app", test.kind, []byte(test.patch), metav1.PatchOptions{})
		if err != nil {
			t.Fatalf("%s %s: %v", test.kind, test.patch, err)
		}
		if !test.check(got) || got.Generation != test.generation {
			t.Errorf("%s %s: generation %d, bundle %s", test.kind, test.patch, got.Generation, encode(t, got))
		}
	}
	if _, err := bundles(namespace).Patch(t.Context(), "app", types.JSONPatchType, []byte(`[{"op":"test","path":"/spec/suspend","value":false}]`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a test that fails is answered with %v", err)
	}
	stale := created.DeepCopy()
	stale.Labels = map[string]string{"stale": "yes"}
	if _, err := bundles(namespace).Update(t.Context(), stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an edit of an old version is answered with %v", err)
	}
	if err := bundles(namespace).Delete(t.Context(), "app", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
		t.Errorf("deletion of another bundle is answered with %v", err)
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	namespace := newNamespace(t)
	out := mustKubectl(t, encode(t, typedBundle(imageBundle("app", ""))), "create", "-n", namespace, "-f", "-", "--dry-run=server", "-o", "yaml")
	for _, want := range []string{"provisionerClassName: plain", "path: /", "pullPolicy: Always", "uid: ", "phase: Pending"} {
		if problem := missing(out, want); problem != "" {
			t.Error(problem)
		}
	}
	if _, err := bundles(namespace).Get(t.Context(), "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a dry run the bundle is there: %v", err)
	}
	s := store(t, "raw", noise("data", 1, 1))
	if err := bundles(s.namespace).Delete(t.Context(), s.name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	s.unchanged(t, direct(t))
}
