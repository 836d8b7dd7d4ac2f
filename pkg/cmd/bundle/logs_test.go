// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
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
	"k8s.io/cli-runtime/pkg/genericiooptions"

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

// What is followed is waited for until it begins, the pod ends, or nobody wants it any more.
func TestLogsFollowWhatHasNotBegun(t *testing.T) {
	const waits = `container "unpack" in pod "app-own" is waiting to start: ContainerCreating`
	for _, test := range []struct {
		name string
		// begins is how often the log is asked for before there is one; 0 is never.
		begins int
		// phases are those of the pod, as it is looked at; "" is that it is gone, "?" that it is another, "403" that it may not be got.
		phases []string
		code   int // of the log before it begins
		follow bool
		want   string
		exit   int
	}{
		{"it begins", 3, []string{"Pending", "Pending"}, http.StatusBadRequest, true, "says app-own\n", ExitOK},
		{"its node does not know of it yet", 2, []string{"Pending"}, http.StatusNotFound, true, "says app-own\n", ExitOK},
		{"it begins and ends before it is looked at", 2, []string{"Succeeded"}, http.StatusBadRequest, true, "says app-own\n", ExitOK},
		{"it fails before", 0, []string{"Pending", "Failed"}, http.StatusBadRequest, true, "", ExitOK},
		{"it is gone", 0, []string{""}, http.StatusBadRequest, true, "", ExitOK},
		{"it is another", 0, []string{"?"}, http.StatusBadRequest, true, "", ExitOK},
		{"nobody says how the pod is", 2, []string{"403"}, http.StatusBadRequest, true, "says app-own\n", ExitOK},
		{"nobody says whether it is there", 0, []string{"403"}, http.StatusNotFound, true, "", ExitOK},
		{"nobody follows it", 2, nil, http.StatusBadRequest, false, "", ExitOK},
		{"nobody wants it any more", 0, []string{"Pending", "stop"}, http.StatusBadRequest, true, "", ExitInterrupted},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			own := logging("app-own", "own", "uid", "1.2.nonce.mac", 2)
			b := served()
			b.UID, b.Status.Unpack = "uid", &v1alpha1.UnpackStatus{Attempt: 2, Generation: 1, PodName: own.Name, PodUID: own.UID}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			asked, found, phases := 0, false, test.phases
			pods := podServer(t, b, []corev1.Pod{own}, "")
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/log"):
					if asked++; asked != test.begins {
						refuse(w, test.code, metav1.StatusReasonUnknown, waits)
						return
					}
					pods(w, r)
				case !strings.HasSuffix(r.URL.Path, "/pods/app-own"), !found:
					found = found || strings.HasSuffix(r.URL.Path, "/pods/app-own")
					pods(w, r)
				case len(phases) == 0:
					t.Error("the pod is looked at once more")
				default:
					now, phase := own, phases[0]
					phases = phases[1:]
					switch phase {
					case "403":
						podServer(t, b, nil, "get")(w, r)
						return
					case "":
						podServer(t, b, nil, "")(w, r)
						return
					case "?":
						now.UID = "other"
					case "stop":
						stop()
					}
					now.Status.Phase = corev1.PodPhase(phase)
					podServer(t, b, []corev1.Pod{now}, "")(w, r)
				}
			}))
			t.Cleanup(server.Close)
			args := []string{"logs", "app", "-s", server.URL, "-n", "team"}
			if test.follow {
				args = append(args, "-f")
			}
			streams, _, out, errOut := genericiooptions.NewTestIOStreams()
			code := Main(ctx, args, streams)
			if code != test.exit || out.String() != test.want || len(phases) > 0 {
				t.Errorf("it ends with %d, and %q were not looked at: %s%s", code, phases, out, errOut)
			}
			if n := strings.Count(errOut.String(), waits); n != 1 {
				t.Errorf("it says %d times that it waits: %s", n, errOut)
			}
		})
	}
}
