// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/install"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/etcd"
)

// newTestStorage returns the storage over a real etcd and a real watch cache, and the bundles that it
// said were deleted.
func newTestStorage(t *testing.T) (*Storage, <-chan *rukpak.Bundle) {
	t.Helper()
	server, err := etcd.Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	install.Install(scheme)
	config := storagebackend.NewDefaultConfig("/registry/test", serializer.NewCodecFactory(scheme).LegacyCodec(v1alpha1.SchemeGroupVersion))
	config.Transport.ServerList = []string{server.Endpoint()}
	deleted := make(chan *rukpak.Bundle, 10)
	s, err := NewStorage(scheme, generic.RESTOptions{
		StorageConfig: config.ForResource(rukpak.Resource("bundles")), Decorator: genericregistry.StorageWithCacher(),
		ResourcePrefix: "bundles", DeleteCollectionWorkers: 1, EnableGarbageCollection: true,
	}, nil, func(b *rukpak.Bundle) { deleted <- b })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Bundle.DestroyFunc)
	return s, deleted
}

// asClient is the context of a request by somebody; by the server itself if it is of that name.
func asClient(ctx context.Context, name, subresource string) context.Context {
	ctx = genericapirequest.WithNamespace(ctx, "team")
	u := &user.DefaultInfo{Name: name}
	if name == user.APIServerUser {
		u.Groups = []string{user.SystemPrivilegedGroup}
	}
	ctx = genericapirequest.WithUser(ctx, u)
	return genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, APIGroup: rukpak.GroupName, APIVersion: "v1alpha1", Resource: "bundles", Subresource: subresource, Namespace: "team",
	})
}

func create(t *testing.T, s *Storage, b *rukpak.Bundle) *rukpak.Bundle {
	t.Helper()
	made, err := asBundle(s.Bundle.Create(asClient(t.Context(), "jane", ""), b, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func commitContent(t *testing.T, s *Storage, name, digest string) *rukpak.Bundle {
	t.Helper()
	b, err := s.Commit(asClient(t.Context(), "jane", "content"), name, func(b *rukpak.Bundle) error {
		setContent(b, digest)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestStorage(t *testing.T) {
	s, deleted := newTestStorage(t)
	for name, test := range map[string]func(*testing.T, *Storage, <-chan *rukpak.Bundle){
		"a commit outside of any request":           testCommitOutsideRequest,
		"a commit whose change fails":               testCommitFails,
		"a commit never makes a bundle":             testCommitMissing,
		"the status is what may be written of it":   testStatusUpdate,
		"a watch shows where content is read":       testWatchURI,
		"reads show where content is read":          testReadURI,
		"bundles are selected by their fields":      testSelect,
		"a deletion is told once, with the content": func(t *testing.T, s *Storage, d <-chan *rukpak.Bundle) { testDeleted(t, s, d) },
	} {
		t.Run(name, func(t *testing.T) { test(t, s, deleted) })
	}
}

// The reconciler of stored content works beside the requests, so its context has none.
func testCommitOutsideRequest(t *testing.T, s *Storage, _ <-chan *rukpak.Bundle) {
	create(t, s, imageBundle("outside"))
	b, err := s.Commit(genericapirequest.WithNamespace(t.Context(), "team"), "outside", func(b *rukpak.Bundle) error {
		conditions.SetContentAvailable(&b.Status.Conditions, b.Generation, false, v1alpha1.ReasonContentLost, "gone")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionContentAvailable); c == nil || c.Reason != v1alpha1.ReasonContentLost {
		t.Errorf("the condition is %+v", c)
	}
}

func testCommitFails(t *testing.T, s *Storage, _ <-chan *rukpak.Bundle) {
	before := create(t, s, imageBundle("fails"))
	want := errors.New("changed my mind")
	_, err := s.Commit(asClient(t.Context(), "jane", "content"), "fails", func(b *rukpak.Bundle) error {
		setContent(b, digestA)
		return want
	})
	if !errors.Is(err, want) {
		t.Errorf("got %v, want the error of the change", err)
	}
	after, err := s.Get(asClient(t.Context(), "jane", ""), "fails")
	if err != nil {
		t.Fatal(err)
	}
	if after.ResourceVersion != before.ResourceVersion || after.Status.Content != nil {
		t.Errorf("the bundle has changed: %+v", after.Status)
	}
}

func testCommitMissing(t *testing.T, s *Storage, _ <-chan *rukpak.Bundle) {
	_, err := s.Commit(asClient(t.Context(), "jane", "content"), "missing", func(*rukpak.Bundle) error {
		t.Error("the change was called")
		return nil
	})
	if !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want not found", err)
	}
}

func testStatusUpdate(t *testing.T, s *Storage, _ <-chan *rukpak.Bundle) {
	create(t, s, imageBundle("status"))
	commitContent(t, s, "status", digestA)
	forge := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		b := old.DeepCopyObject().(*rukpak.Bundle)
		setContent(b, digestB)
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: "Theirs", Status: metav1.ConditionTrue, Reason: "R"})
		return b, nil
	})
	b, err := func() (*rukpak.Bundle, error) {
		obj, _, err := s.Status.Update(asClient(t.Context(), "mallory", "status"), "status", forge, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{})
		return asBundle(obj, err)
	}()
	if err != nil {
		t.Fatal(err)
	}
	if b.Status.Content.Digest != digestA || !meta.IsStatusConditionTrue(b.Status.Conditions, "Theirs") {
		t.Errorf("the status has become %+v", b.Status)
	}
}

const uriOf = "/apis/rukpak.io/v1alpha1/namespaces/team/bundles/"

func testReadURI(t *testing.T, s *Storage, _ <-chan *rukpak.Bundle) {
	create(t, s, imageBundle("read"))
	commitContent(t, s, "read", digestA)
	commitContent(t, s, "read", digestB)
	b, err := s.Get(asClient(t.Context(), "jane", ""), "read")
	if err != nil {
		t.Fatal(err)
	}
	checkURIs(t, b)
	obj, err := s.Bundle.List(asClient(t.Context(), "jane", ""), &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "read")})
	if err != nil {
		t.Fatal(err)
	}
	for i := range obj.(*rukpak.BundleList).Items {
		checkURIs(t, &obj.(*rukpak.BundleList).Items[i])
	}
}

