// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned/fake"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

const (
	testDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	testImage  = "registry.example/app@" + testDigest
)

var (
	testKey = []byte("0123456789abcdef0123456789abcdef")
	group   = v1alpha1.SchemeGroupVersion.WithResource("bundles")
)

// world is a reconciler between two API servers that are fakes, inside a synctest
// bubble, where time passes only while everybody waits. The fakes know nothing of
// resource versions, UIDs and the rules of the server; the reactors here add them.
type world struct {
	t       *testing.T
	bundles *fake.Clientset
	kube    *kubefake.Clientset
	config  Config

	mu           sync.Mutex
	version      int
	refusePod    error                   // the answer to the creation of pods
	beforeCreate func(pod *corev1.Pod)   // called when a pod is to be created
	statusWrites int                     // of bundles
	put          func(body []byte) error // the answer to content
	cancel       func()
	done         chan error
	term         *term
}

// inWorld runs a test in a bubble.
func inWorld(t *testing.T, objects []runtime.Object, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, objects...)
		defer w.stop()
		f(w)
	})
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	w := &world{t: t, bundles: fake.NewSimpleClientset(), kube: kubefake.NewSimpleClientset()}
	w.bundles.PrependReactor("*", "*", w.versions)
	w.bundles.PrependReactor("update", "bundles", w.updateStatus)
	w.kube.PrependReactor("create", "pods", w.createPod)
	w.kube.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{Major: "1", Minor: "37"}
	w.config = Config{
		Bundles: w.bundles, Kube: w.kube, Image: "rukpak-apiserver:test", Key: testKey,
		Workers: 2,
		Server: func() pod.Endpoint {
			return pod.Endpoint{URL: "https://10.96.0.7:443", ServerName: "s", CA: []byte("ca")}
		},
	}
	for _, o := range objects {
		w.create(o)
	}
	return w
}

// versions gives every object that is written a new resource version.
func (w *world) versions(action clienttesting.Action) (bool, runtime.Object, error) {
	var obj runtime.Object
	switch a := action.(type) {
	case clienttesting.CreateActionImpl:
		obj = a.GetObject()
	case clienttesting.UpdateActionImpl:
		obj = a.GetObject()
	default:
		return false, nil, nil
	}
	if o, ok := obj.(metav1.Object); ok {
		w.mu.Lock()
		w.version++
		o.SetResourceVersion(strconv.Itoa(w.version))
		w.mu.Unlock()
	}
	return false, nil, nil
}

// updateStatus does what the server does: it refuses what is not based on the latest
// version, keeps its own fields, and derives the phase.
func (w *world) updateStatus(action clienttesting.Action) (bool, runtime.Object, error) {
	update := action.(clienttesting.UpdateActionImpl)
	if update.GetSubresource() != "status" {
		return false, nil, nil
	}
	b := update.GetObject().(*v1alpha1.Bundle)
	stored, err := w.bundles.Tracker().Get(group, b.Namespace, b.Name)
	if err != nil {
		return true, nil, err
	}
	old := stored.(*v1alpha1.Bundle)
	if b.ResourceVersion != old.ResourceVersion {
		return true, nil, apierrors.NewConflict(group.GroupResource(), b.Name, fmt.Errorf("version %s is not %s", b.ResourceVersion, old.ResourceVersion))
	}
	w.mu.Lock()
	w.statusWrites++
	w.mu.Unlock()
	kept := old.DeepCopy()
	kept.Status = *b.Status.DeepCopy()
	kept.Status.Content, kept.Status.History, kept.Status.ResolvedSource = old.Status.Content, old.Status.History, old.Status.ResolvedSource
	return true, kept, w.store(kept)
}

// store writes a bundle as the server would.
func (w *world) store(b *v1alpha1.Bundle) error {
	b.Status.Phase = conditions.Phase(b.Status.Conditions)
	w.mu.Lock()
	w.version++
	b.ResourceVersion = strconv.Itoa(w.version)
	w.mu.Unlock()
	return w.bundles.Tracker().Update(group, b, b.Namespace)
}

