// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/apiserver"
	"rukpak.io/apiserver/test/integration/harness"
)

// losing is a control plane of its own whose server loses data.
type losing struct {
	*testing.T
	*harness.Cluster
	server  *harness.Server
	content []byte
	bundle  *v1alpha1.Bundle
}

// TestNothingIsCollectedWhileDataAreLost takes data away from a server, in several ways, and gives them back. While they are away the
// server refuses, and the garbage collector of Kubernetes, which asks it for owners all the time, deletes nothing.
func TestNothingIsCollectedWhileDataAreLost(t *testing.T) {
	t.Parallel()
	dir := must(harness.MakeDir())(t)
	l := &losing{T: t, Cluster: must(harness.StartCluster(t.Context(), shared.Programs, dir))(t), content: canonical(t, noise("data", 1, 1000))}
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	l.server = must(l.Deploy(t.Context()))(t)
	t.Cleanup(func() {
		if t.Failed() {
			log := l.server.Log()
			t.Log(log[max(0, len(log)-3000):])
		}
		if err := l.server.Kill(); err != nil {
			t.Error(err)
		}
	})
	own := l.Rukpak.RukpakV1alpha1().Bundles("default")
	l.bundle = must(own.Create(t.Context(), uploadBundle("app", "raw"), metav1.CreateOptions{}))(t)
	if err := put(t.Context(), l.Rukpak.RukpakV1alpha1().RESTClient(), contentPath("default", "app"), l.content); err != nil {
		t.Fatal(err)
	}
	l.dependent("kept", l.bundle.Name, l.bundle.UID)
	l.served()

	etcd, store := filepath.Join(l.server.Dir, "etcd"), filepath.Join(l.server.Dir, "content")
	for _, step := range []struct {
		name   string
		change func()
		repair func() // the server runs
		wants  []string
	}{
		{
			name:   "etcd-emptied",
			change: func() { l.move(etcd, etcd+".aside") },
			repair: func() { l.kill(); l.remove(etcd); l.move(etcd+".aside", etcd); l.start() },
			wants:  []string{"cluster EtcdUnmarked", "store/default EtcdUnmarked"},
		},
		{
			name:   "volume-emptied",
			change: func() { l.move(l.server.Dir, l.server.Dir+".aside") },
			repair: func() { l.kill(); l.remove(l.server.Dir); l.move(l.server.Dir+".aside", l.server.Dir); l.start() },
			wants:  []string{"cluster EtcdUnmarked"},
		},
		{
			name:   "store-emptied",
			change: func() { l.move(store, store+".aside") },
			repair: func() { l.move(store, store+".empty"); l.move(store+".aside", store) },
			wants:  []string{"store/default Unmarked"},
		},
		{
			name: "volume-older",
			change: func() {
				l.copy(l.server.Dir, l.server.Dir+".old")
				l.start()
				l.served()
				must(own.Create(t.Context(), uploadBundle("late", "raw"), metav1.CreateOptions{}))(t)
				// A start renews the marks, as a minute does.
				l.kill()
				l.start()
				l.kill()
				l.move(l.server.Dir, l.server.Dir+".aside")
				l.move(l.server.Dir+".old", l.server.Dir)
			},
			repair: func() { l.kill(); l.remove(l.server.Dir); l.move(l.server.Dir+".aside", l.server.Dir); l.start() },
			wants:  []string{"cluster EtcdOlder"},
		},
	} {
		l.kill()
		step.change()
		l.start()
		l.refused(step.wants...)
		// Its owner is not there, as no owner seems to be: it goes as soon as somebody says so.
		l.dependent("stray-"+step.name, "nobody-"+step.name, uuid.NewUUID())
		eventually(t, step.name+": the garbage collector asks for the owner", func() string {
			return l.asked("nobody-"+step.name, 503)
		})
		l.isThere("stray-" + step.name)
		l.isThere("kept")
		step.repair()
		l.served()
		eventually(t, step.name+": what has no owner is collected", func() string {
			_, err := l.Kube.CoreV1().ConfigMaps("default").Get(t.Context(), "stray-"+step.name, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return "it is there"
			}
			return ""
		})
		l.isThere("kept")
	}
	if _, err := own.Get(t.Context(), "late", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	l.accepted(etcd)
}

// accepted loses etcd for good, and accepts it.
func (l *losing) accepted(etcd string) {
	l.Helper()
	l.kill()
	l.remove(etcd)
	l.start()
	message := l.refused("cluster EtcdUnmarked", "store/default EtcdUnmarked")
	token := regexp.MustCompile("--accept-data-loss=[0-9a-f]+").FindString(message)
	l.kill()
	l.server.More = []string{token}
	l.start()
	eventually(l.T, "the API is served, without bundles", func() string {
		list, err := l.Rukpak.RukpakV1alpha1().Bundles("").List(l.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			l.Errorf("there is %s", list.Items[0].Name)
		}
		return problem(err)
	})
	eventually(l.T, "the default classes are made again", func() string {
		_, err := l.Rukpak.RukpakV1alpha1().ProvisionerClasses().Get(l.Context(), "raw", metav1.GetOptions{})
		return problem(err)
	})
	eventually(l.T, "what the lost bundle owned is collected", func() string {
		_, err := l.Kube.CoreV1().ConfigMaps("default").Get(l.Context(), "kept", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return "it is there"
		}
		return ""
	})
	eventually(l.T, "the collector says that it waits", func() string { return missing(l.server.Log(), "a loss of data was accepted lately") })
	if l.blobs() == 0 {
		l.Error("the content is gone at once")
	}
}

func (l *losing) kill() {
	l.Helper()
	if err := l.server.Kill(); err != nil {
		l.Fatal(err)
	}
}

func (l *losing) start() {
	l.Helper()
	if err := l.server.Start(l.Context()); err != nil {
		l.Fatal(err)
	}
}

func (l *losing) move(from, to string) {
	l.Helper()
	if err := os.Rename(from, to); err != nil {
		l.Fatal(err)
	}
}

func (l *losing) remove(path string) {
	l.Helper()
	if err := os.RemoveAll(path); err != nil {
		l.Fatal(err)
	}
}

func (l *losing) copy(from, to string) {
	l.Helper()
	// A socket cannot be copied, and is made again.
	if err := os.Remove(filepath.Join(from, "etcd", "etcd.sock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		l.Fatal(err)
	}
}

// dependent makes a ConfigMap with an owner.
func (l *losing) dependent(name, owner string, uid types.UID) {
	l.Helper()
	must(l.Kube.CoreV1().ConfigMaps("default").Create(l.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:            name,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Bundle", Name: owner, UID: uid}},
	}}, metav1.CreateOptions{}))(l.T)
}