func checkURIs(t *testing.T, b *rukpak.Bundle) {
	t.Helper()
	if got, want := b.Status.Content.URI, uriOf+b.Name+"/content"; got != want {
		t.Errorf("content: got %q, want %q", got, want)
	}
	for _, h := range b.Status.History {
		if want := uriOf + b.Name + "/content?digest=" + h.Digest; h.URI != want {
			t.Errorf("history: got %q, want %q", h.URI, want)
		}
	}
	if len(b.Status.History) != 1 {
		t.Errorf("%d contents in history, want 1", len(b.Status.History))
	}
}

func testWatchURI(t *testing.T, s *Storage, _ <-chan *rukpak.Bundle) {
	b := create(t, s, imageBundle("watched"))
	var w watch.Interface
	// The watch cache begins a while after the storage.
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (_ bool, err error) {
		w, err = s.Bundle.Watch(asClient(t.Context(), "jane", ""), &metainternalversion.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", "watched"), ResourceVersion: b.ResourceVersion, Watch: true,
		})
		if apierrors.IsTooManyRequests(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	commitContent(t, s, "watched", digestA)
	commitContent(t, s, "watched", digestB)
	for {
		select {
		case e := <-w.ResultChan():
			if e.Type != watch.Modified {
				t.Fatalf("the watch sent %s: %+v", e.Type, e.Object)
			}
			obj := e.Object
			if c, ok := obj.(runtime.CacheableObject); ok {
				obj = c.GetObject()
			}
			if seen := obj.(*rukpak.Bundle); seen.Status.Content != nil && seen.Status.Content.Digest == digestB {
				checkURIs(t, seen)
				return
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the watch does not show the commit")
		}
	}
}

func testSelect(t *testing.T, s *Storage, _ <-chan *rukpak.Bundle) {
	image := imageBundle("select-image")
	image.Spec.ProvisionerClassName = "selected"
	create(t, s, image)
	upload := uploadBundle("select-upload")
	upload.Spec.ProvisionerClassName = "selected"
	create(t, s, upload)
	commitContent(t, s, "select-upload", digestA)
	for selector, want := range map[string]string{
		"spec.provisionerClassName=selected,spec.source.type=Image":  "select-image",
		"spec.provisionerClassName=selected,spec.source.type=Upload": "select-upload",
		"spec.provisionerClassName=selected,status.phase=Unpacked":   "select-upload",
		"spec.provisionerClassName=selected,status.phase=Pending":    "select-image",
		"spec.provisionerClassName=selected,metadata.namespace=team": "select-image select-upload",
		"spec.provisionerClassName=selected,status.phase=Failing":    "",
	} {
		t.Run(selector, func(t *testing.T) {
			obj, err := s.Bundle.List(asClient(t.Context(), "jane", ""), &metainternalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie(selector)})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, b := range obj.(*rukpak.BundleList).Items {
				got = append(got, b.Name)
			}
			if strings.Join(got, " ") != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func testDeleted(t *testing.T, s *Storage, deleted <-chan *rukpak.Bundle) {
	create(t, s, imageBundle("deleted"))
	commitContent(t, s, "deleted", digestA)
	dry := &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	if _, _, err := s.Bundle.Delete(asClient(t.Context(), "jane", ""), "deleted", rest.ValidateAllObjectFunc, dry); err != nil {
		t.Fatal(err)
	}
	if len(deleted) > 0 {
		t.Fatal("a dry run was told as a deletion")
	}
	if _, _, err := s.Bundle.Delete(asClient(t.Context(), "jane", ""), "deleted", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case b := <-deleted:
		if b.Name != "deleted" || b.Status.Content == nil || b.Status.Content.Digest != digestA {
			t.Errorf("got %s with content %+v", b.Name, b.Status.Content)
		}
	default:
		t.Error("the deletion was not told")
	}
	if len(deleted) > 0 {
		t.Errorf("the deletion was told %d times more", len(deleted))
	}
}
