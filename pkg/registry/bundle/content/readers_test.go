// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"io"
	"net/http"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

func TestReadsAtTheSameTimeAreBounded(t *testing.T) {
	as := func(name string, groups ...string) context.Context {
		return genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: name, Groups: groups})
	}
	l := newReaderLimits(3, 2)
	var leave []func()
	for i, test := range []struct {
		ctx     context.Context
		refused bool
	}{
		{as("jane"), false},
		{as("jane"), false},
		{as("jane"), true}, // of jane there are enough
		{as("joe"), false},
		{as("jim"), true}, // of all there are enough
		{as("admin", user.SystemPrivilegedGroup), false},
		{as("admin", user.SystemPrivilegedGroup), false},
		{as("admin", user.SystemPrivilegedGroup), false},
	} {
		_, done, err := l.enter(test.ctx)
		if (err != nil) != test.refused {
			t.Errorf("read %d: %v", i, err)
		}
		if err == nil {
			leave = append(leave, done)
		}
	}
	for _, done := range leave {
		done()
	}
	if l.now != 0 || len(l.byUser) != 0 {
		t.Errorf("%d reads are left: %v", l.now, l.byUser)
	}
	if _, _, err := l.enter(as("jane")); err != nil {
		t.Errorf("after all have left: %v", err)
	}
}

func TestAReadTooManyIsToldToComeAgain(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	w.put("app", "x")
	w.rest.readers = newReaderLimits(1, 0)
	_, leave, err := w.rest.readers.enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		got := w.do(method, "app", nil)
		if got.code != http.StatusTooManyRequests {
			t.Errorf("%s: %d", method, got.code)
		}
		if method == http.MethodGet && got.status(t).Details.RetryAfterSeconds < 1 {
			t.Errorf("the Status is %s", got.body)
		}
	}
	leave()
	if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusOK {
		t.Errorf("once there is room: %d", got.code)
	}
}

// A reader that takes nothing does not hold up the end of the server, and what it got is no whole content.
func TestTheEndOfTheServerEndsReads(t *testing.T) {
	w := newWorld(t)
	w.classes["raw"].Limits = nil
	w.addUpload("app")
	stored, _ := w.putNoise("app", 32<<20) // more than the buffers of a connection hold
	res, err := w.server.Client().Get(w.server.URL + "/app")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	w.rest.EndReads()
	<-w.served
	if got, err := io.ReadAll(res.Body); err == nil || len(got) >= len(stored) {
		t.Errorf("%d of %d bytes: %v", len(got), len(stored), err)
	}
	if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusServiceUnavailable {
		t.Errorf("a read that comes then: %d", got.code)
	}
	if w.rest.readers.now != 0 {
		t.Errorf("%d reads are left", w.rest.readers.now)
	}
}