func (w *world) createPod(action clienttesting.Action) (bool, runtime.Object, error) {
	p := action.(clienttesting.CreateActionImpl).GetObject().(*corev1.Pod)
	w.mu.Lock()
	before, refuse := w.beforeCreate, w.refusePod
	w.version++
	p.UID = types.UID("pod-" + strconv.Itoa(w.version))
	p.CreationTimestamp = metav1.Now()
	w.mu.Unlock()
	if before != nil {
		before(p)
	}
	if refuse != nil {
		return true, nil, refuse
	}
	return false, nil, nil
}

func (w *world) create(o runtime.Object) {
	w.t.Helper()
	var err error
	switch o := o.(type) {
	case *v1alpha1.Bundle:
		_, err = w.bundles.RukpakV1alpha1().Bundles(o.Namespace).Create(w.t.Context(), o, metav1.CreateOptions{})
	case *v1alpha1.ProvisionerClass:
		_, err = w.bundles.RukpakV1alpha1().ProvisionerClasses().Create(w.t.Context(), o, metav1.CreateOptions{})
	case *corev1.Pod:
		err = w.kube.Tracker().Add(o)
	default:
		err = fmt.Errorf("unexpected %T", o)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// start lets a reconciler run until stop.
func (w *world) start() {
	w.t.Helper()
	r, err := New(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	r.put = func(_ context.Context, namespace, name, nonce string, body io.Reader) error {
		data, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		w.mu.Lock()
		put := w.put
		w.mu.Unlock()
		if put != nil {
			if err := put(data); err != nil {
				return err
			}
		}
		if b := w.bundle(); b.Status.Unpack.Nonce != nonce || b.Status.Unpack.EndTime != nil || b.Namespace != namespace || b.Name != name {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "bundles/content"}, name, fmt.Errorf("another attempt"))
		}
		w.commit()
		return nil
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	done, term := make(chan error, 1), newTerm(r)
	w.cancel, w.done, w.term = cancel, done, term
	go func() { done <- term.run(ctx) }()
	// The wait for the first fill of the caches looks every tenth of a second.
	w.pass(200 * time.Millisecond)
}

// stop ends the reconciler as a shutdown does.
func (w *world) stop() {
	if w.cancel == nil {
		return
	}
	w.cancel()
	if err := <-w.done; err != nil {
		w.t.Errorf("Run: %v", err)
	}
	w.cancel = nil
}

// pass lets time go by. Nothing in a bubble takes any otherwise.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// bundle returns the bundle team-a/app as it is stored.
func (w *world) bundle() *v1alpha1.Bundle {
	w.t.Helper()
	obj, err := w.bundles.Tracker().Get(group, "team-a", "app")
	if err != nil {
		w.t.Fatal(err)
	}
	return obj.(*v1alpha1.Bundle).DeepCopy()
}

// edit changes the bundle as a client does: a change of the spec makes a new generation.
func (w *world) edit(change func(b *v1alpha1.Bundle)) {
	w.t.Helper()
	b := w.bundle()
	before := b.DeepCopy()
	change(b)
	if !equality.Semantic.DeepEqual(before.Spec, b.Spec) {
		b.Generation++
		conditions.Begin(&b.Status.Conditions, b.Generation)
	}
	if err := w.store(b); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// commit writes what the server writes when it has taken content.
func (w *world) commit() {
	w.t.Helper()
	b := w.bundle()
	b.Status.Content = &v1alpha1.ContentStatus{Digest: testDigest, Size: 1, Generation: b.Generation}
	b.Status.ResolvedSource = &v1alpha1.ResolvedSource{Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ResolvedImage{Reference: testImage}}
	conditions.SetProgress(&b.Status.Conditions, b.Generation, metav1.ConditionTrue, v1alpha1.ReasonUnpacked, "")
	conditions.SetContentAvailable(&b.Status.Conditions, b.Generation, true, v1alpha1.ReasonAvailable, "")
	if u := b.Status.Unpack; u != nil {
		u.EndTime, u.Failures, u.Reason, u.Message, u.NextAttemptTime = &metav1.Time{Time: time.Now()}, 0, "", "", nil
	}
	if err := w.store(b); err != nil {
		w.t.Fatal(err)
	}
}

// pods returns the pods that there are.
func (w *world) pods() []corev1.Pod {
	w.t.Helper()
	list, err := w.kube.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "team-a")
	if err != nil {
		w.t.Fatal(err)
	}
	return list.(*corev1.PodList).Items
}

// onlyPod returns the one pod there is.
func (w *world) onlyPod() *corev1.Pod {
	w.t.Helper()
	pods := w.pods()
	if len(pods) != 1 {
		w.t.Fatalf("%d pods, want 1; the bundle is %s", len(pods), describe(w.bundle()))
	}
	return &pods[0]
}

// podSays sets the status of the one pod, as the kubelet does.
func (w *world) podSays(status corev1.PodStatus) {
	w.t.Helper()
	p := w.onlyPod().DeepCopy()
	p.Status = status
	if len(status.ContainerStatuses) > 0 {
		p.Spec.NodeName = "node" // whose word it is
	}
	if err := w.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// remembered is how many attempts and looks the reconciler remembers something of.
func (w *world) remembered() int {
	w.term.notes.mu.Lock()
	defer w.term.notes.mu.Unlock()
	w.term.looks.mu.Lock()
	defer w.term.looks.mu.Unlock()
	return len(w.term.notes.byNonce) + len(w.term.looks.known)
}

func (w *world) setRefusal(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusePod = err
}

func (w *world) writes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.statusWrites
}

// expect checks the condition Unpacked, and its words.
func (w *world) expect(status metav1.ConditionStatus, reason string, words ...string) {
	w.t.Helper()
	b := w.bundle()
	for _, c := range b.Status.Conditions {
		if c.Type != v1alpha1.ConditionUnpacked {
			continue
		}
		if c.Status != status || c.Reason != reason || c.ObservedGeneration != b.Generation {
			w.t.Errorf("Unpacked is %s %s of generation %d, want %s %s of %d; message %q", c.Status, c.Reason, c.ObservedGeneration, status, reason, b.Generation, c.Message)
		}
		for _, word := range words {
			if !strings.Contains(c.Message, word) {
				w.t.Errorf("message %q does not say %q", c.Message, word)
			}
		}
		return
	}
	w.t.Errorf("no condition Unpacked: %s", describe(b))
}

func (w *world) stalled() bool {
	for _, c := range w.bundle().Status.Conditions {
		if c.Type == v1alpha1.ConditionStalled {
			return c.Status == metav1.ConditionTrue
		}
	}
	return false
}

func describe(b *v1alpha1.Bundle) string {
	return fmt.Sprintf("generation %d, %+v, unpack %+v", b.Generation, b.Status.Conditions, b.Status.Unpack)
}

func testBundle() *v1alpha1.Bundle {
	b := &v1alpha1.Bundle{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "app", UID: "bundle-uid", Generation: 1},
		Spec: v1alpha1.BundleSpec{
			ProvisionerClassName: "plain",
			Source:               v1alpha1.BundleSource{Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ImageSource{Reference: testImage}},
		},
	}
	v1alpha1.SetDefaults_Bundle(b)
	conditions.Begin(&b.Status.Conditions, 1)
	return b
}

func changedBundle(change func(*v1alpha1.Bundle)) *v1alpha1.Bundle {
	b := testBundle()
	change(b)
	return b
}

func testClass() *v1alpha1.ProvisionerClass {
	c := &v1alpha1.ProvisionerClass{
		ObjectMeta:  metav1.ObjectMeta{Name: "plain", UID: "class-uid"},
		Provisioner: v1alpha1.ProvisionerPlain,
		Unpack:      &v1alpha1.UnpackPolicy{BackoffLimit: ptr.To[int32](2)},
	}
	v1alpha1.SetDefaults_ProvisionerClass(c)
	return c
}

func changedClass(change func(*v1alpha1.ProvisionerClass)) *v1alpha1.ProvisionerClass {
	c := testClass()
	change(c)
	return c
}

func started(objects ...runtime.Object) []runtime.Object { return objects }

func waiting(reason, message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name: pod.ContainerUnpack, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
	}}}
}

func exited(code int32, message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: pod.ContainerUnpack, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message}},
	}}}
}
