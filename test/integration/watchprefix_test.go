// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// belowWatch is a path of the API below the prefix watch/.
func belowWatch(path string) string {
	return strings.Replace(path, "/v1alpha1/", "/v1alpha1/watch/", 1)
}

func TestContentBelowTheWatchPrefixNeedsTheVerbWatch(t *testing.T) {
	s := store(t, "raw", noise("data", 21, 10_000))
	path := belowWatch(s.path())
	watcher := newUser(t, s.namespace, rule("bundles/content", "watch"))
	for name, u := range map[string]user{
		"reader":  newUser(t, s.namespace, rule("bundles/content", "get", "update"), rule("bundles", "*")),
		"nobody":  newUser(t, s.namespace),
		"another": newUser(t, newNamespace(t), rule("*", "*")),
	} {
		for _, w := range bothWays(t) {
			for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete} {
				if r := w.do(t, method, path, u.token, nil); r.code != http.StatusForbidden {
					t.Errorf("%s: %s by %s is answered with %d: %s", w.name, method, name, r.code, short(r.body))
				}
			}
		}
	}
	for _, w := range bothWays(t) {
		r := w.do(t, http.MethodGet, path, watcher.token, nil).expect(t, http.StatusOK)
		if !bytes.Equal(r.body, s.content) || r.header.Get("ETag") != `"`+digestOf(s.content)+`"` {
			t.Errorf("%s: other content is served", w.name)
		}
		r = w.do(t, http.MethodHead, path, watcher.token, nil).expect(t, http.StatusOK)
		if len(r.body) > 0 || r.header.Get("Content-Length") == "" {
			t.Errorf("%s: HEAD has %d bytes and the length %q", w.name, len(r.body), r.header.Get("Content-Length"))
		}
		r = w.do(t, http.MethodGet, path, watcher.token, nil, "Range", "bytes=5-9").expect(t, http.StatusPartialContent)
		if !bytes.Equal(r.body, s.content[5:10]) {
			t.Errorf("%s: another part is served", w.name)
		}
		w.do(t, http.MethodGet, s.path(), watcher.token, nil).expect(t, http.StatusForbidden)
		w.do(t, http.MethodGet, path+"?digest=sha256:"+strings.Repeat("0", 64), watcher.token, nil).expect(t, http.StatusNotFound)
	}
}

// Whoever may watch may do nothing else, however the path is written.
func TestNothingElseIsServedBelowTheWatchPrefix(t *testing.T) {
	s := store(t, "raw", noise("data", 22, 1000))
	all := newUser(t, s.namespace, rule("bundles/content", "watch"), rule("bundles/status", "watch"), rule("bundles", "watch"))
	base := "/apis/rukpak.io/v1alpha1/watch/namespaces/" + s.namespace + "/bundles"
	bundle := base + "/" + s.name
	for _, w := range bothWays(t) {
		for _, path := range []string{
			bundle + "/content", bundle, bundle + "/status", base, bundle + "/content/", bundle + "//content",
			base + "/../bundles/" + s.name, base + "/%2e%2e/bundles/" + s.name, base + "%2F" + s.name, bundle + "/content%2F", bundle + "/content/file",
		} {
			for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete, http.MethodGet} {
				if method == http.MethodGet && path == bundle+"/content" {
					continue
				}
				r := w.do(t, method, path, all.token, bytes.NewReader(s.content), "Content-Type", "application/merge-patch+json")
				if r.code != http.StatusMethodNotAllowed && r.code != http.StatusForbidden && r.code != http.StatusNotFound {
					t.Errorf("%s: %s %s is answered with %d: %s", w.name, method, path, r.code, short(r.body))
				}
				if allow := r.header.Values("Allow"); r.code == http.StatusMethodNotAllowed && len(allow) != 1 {
					t.Errorf("%s: %s %s has the fields Allow %q", w.name, method, path, allow)
				}
			}
		}
		r := w.do(t, http.MethodDelete, bundle, all.token, nil).expect(t, http.StatusMethodNotAllowed, "alone")
		if s := r.status(t); s.Reason != "MethodNotAllowed" {
			t.Errorf("%s: Status is %+v", w.name, s)
		}
		s.unchanged(t, w)
	}
	for _, path := range []string{"/openapi/v3/apis/rukpak.io/v1alpha1", "/openapi/v2"} {
		r := direct(t).do(t, http.MethodGet, path, s.user.token, nil, "Accept", "application/json").expect(t, http.StatusOK, "namespaces/{namespace}/bundles/{name}/content")
		if strings.Contains(string(r.body), "v1alpha1/watch/") {
			t.Errorf("%s describes what is not served", path)
		}
	}
}

// What the verb watch reads holds no seat of our server's flow control.
func TestContentBelowTheWatchPrefixHoldsNoSeat(t *testing.T) {
	s := store(t, "raw", noise("data", 23, 32<<20))
	u := newUser(t, s.namespace, rule("bundles/content", "watch"))
	for range 5 {
		req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, shared.server.URL+belowWatch(s.path()), nil))(t)
		req.Header.Set("Authorization", "Bearer "+u.token)
		resp := must(direct(t).client.Do(req))(t)
		t.Cleanup(func() { _ = resp.Body.Close() })
	}
	scraper := newScraper(t, s.namespace)
	eventually(t, "no seat is held", func() string {
		if seats := metric(t, direct(t), scraper, "apiserver_flowcontrol_current_executing_seats", `"exempt"`); seats > 1 { // the scraper's own
			return fmt.Sprintf("%v seats", seats)
		}
		return ""
	})
}
