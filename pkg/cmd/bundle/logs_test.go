// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// minted is when the pods of a test were made, each that many seconds later.
var minted = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func logging(name, uid, label, proof string, second int) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "team", UID: types.UID(uid), CreationTimestamp: metav1.NewTime(minted.Add(time.Duration(second) * time.Second)),
			Labels: map[string]string{v1alpha1.LabelBundleUID: label}, Annotations: map[string]string{v1alpha1.AnnotationAttempt: proof},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "unpack"}}},
	}
}

// The pod whose logs are printed is that of the attempt, wherever that is.
func TestLogsFindThePod(t *testing.T) {
	own, older := logging("app-own", "own", "uid", "1.2.nonce.mac", 2), logging("app-older", "older", "uid", "1.1.nonce.mac", 1)
	look, shared := logging("app-look", "look", "uid", "1.0.nonce.mac", 9), logging("bundles-1", "shared", "shared", "3.1.nonce.mac,1.2.nonce.mac", 3)
	foreign, bare := logging("bundles-1", "other", "shared", "", 3), logging("app-bare", "bare", "uid", "", 3)
	attempt := func(pod, uid string) *v1alpha1.UnpackStatus {
		return &v1alpha1.UnpackStatus{Attempt: 2, Generation: 1, PodName: pod, PodUID: types.UID(uid)}
	}
	for _, test := range []struct {
		name   string
		unpack *v1alpha1.UnpackStatus
		pods   []corev1.Pod
		deny   string
		want   string
	}{
		{"its own", attempt("app-own", "own"), []corev1.Pod{older, own}, "", "app-own"},
		{"a shared one", attempt("bundles-1", "shared"), []corev1.Pod{shared, older}, "", "bundles-1"},
		{"a shared one whose UID is not known yet", attempt("bundles-1", ""), []corev1.Pod{shared, look}, "", "bundles-1"},
		{"one of that name that is not it", attempt("bundles-1", "shared"), []corev1.Pod{foreign}, "", ""},
		{"a look beside it is newer", attempt("app-own", "own"), []corev1.Pod{own, look}, "", "app-own"},
		{"the last one, and a look", attempt("app-gone", "gone"), []corev1.Pod{older, own, look}, "", "app-own"},
		{"only a look", attempt("app-gone", "gone"), []corev1.Pod{look}, "", ""},
		{"no proof", nil, []corev1.Pod{bare}, "", "app-bare"},
		{"no attempt", nil, nil, "", ""},
		{"who may only list", attempt("app-own", "own"), []corev1.Pod{older, own}, "get", "app-own"},
		{"who may only get", attempt("app-own", "own"), []corev1.Pod{older, own}, "list", "app-own"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := served()
			b.UID, b.Status.Unpack = "uid", test.unpack
			server := httptest.NewServer(podServer(t, b, test.pods, test.deny))
			t.Cleanup(server.Close)
			stdout, stderr, code := run(t, "logs", "app", "-s", server.URL, "-n", "team")
			switch {
			case test.want == "" && (code != ExitNotFound || !strings.Contains(stderr, "has no unpack pod now")):
				t.Errorf("it ends with %d: %s%s", code, stdout, stderr)
			case test.want != "" && (code != ExitOK || stdout != "says "+test.want+"\n"):
				t.Errorf("it ends with %d: %s%s", code, stdout, stderr)
			}
		})
	}
}

// podServer has a bundle and pods, and denies a verb on pods.
func podServer(t *testing.T, b *v1alpha1.Bundle, pods []corev1.Pod, deny string) http.HandlerFunc {
	all := schema.GroupResource{Resource: "pods"}
	return func(w http.ResponseWriter, r *http.Request) {
		const path = "/api/v1/namespaces/team/pods"
		var answer any
		switch name, log := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, path+"/"), "/log"); {
		case strings.HasSuffix(r.URL.Path, "/bundles/app"):
			answer = b
		case r.URL.Path == path && deny == "list", r.URL.Path != path && !log && deny == "get":
			answer = apierrors.NewForbidden(all, name, nil).Status()
		case r.URL.Path == path:
			list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
			for _, p := range pods {
				if r.URL.Query().Get("labelSelector") == v1alpha1.LabelBundleUID+"="+p.Labels[v1alpha1.LabelBundleUID] {
					list.Items = append(list.Items, p)
				}
			}
			answer = list
		case log:
			fmt.Fprintln(w, "says", name)
			return
		default:
			answer = apierrors.NewNotFound(all, name).Status()
			for _, p := range pods {
				if p.Name == name {
					p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
					answer = p
				}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		if status, ok := answer.(metav1.Status); ok {
			status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
			w.WriteHeader(int(status.Code))
			answer = status
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}
}
