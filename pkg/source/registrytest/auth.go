// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// tokenPath is where tokens are given.
const tokenPath = "/token"

// token lets its bearer do some things in some repositories.
type token struct {
	user   string
	scopes []string // each REPOSITORY:ACTION
	uses   int      // left, if tokens wear out
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	if r.options.Tokens && req.URL.Path == tokenPath {
		r.giveToken(w, req)
		return
	}
	user, ok := r.user(req)
	if !ok {
		w.Header().Set("WWW-Authenticate", r.challenge(req))
		refuse(w, "authentication required")
		return
	}
	if repository(req) != "" {
		r.mu.Lock()
		r.asked[user]++
		r.mu.Unlock()
	}
	r.content.ServeHTTP(w, req)
}

// refuse answers as the OCI distribution specification has it ("Error Codes").
func refuse(w http.ResponseWriter, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusUnauthorized)
	fmt.Fprintf(w, `{"errors":[{"code":"UNAUTHORIZED","message":%q}]}`, message)
}

// user finds out who makes a request and whether it is let through.
func (r *Registry) user(req *http.Request) (string, bool) {
	if !r.options.Tokens {
		user, password, ok := req.BasicAuth()
		return user, ok && r.knows(user, password)
	}
	id, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return "", false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tokens[id]
	if t == nil {
		return "", false
	}
	if name := repository(req); name != "" && !slices.Contains(t.scopes, name+":"+action(req)) {
		return "", false
	}
	if r.options.TokenUses > 0 && t.user != owner {
		if t.uses--; t.uses < 0 {
			return "", false
		}
	}
	return t.user, true
}

// challenge says how to authenticate (RFC 7235; the token specification of the distribution project).
func (r *Registry) challenge(req *http.Request) string {
	if !r.options.Tokens {
		return `Basic realm="registrytest"`
	}
	scheme := "https"
	if r.options.PlainHTTP {
		scheme = "http"
	}
	challenge := fmt.Sprintf(`Bearer realm="%s://%s%s",service="registrytest"`, scheme, req.Host, tokenPath)
	if name := repository(req); name != "" {
		challenge += fmt.Sprintf(`,scope="repository:%s:%s"`, name, action(req))
	}
	return challenge
}

// giveToken answers a GET with a name and a password, and a POST as OAuth 2.0 has it (RFC 6749, section 4.3).
func (r *Registry) giveToken(w http.ResponseWriter, req *http.Request) {
	user, password, _ := req.BasicAuth()
	if req.Method == http.MethodPost {
		user, password = req.PostFormValue("username"), req.PostFormValue("password")
	}
	if !r.knows(user, password) {
		refuse(w, "incorrect username or password")
		return
	}
	if err := req.ParseForm(); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	t := &token{user: user, uses: r.options.TokenUses}
	for _, list := range req.Form["scope"] {
		for scope := range strings.FieldsSeq(list) {
			t.scopes = append(t.scopes, granted(scope)...)
		}
	}
	id := rand.Text()
	r.mu.Lock()
	r.tokens[id] = t
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"token": id, "access_token": id, "expires_in": 60})
}

// granted splits repository:NAME:ACTION,ACTION.
func granted(scope string) []string {
	rest, ok := strings.CutPrefix(scope, "repository:")
	name, actions, found := strings.Cut(rest, ":")
	if !ok || !found {
		return nil
	}
	var out []string
	for a := range strings.SplitSeq(actions, ",") {
		out = append(out, name+":"+a)
	}
	return out
}

// repository that a request is about, "" for none.
func repository(req *http.Request) string {
	rest, ok := strings.CutPrefix(req.URL.Path, "/v2/")
	if !ok {
		return ""
	}
	for _, kind := range []string{"/manifests/", "/blobs/", "/tags/", "/referrers/"} {
		if name, _, found := strings.Cut(rest, kind); found {
			return name
		}
	}
	return ""
}

func action(req *http.Request) string {
	if req.Method == http.MethodGet || req.Method == http.MethodHead {
		return "pull"
	}
	return "push"
}
