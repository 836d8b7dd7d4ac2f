// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

const (
	granted   = ""
	forbidden = "403"
	ended     = string(CauseAttemptEnded)
	tooEarly  = string(CauseAttemptNotRecorded)
	stale     = "412"
)

// verdict says how a grant was refused: by the cause of a conflict, else by the code.
func verdict(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return granted
	}
	s, ok := err.(apierrors.APIStatus)
	if !ok {
		t.Fatalf("an error without a Status: %v", err)
	}
	if d := s.Status().Details; s.Status().Code == http.StatusConflict && d != nil && len(d.Causes) > 0 {
		return string(d.Causes[0].Type)
	}
	return map[int32]string{401: "401", 403: forbidden, 412: stale}[s.Status().Code]
}

func attempted() *rukpak.Bundle {
	return &rukpak.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team", UID: "uid-1", Generation: 1},
		Spec:       rukpak.BundleSpec{Source: rukpak.BundleSource{Type: rukpak.SourceTypeImage, Image: &rukpak.ImageSource{Reference: "app"}}},
		Status: rukpak.BundleStatus{Unpack: &rukpak.UnpackStatus{
			Generation: 1, Attempt: 2, Nonce: "nonce", Mode: rukpak.UnpackModeImageVolume, PodName: "unpack", PodUID: "pod-uid",
		}},
	}
}

var someTime = metav1.NewTime(time.Unix(1e9, 0))

