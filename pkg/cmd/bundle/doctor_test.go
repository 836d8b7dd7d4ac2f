// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"io"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"rukpak.io/apiserver/pkg/pki"
)

func TestCertificates(t *testing.T) {
	authority, err := pki.NewAuthority("test", 30*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, test := range []struct {
		name     string
		bundle   []byte
		insecure bool
		at       time.Time
		want     level
	}{
		{"good", authority.CertPEM, false, now.Add(time.Hour), levelOK},
		{"ends soon", authority.CertPEM, false, now.Add(25 * 24 * time.Hour), levelWarning},
		{"ended", authority.CertPEM, false, now.Add(31 * 24 * time.Hour), levelBad},
		{"no certificate", []byte("text"), false, now, levelBad},
		{"none", nil, false, now, levelWarning},
		{"not checked", authority.CertPEM, true, now, levelBad},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := &apiService{}
			a.Spec.CABundle, a.Spec.InsecureSkipTLSVerify = test.bundle, test.insecure
			got := certificates(a, test.at)
			if len(got) != 1 || got[0].level != test.want || (got[0].remedy == "") != (test.want == levelOK) {
				t.Errorf("it finds %+v", got)
			}
		})
	}
}

func TestAvailable(t *testing.T) {
	for _, test := range []struct {
		name   string
		status metav1.ConditionStatus
		reason string
		want   level
		remedy string
	}{
		{"available", metav1.ConditionTrue, "Passed", levelOK, ""},
		{"no pod", metav1.ConditionFalse, "MissingEndpoints", levelBad, "no pod of the server is ready"},
		{"no service", metav1.ConditionFalse, "ServiceNotFound", levelBad, "apply artifacts/deploy again"},
		{"unreachable", metav1.ConditionFalse, "FailedDiscoveryCheck", levelBad, "port 10250"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := &apiService{}
			a.Status.Conditions = []metav1.Condition{{Type: "Available", Status: test.status, Reason: test.reason, Message: "words"}}
			d := &examination{session: newSession(streamsTo(io.Discard)), system: "rukpak-system"}
			got := d.available(a)
			if got.level != test.want || !strings.Contains(got.remedy, test.remedy) || d.served != (test.want == levelOK) {
				t.Errorf("it finds %+v", got)
			}
		})
	}
}

// A pod that is not ready is bad unless the API is served all the same.
func TestPods(t *testing.T) {
	waiting := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
		{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}},
	}}}
	for served, want := range map[bool]level{false: levelBad, true: levelWarning} {
		d := &examination{session: newSession(streamsTo(io.Discard)), served: served}
		if got := d.pod(waiting); got.level != want || !strings.Contains(got.what, "ImagePullBackOff: no such image") {
			t.Errorf("served %v: %+v", served, got)
		}
	}
	ready := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	if got := (&examination{}).pod(ready); got.level != levelOK {
		t.Errorf("%+v", got)
	}
}

// What is lacking to read is one role, for whoever asks.
func TestAccessThatIsLacking(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetResource().Resource == "selfsubjectreviews" {
			return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: "jane"}}}, nil
		}
		return true, &authorizationv1.SelfSubjectAccessReview{}, nil
	})
	found := (&examination{session: newSession(streamsTo(io.Discard)), kube: client, in: "team"}).access(t.Context())
	want := "have it granted: kubectl create role bundle-reader -n team --verb=get,list,watch --resource=bundles.rukpak.io,bundles.rukpak.io/content" +
		" && kubectl create rolebinding bundle-reader -n team --role=bundle-reader --user=jane"
	remedies := 0
	for _, f := range found {
		if f.level == levelWarning {
			remedies++
			if f.remedy != want || f.what != "you may not see bundles nor read content in namespace team: get, list, watch bundles; get bundles/content" {
				t.Errorf("it finds %+v", f)
			}
		}
	}
	if remedies != 1 || len(found) != len(grants)-1 {
		t.Errorf("it finds %+v", found)
	}
}
