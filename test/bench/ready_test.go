// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// readyFigures are the times from the creation of a bundle to Ready, against those of a pod that mounts the same
// image to Succeeded.
func (s *scope) readyFigures() []figure {
	s.Helper()
	digest := s.push("manifests", v1.Config{}, manifests()...)
	repository, _, _ := strings.Cut(digest, "@")
	tag, program := repository+":1", s.serverImage()
	var byDigest, byTag, bare []float64
	for round := -1; round < rounds(s.T, podRounds); round++ {
		sides := []func(){
			func() { s.keep(&byDigest, round, s.bundleReady(fmt.Sprintf("digest-%d", round+1), digest)) },
			func() { s.keep(&bare, round, s.podSucceeded(fmt.Sprintf("bare-%d", round+1), program, digest)) },
			func() { s.keep(&byTag, round, s.bundleReady(fmt.Sprintf("tag-%d", round+1), tag)) },
		}
		for i := range sides {
			sides[(i+round+len(sides))%len(sides)]() // each is first, second and last equally often
		}
	}
	const than = "bare pod with the same image volume, to Succeeded"
	return []figure{
		compared("Bundle to Ready, image present, by digest", "s", byDigest, than, bare, "≤ 0.6"),
		compared("Bundle to Ready, image present, by tag", "s", byTag, than, bare, ""),
	}
}

// keep keeps a measurement, unless it is that of the round for warming up.
func (s *scope) keep(to *[]float64, round int, took time.Duration) {
	if round >= 0 {
		*to = append(*to, took.Seconds())
	}
}

// manifests are 20 files of 2 KiB.
func manifests() []file {
	var files []file
	for i := range 20 {
		text := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: bench-%02d\ndata:\n  text: %s\n", i, strings.Repeat("bench ", 330))
		files = append(files, file{fmt.Sprintf("manifests/%02d.yaml", i), 0o644, []byte(text)})
	}
	return files
}

// serverImage is the image that the server runs from, which has the unpack program too.
func (s *scope) serverImage() string {
	s.Helper()
	set, err := s.kube.AppsV1().StatefulSets(serverNamespace).Get(s.Context(), serverName, metav1.GetOptions{})
	s.must(err)
	return set.Spec.Template.Spec.Containers[0].Image
}

// bundleReady makes a bundle of an image and returns how long it took to be Ready.
func (s *scope) bundleReady(name, reference string) time.Duration {
	s.Helper()
	bundles := s.rukpak.RukpakV1alpha1().Bundles(s.ns)
	took := s.until(name, bundles.Watch, func() error {
		_, err := bundles.Create(s.Context(), &v1alpha1.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.BundleSpec{ProvisionerClassName: s.class, Source: v1alpha1.BundleSource{
				Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ImageSource{Reference: reference},
			}},
		}, metav1.CreateOptions{})
		return err
	}, func(object runtime.Object) (bool, error) {
		b, ok := object.(*v1alpha1.Bundle)
		if !ok {
			return false, fmt.Errorf("watched a %T", object)
		}
		if u := b.Status.Unpack; u != nil && u.Failures > 0 {
			return false, fmt.Errorf("an attempt failed: %s: %s", u.Reason, u.Message)
		}
		return meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionReady), nil
	})
	s.noPods()
	return took
}

// podSucceeded makes a pod that mounts an image and ends at once, and returns how long it took to be Succeeded. It
// has no more parts than that takes.
func (s *scope) podSucceeded(name, program, reference string) time.Duration {
	s.Helper()
	pods := s.kube.CoreV1().Pods(s.ns)
	took := s.until(name, pods.Watch, func() error {
		_, err := pods.Create(s.Context(), barePod(name, program, reference), metav1.CreateOptions{})
		return err
	}, func(object runtime.Object) (bool, error) {
		p, ok := object.(*corev1.Pod)
		if !ok {
			return false, fmt.Errorf("watched a %T", object)
		}
		if p.Status.Phase == corev1.PodFailed {
			return false, fmt.Errorf("it failed: %s", p.Status.Message)
		}
		return p.Status.Phase == corev1.PodSucceeded, nil
	})
	s.must(pods.Delete(s.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	s.noPods()
	return took
}

// barePod mounts an image and ends at once.
func barePod(name, program, reference string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:           ptr.To(false),
			Volumes: []corev1.Volume{{Name: "content", VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: reference, PullPolicy: corev1.PullAlways},
			}}},
			Containers: []corev1.Container{{
				Name: "exit", Image: program, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{contract.Program, contract.CommandExit},
				VolumeMounts: []corev1.VolumeMount{{Name: "content", MountPath: "/content"}},
			}},
		},
	}
}

// until creates an object, and watches it from before that until it is done.
func (s *scope) until(name string, begin func(context.Context, metav1.ListOptions) (watch.Interface, error), create func() error, done func(runtime.Object) (bool, error)) time.Duration {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	events, err := begin(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
	s.must(err)
	defer events.Stop()
	start := time.Now()
	s.must(create())
	for event := range events.ResultChan() {
		is, err := done(event.Object)
		if err != nil {
			s.Fatalf("%s: %v", name, err)
		}
		if is {
			return time.Since(start)
		}
	}
	s.Fatalf("%s: the watch ended before it was done (%v)", name, ctx.Err())
	return 0
}

// noPods waits until no pod of a measurement is left, so that its end is not measured with the next one.
func (s *scope) noPods() {
	s.Helper()
	s.eventually("the pods of the measurement are gone", func() error {
		list, err := s.kube.CoreV1().Pods(s.ns).List(s.Context(), metav1.ListOptions{LabelSelector: "app!=" + bareName})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("pod %s is there", list.Items[0].Name)
		}
		return err
	})
}