func TestWhoMayWrite(t *testing.T) {
	end := func(b *rukpak.Bundle) { b.Status.Unpack.EndTime = &someTime }
	direct := func(b *rukpak.Bundle) {
		b.Status.Unpack.Mode, b.Status.Unpack.PodName, b.Status.Unpack.PodUID = rukpak.UnpackModeDirect, "", ""
	}
	upload := func(b *rukpak.Bundle) {
		b.Spec.Source = rukpak.BundleSource{Type: rukpak.SourceTypeUpload, Upload: &rukpak.UploadSource{}}
	}
	both := func(fs ...func(*rukpak.Bundle)) func(*rukpak.Bundle) {
		return func(b *rukpak.Bundle) {
			for _, f := range fs {
				f(b)
			}
		}
	}
	withContent := func(b *rukpak.Bundle) { b.Status.Content = &rukpak.ContentStatus{Digest: "sha256:x", Generation: 1} }
	unpackPod, jane := podCaller("team", "unpack", "pod-uid"), &user.DefaultInfo{Name: "jane"}
	for name, test := range map[string]struct {
		caller      user.Info
		provisioner string // of the class; raw if empty
		change      func(*rukpak.Bundle)
		nonce       string
		want        string
	}{
		"the pod of the attempt":              {caller: unpackPod, want: granted},
		"the pod before it is recorded":       {caller: unpackPod, change: func(b *rukpak.Bundle) { b.Status.Unpack.PodUID = "" }, want: tooEarly},
		"another pod of the same account":     {caller: podCaller("team", "other", "other-uid"), want: forbidden},
		"another pod before one is recorded":  {caller: podCaller("team", "other", "other-uid"), change: func(b *rukpak.Bundle) { b.Status.Unpack.PodUID = "" }, want: forbidden},
		"a pod that took the name":            {caller: podCaller("team", "unpack", "other-uid"), want: forbidden},
		"a pod with the UID and another name": {caller: podCaller("team", "other", "pod-uid"), want: forbidden},
		"the pod's namesake elsewhere":        {caller: podCaller("evil", "unpack", "pod-uid"), want: forbidden},
		"the pod of an earlier attempt": {caller: unpackPod, change: func(b *rukpak.Bundle) {
			b.Status.Unpack.PodName, b.Status.Unpack.PodUID = "unpack-3", "pod-uid-3"
		}, want: forbidden},
		"the pod where no attempt was made":    {caller: unpackPod, change: func(b *rukpak.Bundle) { b.Status.Unpack = nil }, want: forbidden},
		"the pod where the attempt has no pod": {caller: podCaller("team", "", "pod-uid"), change: direct, want: forbidden},
		"the pod of an attempt that failed":    {caller: unpackPod, change: end, want: ended},
		"the pod of an attempt that failed, beside earlier content": {caller: unpackPod, change: both(end, func(b *rukpak.Bundle) {
			b.Status.Content = &rukpak.ContentStatus{Digest: "sha256:x", Generation: 0}
		}), want: ended},
		"the pod of an attempt that succeeded":   {caller: unpackPod, change: both(end, withContent), want: granted},
		"the pod of another generation":          {caller: unpackPod, change: func(b *rukpak.Bundle) { b.Generation = 2 }, want: ended},
		"the pod of a bundle that is deleted":    {caller: unpackPod, change: func(b *rukpak.Bundle) { b.DeletionTimestamp = &someTime }, want: ended},
		"the service account without a pod":      {caller: &user.DefaultInfo{Name: serviceaccount.MakeUsername("team", "default")}, want: forbidden},
		"a user who claims to be a pod":          {caller: &user.DefaultInfo{Name: "jane", Extra: unpackPod.GetExtra()}, want: forbidden},
		"a pod with two UIDs":                    {caller: &user.DefaultInfo{Name: unpackPod.GetName(), Extra: map[string][]string{serviceaccount.PodNameKey: {"unpack"}, serviceaccount.PodUIDKey: {"x", "pod-uid"}}}, want: forbidden},
		"a client":                               {caller: jane, want: forbidden},
		"an administrator":                       {caller: &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}, want: forbidden},
		"nobody":                                 {caller: nil, want: "401"},
		"the server with the nonce":              {caller: loopback(), change: direct, nonce: "nonce", want: granted},
		"the server with another nonce":          {caller: loopback(), change: direct, nonce: "other", want: ended},
		"the server without a nonce":             {caller: loopback(), change: direct, nonce: "", want: ended},
		"the server where the nonce is empty":    {caller: loopback(), change: both(direct, func(b *rukpak.Bundle) { b.Status.Unpack.Nonce = "" }), nonce: "", want: ended},
		"the server for an attempt of a pod":     {caller: loopback(), nonce: "nonce", want: ended},
		"the server where no attempt was made":   {caller: loopback(), change: func(b *rukpak.Bundle) { b.Status.Unpack = nil }, nonce: "nonce", want: ended},
		"the server after its attempt failed":    {caller: loopback(), change: both(direct, end), nonce: "nonce", want: ended},
		"the server after its attempt succeeded": {caller: loopback(), change: both(direct, end, withContent), nonce: "nonce", want: granted},
		"somebody with the nonce":                {caller: jane, change: direct, nonce: "nonce", want: forbidden},
		"an uploader":                            {caller: jane, change: upload, want: granted},
		"an uploader to one that is deleted":     {caller: jane, change: both(upload, func(b *rukpak.Bundle) { b.DeletionTimestamp = &someTime }), want: ended},
		"somebody else's provisioner":            {caller: jane, provisioner: "example.com/mine", want: granted},
		"the pod, for another's provisioner":     {caller: unpackPod, provisioner: "example.com/mine", change: end, want: granted},
	} {
		t.Run(name, func(t *testing.T) {
			b := attempted()
			if test.change != nil {
				test.change(b)
			}
			ctx := t.Context()
			if test.caller != nil {
				ctx = genericapirequest.WithUser(ctx, test.caller)
			}
			class := &rukpak.ProvisionerClass{Provisioner: test.provisioner}
			if class.Provisioner == "" {
				class.Provisioner = v1alpha1.ProvisionerRaw
			}
			g, err := newGrant(ctx, b, class, &rukpak.BundleContentOptions{Attempt: test.nonce}, &http.Request{Header: http.Header{}})
			if got := verdict(t, err); got != test.want {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			if err != nil {
				return
			}
			foreign := test.provisioner != ""
			if byAttempt := b.Spec.Source.Type == rukpak.SourceTypeImage && !foreign; g.attempt != byAttempt || g.canonical != byAttempt {
				t.Errorf("attempt %v, canonical %v: want both %v", g.attempt, g.canonical, byAttempt)
			}
			if g.builtIn == foreign {
				t.Errorf("built in: %v", g.builtIn)
			}
		})
	}
}

