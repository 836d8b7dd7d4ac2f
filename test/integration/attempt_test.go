// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// finalizer keeps a pod, and with it its token, when it is deleted.
const finalizer = "integration.test/keep"

// attempt waits for the attempt at a generation of a bundle, and keeps its pod from going away: a
// kubelet would not be so quick either.
func attempt(t *testing.T, namespace, name string, generation int64) (*v1alpha1.UnpackStatus, string) {
	t.Helper()
	var u *v1alpha1.UnpackStatus
	eventually(t, "attempt with a pod", func() string {
		u = get(t, namespace, name).Status.Unpack
		if u == nil || u.Generation != generation || u.PodUID == "" {
			return fmt.Sprintf("%+v", u)
		}
		return ""
	})
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"finalizers":[%q]}}`, u.PodUID, finalizer)
	pod := must(shared.Kube.CoreV1().Pods(namespace).Patch(t.Context(), u.PodName, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	if pod.Spec.ServiceAccountName != "default" {
		t.Fatalf("unpack pod runs as %q", pod.Spec.ServiceAccountName)
	}
	return u, podToken(t, namespace, "default", u.PodName, u.PodUID)
}

func TestUnpackPodWritesContent(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, imageBundle("app", "plain"))
	create(t, namespace, imageBundle("other", "plain"))
	_, token := attempt(t, namespace, "app", 1)
	attempt(t, namespace, "other", 1)
	content := canonical(t, configMap("app"))
	put := func(w way, name string, body []byte) reply {
		t.Helper()
		return w.do(t, http.MethodPut, contentPath(namespace, name), token, bytes.NewReader(body))
	}

	// Good for one thing, at one place.
	put(aggregated(t), "app", content).expect(t, http.StatusUnauthorized)
	put(direct(t), "other", content).expect(t, http.StatusForbidden)
	for _, path := range []string{contentPath(namespace, "app"), strings.TrimSuffix(contentPath(namespace, "app"), "/content"), "/apis"} {
		if r := direct(t).do(t, http.MethodGet, path, token, nil); r.code != http.StatusForbidden && path != "/apis" {
			t.Errorf("the pod's token reads %s: %d", path, r.code)
		}
	}
	// A program of ours sends what is canonical.
	put(direct(t), "app", tarOf(t, configMap("app"))).expect(t, http.StatusBadRequest, "canonical")
	put(direct(t), "app", canonical(t, entry{name: "README", body: "x"})).expect(t, http.StatusUnprocessableEntity, "manifests/")

	put(direct(t), "app", content).expect(t, http.StatusCreated, digestOf(content))
	b := get(t, namespace, "app")
	if b.Status.Phase != v1alpha1.BundleUnpacked || b.Status.Content.Digest != digestOf(content) || b.Status.ResolvedSource.Image.Reference != imageReference {
		t.Errorf("status is %+v", b.Status)
	}
	// The answer may have been lost on the way.
	put(direct(t), "app", content).expect(t, http.StatusOK, digestOf(content))
	put(direct(t), "app", canonical(t, configMap("second-thoughts"))).expect(t, http.StatusConflict, "AttemptEnded")
	if got := get(t, namespace, "app"); got.ResourceVersion != b.ResourceVersion {
		t.Errorf("status was written again: %+v", got.Status)
	}
	eventually(t, "pod is deleted", func() string {
		pod, err := shared.Kube.CoreV1().Pods(namespace).Get(t.Context(), b.Status.Unpack.PodName, metav1.GetOptions{})
		if err == nil && pod.DeletionTimestamp == nil {
			return "it is there"
		}
		return ""
	})
}

func TestNobodyButTheUnpackPodWrites(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, imageBundle("app", "raw"))
	u, _ := attempt(t, namespace, "app", 1)
	original := must(shared.Kube.CoreV1().Pods(namespace).Get(t.Context(), u.PodName, metav1.GetOptions{}))(t)

	// One that looks the same in all that its maker can choose.
	twin := must(shared.Kube.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "twin-", Labels: original.Labels, Annotations: original.Annotations, OwnerReferences: original.OwnerReferences,
			Finalizers: []string{finalizer},
		},
		Spec: corev1.PodSpec{ServiceAccountName: "default", Containers: original.Spec.Containers, Volumes: original.Spec.Volumes},
	}, metav1.CreateOptions{}))(t)
	// One of the same name in another namespace.
	elsewhere := newNamespace(t)
	namesake := must(shared.Kube.CoreV1().Pods(elsewhere).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: u.PodName},
		Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "registry.invalid/c"}}},
	}, metav1.CreateOptions{}))(t)

	for name, token := range map[string]string{
		"another pod":                 podToken(t, namespace, "default", twin.Name, twin.UID),
		"a namesake":                  podToken(t, elsewhere, "default", namesake.Name, namesake.UID),
		"the service account alone":   newUser(t, namespace).token,
		"a user who may do all there": newUser(t, namespace, rule("*", "*")).token,
	} {
		t.Run(name, func(t *testing.T) {
			direct(t).do(t, http.MethodPut, contentPath(namespace, "app"), token, bytes.NewReader(canonical(t, noise("a", 1, 10)))).
				expect(t, http.StatusForbidden)
			if b := get(t, namespace, "app"); b.Status.Content != nil {
				t.Errorf("there is content: %+v", b.Status.Content)
			}
		})
	}
}

// changeImage makes a bundle ask for something else, which ends its attempt.
func changeImage(t *testing.T, namespace, name, path string) {
	t.Helper()
	must(bundles(namespace).Patch(t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"source":{"image":{"path":%q}}}}`, path), metav1.PatchOptions{}))(t)
}