func (l *losing) isThere(name string) {
	l.Helper()
	object, err := l.Kube.CoreV1().ConfigMaps("default").Get(l.Context(), name, metav1.GetOptions{})
	if err != nil || object.DeletionTimestamp != nil {
		l.Fatalf("ConfigMap %s: %v, deleted at %v", name, err, object.DeletionTimestamp)
	}
}

// asked looks in the audit log for the garbage collector's question, and the answer.
func (l *losing) asked(owner string, code int) string {
	l.Helper()
	raw := must(os.ReadFile(filepath.Join(l.Dir, "audit.log")))(l.T)
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, "generic-garbage-collector") && strings.Contains(line, "\"name\":\""+owner+"\"") {
			if !strings.Contains(line, "\"code\":"+strings.TrimSpace(encode(l.T, code))) {
				l.Fatalf("it is answered otherwise: %s", line)
			}
			return ""
		}
	}
	return "no line in the audit log"
}

func (l *losing) blobs() int {
	l.Helper()
	return len(must(filepath.Glob(filepath.Join(l.server.Dir, "content", "blobs", "sha256", "*", "*")))(l.T))
}

// served waits until the content of the bundle is served, through kube-apiserver.
func (l *losing) served() {
	l.Helper()
	eventually(l.T, "content is served", func() string {
		got, err := l.Rukpak.RukpakV1alpha1().RESTClient().Get().AbsPath(contentPath("default", "app")).MaxRetries(0).Do(l.Context()).Raw()
		if err == nil && !bytes.Equal(got, l.content) {
			l.Fatalf("other content is served: %s", digestOf(got))
		}
		return problem(err)
	})
	if err := l.health("/healthz"); err != nil {
		l.Error(err)
	}
}

func (l *losing) health(path string) error { return l.server.Probe(l.Context(), path) }

// refused expects that the server refuses whatever is about objects, says why, and goes on with all else. It returns the message.
func (l *losing) refused(wants ...string) string {
	l.Helper()
	api := l.Rukpak.RukpakV1alpha1().RESTClient()
	var message string
	for _, path := range []string{bundlePath("default", "app"), bundlePath("default"), contentPath("default", "app"), "/apis/rukpak.io/v1alpha1/provisionerclasses"} {
		var status apierrors.APIStatus
		eventually(l.T, path+" is answered by the server", func() string {
			err := api.Get().AbsPath(path).MaxRetries(0).Do(l.Context()).Error()
			if !errors.As(err, &status) {
				return "answered with " + problem(err)
			}
			// kube-apiserver has words of its own until it has noticed that the server is back.
			if d := status.Status().Details; d == nil || len(d.Causes) == 0 || d.Causes[0].Type != apiserver.CauseInstanceMismatch {
				return "not a refusal: " + problem(err)
			}
			return ""
		})
		s := status.Status()
		var got []string
		for _, cause := range s.Details.Causes {
			reason, _, _ := strings.Cut(cause.Message, ":")
			got = append(got, cause.Field+" "+reason)
		}
		if s.Code != 503 || s.Details.RetryAfterSeconds == 0 || !slices.Equal(got, wants) {
			l.Fatalf("%s is answered with %d, %v: %s", path, s.Code, got, s.Message)
		}
		message = s.Message
	}
	list := must(l.Kube.Discovery().ServerResourcesForGroupVersion(v1alpha1.SchemeGroupVersion.String()))(l.T)
	if len(list.APIResources) == 0 {
		l.Error("discovery names no resource")
	}
	for path, healthy := range map[string]bool{"/livez": true, "/readyz": true, "/healthz": false, "/healthz/instance": false} {
		if err := l.health(path); (err == nil) != healthy {
			l.Errorf("%s: %v", path, err)
		}
	}
	if l.blobs() != 1 && slices.Contains(wants, "store/default EtcdUnmarked") {
		l.Errorf("the store has %d contents", l.blobs())
	}
	return message
}
