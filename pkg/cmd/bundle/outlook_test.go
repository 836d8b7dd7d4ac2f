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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// retry and refresh ask for what something comes of, and say of all else why nothing does.
func TestAskingForWhatHappens(t *testing.T) {
	change := func(f func(*v1alpha1.Bundle), more ...metav1.Condition) *v1alpha1.Bundle {
		b := served(more...)
		b.Status.Provisioner = v1alpha1.ProvisionerRaw
		f(b)
		return b
	}
	unready := func(b *v1alpha1.Bundle, reason string) {
		b.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown, Reason: reason, Message: "words"}}
	}
	unrefreshed := metav1.Condition{Type: v1alpha1.ConditionRefreshed, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonImageNotFound}
	same := func(*v1alpha1.Bundle) {}
	digested := func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = "registry.example/app@" + digestOf(nil) }
	suspended := func(b *v1alpha1.Bundle) { b.Spec.Suspend = true }
	upload := func(b *v1alpha1.Bundle) { b.Spec.Source = v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload} }
	unpacking := func(b *v1alpha1.Bundle) {
		unready(b, v1alpha1.ReasonUnpacking)
		b.Status.Content, b.Status.Unpack = nil, &v1alpha1.UnpackStatus{Generation: b.Generation, Attempt: 1}
	}
	foreign := func(b *v1alpha1.Bundle) { b.Status.Provisioner = "example.com/theirs" }
	for _, test := range []struct {
		name    string
		command string
		bundle  *v1alpha1.Bundle
		asked   bool
		code    int
		says    string
	}{
		{"it is served", "retry", change(same), false, ExitOK, "there is nothing to try again; kubectl bundle refresh app -n team looks up"},
		{"it is served, by digest", "retry", change(digested), false, ExitOK, "there is nothing to try again\n"},
		{"it is served, by digest", "refresh", change(digested), false, ExitOK, "named by digest"},
		{"it is served, by tag", "refresh", change(same), true, ExitOK, "will be looked up anew"},
		{"the look has failed", "retry", change(same, unrefreshed), true, ExitOK, "will be looked up again"},
		{"suspended", "retry", change(suspended), false, ExitNoContent, `{"spec":{"suspend":false}}`},
		{"suspended", "refresh", change(suspended), false, ExitNoContent, "it is suspended"},
		{"an upload", "refresh", change(upload), false, ExitOK, "nothing is fetched for a bundle whose source is Upload"},
		{"an upload to come", "retry", change(func(b *v1alpha1.Bundle) { upload(b); unready(b, v1alpha1.ReasonWaitingForUpload) }), false, ExitNoContent, "push app -n team FOLDER"},
		{"somebody else's", "retry", change(foreign), true, ExitOK, "example.com/theirs, which is another controller's"},
		{"no class", "retry", change(func(b *v1alpha1.Bundle) { unready(b, v1alpha1.ReasonClassMissing) }), false, ExitNoContent, "nothing is done for it: words"},
		{"it fails", "retry", change(func(b *v1alpha1.Bundle) { unready(b, v1alpha1.ReasonImageNotFound) }), true, ExitOK, "a new attempt was asked for"},
		{"no attempt has begun", "refresh", change(func(b *v1alpha1.Bundle) { unready(b, v1alpha1.ReasonQueued) }), false, ExitOK, "its next attempt takes what its image names then"},
		{"it is being unpacked", "refresh", change(unpacking), true, ExitOK, "an attempt is under way"},
		{"it is being unpacked, by digest", "refresh", change(func(b *v1alpha1.Bundle) { unpacking(b); digested(b) }), false, ExitOK, "named by digest"},
		{"an attempt has failed", "refresh", change(func(b *v1alpha1.Bundle) { unpacking(b); b.Status.Unpack.EndTime = &metav1.Time{Time: time.Now()} }), false, ExitOK, "names then"},
		{"the store is full", "retry", change(func(b *v1alpha1.Bundle) {
			unready(b, v1alpha1.ReasonStorageFull)
			b.Status.Conditions = append(b.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionStorageFull, Status: metav1.ConditionTrue})
		}), true, ExitOK, "when the store of its class has room"},
	} {
		t.Run(test.command+", "+test.name, func(t *testing.T) {
			asked := false
			url := serveBundle(t, test.bundle, func(_ http.ResponseWriter, r *http.Request) bool {
				asked = asked || r.Method == http.MethodPatch
				return false
			})
			stdout, stderr, code := run(t, test.command, "app", "-s", url, "-n", "team")
			if asked != test.asked || code != test.code || !strings.Contains(stdout+stderr, strings.Replace(test.says, " -n team", " -s "+url+" -n team", 1)) {
				t.Errorf("asked is %v, and it ends with %d: %s%s", asked, code, stdout, stderr)
			}
		})
	}
}

// What was asked for while an attempt ran is waited for no longer than something can come of it.
func TestRefreshOfWhatFails(t *testing.T) {
	b := served()
	b.Status.Provisioner, b.Status.Content = v1alpha1.ProvisionerRaw, nil
	ready := func(status metav1.ConditionStatus) {
		b.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: v1alpha1.ReasonImageNotFound}}
	}
	ready(metav1.ConditionUnknown)
	b.Status.Unpack = &v1alpha1.UnpackStatus{Generation: b.Generation, Attempt: 7}
	url := serveBundle(t, b, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch {
			defer func() {
				ready(metav1.ConditionFalse)
				b.Status.Unpack.EndTime = &metav1.Time{Time: time.Now()}
			}()
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(b); err != nil {
				t.Error(err)
			}
			return true
		}
		return false
	})
	stdout, stderr, code := run(t, "refresh", "app", "--wait", "--timeout", "20s", "-s", url, "-n", "team")
	if code != ExitNo || !strings.Contains(stderr, "retry app -s "+url+" -n team") {
		t.Errorf("it ends with %d: %s%s", code, stdout, stderr)
	}
}

// serveBundle answers every request with a bundle, unless other has answered it.
func serveBundle(t *testing.T, b *v1alpha1.Bundle, other func(http.ResponseWriter, *http.Request) bool) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if other(w, r) {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(b); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// refuse answers with a Status.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// A client that is gone is the test's own.
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
		Details: &metav1.StatusDetails{Name: "app", Causes: causes},
	})
}
