// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

const looked = "registry.example/app:v1"

// served is a bundle from an image whose content is served.
func served(more ...metav1.Condition) *v1alpha1.Bundle {
	b := &v1alpha1.Bundle{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Bundle"},
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team"},
		Spec:       v1alpha1.BundleSpec{Source: v1alpha1.BundleSource{Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ImageSource{Reference: looked}}},
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionContentAvailable} {
		b.Status.Conditions = append(b.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue})
	}
	b.Status.Conditions = append(b.Status.Conditions, more...)
	return b
}

func TestStateOfWhatIsServed(t *testing.T) {
	for _, test := range []struct {
		name  string
		more  []metav1.Condition
		words []string
		next  string
	}{
		{"all is well", nil, nil, ""},
		{"refreshed", []metav1.Condition{{Type: v1alpha1.ConditionRefreshed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRefreshed}}, nil, ""},
		{
			"not refreshed", []metav1.Condition{{Type: v1alpha1.ConditionRefreshed, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonImageNotFound, Message: "the tag is gone"}},
			[]string{"It is not refreshed", "the registry has no such image", "the tag is gone"}, "refresh app -n team --wait",
		},
		{
			"a full store", []metav1.Condition{{Type: v1alpha1.ConditionStorageFull, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonStorageFull}},
			[]string{"The store of its class is full"}, "StorageFull: delete bundles",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			st := stateOf(served(test.more...))
			words := strings.ToLower(st.words())
			for _, want := range append(test.words, "Its content is there and served.") {
				if !strings.Contains(words, strings.ToLower(want)) {
					t.Errorf("it says %q, not %q", words, want)
				}
			}
			next := st.next()
			if !strings.Contains(strings.Join(next, "\n"), test.next) || test.next == "" && len(next) != 1 {
				t.Errorf("to do is %q", next)
			}
		})
	}
}

// What wait shows of a bundle that is served tells of refreshes, too.
func TestStageOfWhatIsServed(t *testing.T) {
	failure := metav1.Condition{Type: v1alpha1.ConditionRefreshed, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonImageNotFound, Message: "the tag is gone"}
	running, ended := &v1alpha1.UnpackStatus{Attempt: 7, Refresh: true}, &v1alpha1.UnpackStatus{Attempt: 7, Refresh: true, EndTime: &metav1.Time{Time: time.Now()}}
	for _, test := range []struct {
		name   string
		more   []metav1.Condition
		unpack *v1alpha1.UnpackStatus
		want   string
	}{
		{"all is well", nil, nil, "ready"},
		{"a refresh has ended", nil, ended, "ready"},
		{"a refresh runs", nil, running, "attempt 7 unpacks what its tag names now; until then it is ready"},
		{"it runs after one that failed", []metav1.Condition{failure}, running, "attempt 7 unpacks what its tag names now; until then it is ready"},
		{"a refresh has failed", []metav1.Condition{failure}, ended, "ready; not refreshed: The registry has no such image: the tag is gone."},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := served(test.more...)
			b.Status.Unpack = test.unpack
			if got := stateOf(b).stage(); got != test.want {
				t.Errorf("it says %q, not %q", got, test.want)
			}
		})
	}
}

func TestDescribeTellsOfPlatformsAndRefreshes(t *testing.T) {
	b := served()
	b.Spec.Source.Image.Platform, b.Spec.RefreshIntervalSeconds = "linux/arm64", new(int32(3600))
	soon, past := metav1.NewTime(time.Now().Add(time.Hour)), metav1.NewTime(time.Now().Add(-time.Hour))
	b.Status.ResolvedSource = &v1alpha1.ResolvedSource{Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ResolvedImage{Message: "the node does not say", Platform: "linux/arm64"}}
	b.Status.Refresh = &v1alpha1.RefreshStatus{LastTime: &past, Failures: 3, NextTime: &soon, Refused: "registry.example/app@sha256:1"}
	b.Status.Unpack = &v1alpha1.UnpackStatus{Attempt: 2, Generation: 1, Platform: "linux/arm64", Refresh: true, NextAttemptTime: &past}
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	if err := newSession(streams).describeBundle(b, nil); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"Platform: linux/arm64", "is not known: the node does not say (platform linux/arm64)", "Looked up: every 60m", "Last look: 60m ago", "Failed looks: 3",
		"Next look: in ", "Refused image: registry.example/app@sha256:1", "2 of generation 1, platform linux/arm64, a refresh",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it says nothing of %q:\n%s", want, out)
		}
	}
	if strings.Contains(text, "Next attempt") {
		t.Error("an attempt is next that was due an hour ago")
	}
}

// A message that the state, conditions and events share is written once; others are written whole.
func TestDescribeSaysAMessageOnce(t *testing.T) {
	const why, other = "attempt 3 failed: image 127.0.0.1:5000/none:1: image not found", "attempt 2 failed: image 127.0.0.1:5000/none:1: image not found"
	b := served(metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonImageNotFound, Message: why})
	b.Status.Unpack = &v1alpha1.UnpackStatus{Attempt: 3, Reason: v1alpha1.ReasonImageNotFound, Message: why}
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	events := []corev1.Event{{Type: "Warning", Reason: "UnpackFailed", Message: other}, {Type: "Warning", Reason: "UnpackFailed", Message: why}}
	if err := newSession(streams).describeBundle(b, events); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Count(text, other) != 1 || strings.Count(text, asAbove) < 2 || strings.Count(text, why) > 1 {
		t.Errorf("%s", text)
	}
}

// A refresh ends when what the look has found is unpacked, not when the look has ended.
func TestRefreshWaits(t *testing.T) {
	failure := metav1.Condition{Type: v1alpha1.ConditionRefreshed, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonContentRefused, Message: "an entry is a device"}
	for _, test := range []struct {
		name string
		end  *v1alpha1.Bundle
		code int
		says []string
	}{
		{"done", served(), ExitOK, []string{"attempt 7 unpacks what its tag names now; until", "bundle/app: ready\n"}},
		{"failed", served(failure), ExitNo, []string{"not refreshed: ", "an entry is a device", "refresh app -n team --wait"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			value, gets := "", 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer := served(failure)
				switch {
				case r.Method == http.MethodPatch:
					var patch v1alpha1.Bundle
					if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
						t.Error(err)
					}
					value = patch.Annotations[v1alpha1.AnnotationRefresh]
				case r.URL.Query().Get("watch") != "":
					http.Error(w, "look again", http.StatusForbidden)
					return
				default:
					gets++
				}
				begun := &v1alpha1.UnpackStatus{Refresh: true, Attempt: 7}
				switch gets {
				case 0, 1: // nobody has looked
				case 2:
					answer.Status.LastHandledRefresh, answer.Status.Unpack = value, begun
				default:
					answer = test.end
					begun.EndTime = &metav1.Time{Time: time.Now()}
					answer.Status.LastHandledRefresh, answer.Status.Unpack = value, begun
				}
				w.Header().Set("Content-Type", "application/json")
				if err := json.NewEncoder(w).Encode(answer); err != nil {
					t.Error(err)
				}
			}))
			t.Cleanup(server.Close)
			_, stderr, code := run(t, "refresh", "app", "--wait", "-s", server.URL, "-n", "team")
			if code != test.code || gets < 3 {
				t.Errorf("it ends with %d after %d looks: %s", code, gets, stderr)
			}
			for _, want := range test.says {
				if want = strings.Replace(want, " -n team", " -s "+server.URL+" -n team", 1); !strings.Contains(stderr, want) {
					t.Errorf("it says nothing of %q: %s", want, stderr)
				}
			}
		})
	}
}