func TestEarlierAttemptMayNotWrite(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, imageBundle("app", "raw"))
	first, token := attempt(t, namespace, "app", 1)
	changeImage(t, namespace, "app", "/other")
	second, newToken := attempt(t, namespace, "app", 2)
	if first.PodName == second.PodName || first.PodUID == second.PodUID || first.Nonce == second.Nonce {
		t.Fatalf("attempts share something: %+v and %+v", first, second)
	}
	content := canonical(t, noise("a", 1, 10))
	direct(t).do(t, http.MethodPut, contentPath(namespace, "app"), token, bytes.NewReader(content)).expect(t, http.StatusForbidden)
	direct(t).do(t, http.MethodPut, contentPath(namespace, "app"), newToken, bytes.NewReader(content)).expect(t, http.StatusCreated)
}

func TestUploadThatOutlivesItsAttemptChangesNothing(t *testing.T) {
	namespace := newNamespace(t)
	u := newUser(t, namespace, rule("bundles/content", "get"))
	create(t, namespace, imageBundle("app", "raw"))
	_, token := attempt(t, namespace, "app", 1)
	old := canonical(t, noise("old", 1, 1000))
	direct(t).do(t, http.MethodPut, contentPath(namespace, "app"), token, bytes.NewReader(old)).expect(t, http.StatusCreated)

	changeImage(t, namespace, "app", "/second")
	_, token = attempt(t, namespace, "app", 2)
	clean := noDebris(t)
	finish := startUpload(t, direct(t), contentPath(namespace, "app"), token, canonical(t, noise("second", 2, 1<<20)))
	changeImage(t, namespace, "app", "/third")
	attempt(t, namespace, "app", 3)
	status := finish().expect(t, http.StatusConflict).status(t)
	if status.Details == nil || len(status.Details.Causes) == 0 || status.Details.Causes[0].Type != "AttemptEnded" {
		t.Errorf("Status is %+v", status)
	}
	clean()
	b := get(t, namespace, "app")
	if b.Status.Content.Digest != digestOf(old) || b.Status.Content.Generation != 1 || b.Status.Phase == v1alpha1.BundleUnpacked {
		t.Errorf("status is %+v", b.Status)
	}
	got := direct(t).do(t, http.MethodGet, contentPath(namespace, "app"), u.token, nil).expect(t, http.StatusOK)
	if !bytes.Equal(got.body, old) {
		t.Error("the old content is not served any more")
	}
}