// What has changed since the write began ends the grant.
func TestAGrantEnds(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*rukpak.Bundle)
		want   string
	}{
		"nothing changed":       {func(*rukpak.Bundle) {}, granted},
		"labels changed":        {func(b *rukpak.Bundle) { b.Labels = map[string]string{"a": "b"} }, granted},
		"another bundle":        {func(b *rukpak.Bundle) { b.UID = "uid-2" }, ended},
		"being deleted":         {func(b *rukpak.Bundle) { b.DeletionTimestamp = &someTime }, ended},
		"the spec changed":      {func(b *rukpak.Bundle) { b.Generation, b.Status.Unpack.Generation = 2, 2 }, ended},
		"another attempt":       {func(b *rukpak.Bundle) { b.Status.Unpack.PodUID = "other" }, ended},
		"an attempt to come":    {func(b *rukpak.Bundle) { b.Status.Unpack.PodUID = "" }, tooEarly},
		"the attempt timed out": {func(b *rukpak.Bundle) { b.Status.Unpack.EndTime = &someTime }, ended},
	} {
		t.Run(name, func(t *testing.T) {
			g := &grant{uid: "uid-1", generation: 1, attempt: true, canonical: true, podUID: "pod-uid", builtIn: true}
			b := attempted()
			test.change(b)
			if got := verdict(t, g.check(b)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestConditionsOfARequest(t *testing.T) {
	tag := etag("sha256:" + strings.Repeat("a", 64))
	for name, test := range map[string]struct {
		match, noneMatch []string
		empty            bool // there is no content yet
		want             string
	}{
		"none":                              {want: granted},
		"match":                             {match: []string{tag}, want: granted},
		"match in a list":                   {match: []string{"\"x\", " + tag + " ,\"y\""}, want: granted},
		"match in the second line":          {match: []string{"\"x\"", tag}, want: granted},
		"match anything":                    {match: []string{"*"}, want: granted},
		"match another":                     {match: []string{"\"x\""}, want: stale},
		"match weakly":                      {match: []string{"W/" + tag}, want: stale},
		"match without quotes":              {match: []string{strings.Trim(tag, "\"")}, want: stale},
		"match, without content":            {match: []string{tag}, empty: true, want: stale},
		"match anything, without content":   {match: []string{"*"}, empty: true, want: stale},
		"none match":                        {noneMatch: []string{tag}, want: stale},
		"none match in a list":              {noneMatch: []string{"\"x\"," + tag}, want: stale},
		"none match in the second line":     {noneMatch: []string{"\"x\"", tag}, want: stale},
		"none match, weakly":                {noneMatch: []string{"W/" + tag}, want: stale},
		"none match anything":               {noneMatch: []string{"*"}, want: stale},
		"none match another":                {noneMatch: []string{"\"x\""}, want: granted},
		"none match a star in a list":       {noneMatch: []string{"\"x\", \"*\""}, want: granted},
		"none match, without content":       {noneMatch: []string{tag}, empty: true, want: granted},
		"none match anything, from nothing": {noneMatch: []string{"*"}, empty: true, want: granted},
	} {
		t.Run(name, func(t *testing.T) {
			b := attempted()
			b.Spec.Source = rukpak.BundleSource{Type: rukpak.SourceTypeUpload, Upload: &rukpak.UploadSource{}}
			if !test.empty {
				b.Status.Content = &rukpak.ContentStatus{Digest: "sha256:" + strings.Repeat("a", 64)}
			}
			ctx := genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "jane"})
			header := http.Header{"If-Match": test.match, "If-None-Match": test.noneMatch}
			_, err := newGrant(ctx, b, &rukpak.ProvisionerClass{Provisioner: v1alpha1.ProvisionerRaw}, &rukpak.BundleContentOptions{}, &http.Request{Header: header})
			if got := verdict(t, err); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