func TestUploadToABundleThatWasMadeAnewChangesNothing(t *testing.T) {
	s := store(t, "raw", noise("old", 1, 1000))
	finish := startUpload(t, direct(t), s.path(), s.user.token, tarOf(t, noise("new", 2, 1<<20)))
	if err := bundles(s.namespace).Delete(t.Context(), s.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	create(t, s.namespace, uploadBundle(s.name, "raw"))
	finish().expect(t, http.StatusConflict, "deleted")
	if b := get(t, s.namespace, s.name); b.Status.Content != nil {
		t.Errorf("the new bundle has content: %+v", b.Status.Content)
	}
}

// TestSquattedPodNameIsNotAdopted takes the name of the unpack pod at the last moment: in an admission webhook,
// while kube-apiserver works on the request of our server that makes the pod.
func TestSquattedPodNameIsNotAdopted(t *testing.T) {
	namespace := newNamespace(t)
	squatted := make(chan *corev1.Pod, 1)
	interceptPods(t, namespace, func(wanted *corev1.Pod) {
		squatter := wanted.DeepCopy()
		squatter.ObjectMeta = metav1.ObjectMeta{Name: wanted.Name, Labels: wanted.Labels, Annotations: map[string]string{}}
		for key, value := range wanted.Annotations {
			squatter.Annotations[key] = strings.ToUpper(value)
		}
		created, err := shared.Kube.CoreV1().Pods(namespace).Create(t.Context(), squatter, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("cannot squat: %v", err)
			return
		}
		squatted <- created
	})
	create(t, namespace, imageBundle("app", "raw"))
	squatter := <-squatted
	token := podToken(t, namespace, "default", squatter.Name, squatter.UID)
	content := canonical(t, noise("evil", 1, 10))

	second, good := secondAttempt(t, namespace, "app")
	if second.PodUID == squatter.UID || second.PodName == squatter.Name {
		t.Fatalf("the squatter was adopted: %+v", second)
	}
	direct(t).do(t, http.MethodPut, contentPath(namespace, "app"), token, bytes.NewReader(content)).expect(t, http.StatusForbidden)
	if pod, err := shared.Kube.CoreV1().Pods(namespace).Get(t.Context(), squatter.Name, metav1.GetOptions{}); err != nil || pod.UID != squatter.UID {
		if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		t.Error("somebody else's pod was deleted")
	}
	direct(t).do(t, http.MethodPut, contentPath(namespace, "app"), good, bytes.NewReader(content)).expect(t, http.StatusCreated)
}

// secondAttempt waits until the first attempt at a bundle was given up for another.
func secondAttempt(t *testing.T, namespace, name string) (*v1alpha1.UnpackStatus, string) {
	t.Helper()
	eventually(t, "second attempt", func() string {
		if u := get(t, namespace, name).Status.Unpack; u == nil || u.Attempt < 2 {
			return fmt.Sprintf("%+v", u)
		}
		return ""
	})
	return attempt(t, namespace, name, 1)
}

// TestQuotaThatWantsLimits: the bundle says what helps, and that helps. More room, or waiting, would not.
func TestQuotaThatWantsLimits(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	one := corev1.ResourceList{corev1.ResourceLimitsCPU: resource.MustParse("1")}
	quotas := shared.Kube.CoreV1().ResourceQuotas(namespace)
	must(quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "compute"}, Spec: corev1.ResourceQuotaSpec{Hard: one}}, metav1.CreateOptions{}))(t)
	eventually(t, "quota is counted", func() string {
		if q := must(quotas.Get(t.Context(), "compute", metav1.GetOptions{}))(t); len(q.Status.Used) == 0 {
			return encode(t, q.Status)
		}
		return ""
	})
	create(t, namespace, imageBundle("app", "raw"))
	eventually(t, "the bundle says what helps", func() string {
		c := meta.FindStatusCondition(get(t, namespace, "app").Status.Conditions, v1alpha1.ConditionUnpacked)
		if c == nil || c.Reason != v1alpha1.ReasonPodRefused || !strings.Contains(c.Message, "must specify limits.cpu for: unpack") || !strings.Contains(c.Message, "LimitRange") {
			return encode(t, c)
		}
		return ""
	})
	must(shared.Kube.CoreV1().LimitRanges(namespace).Create(t.Context(), &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "defaults"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")},
		}}},
	}, metav1.CreateOptions{}))(t)
	attempt(t, namespace, "app", 1)
}
