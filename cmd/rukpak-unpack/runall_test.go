// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// several points a harness at several bundles, named by their numbers, each with files of its own.
func (h *harness) several(t *testing.T, count int) {
	t.Helper()
	var jobs []contract.Job
	for i := range count {
		root := t.TempDir()
		write(t, filepath.Join(root, "manifests", fmt.Sprintf("%d.yaml", i)), fmt.Sprintf("kind: K%d\n", i))
		jobs = append(jobs, contract.Job{URL: fmt.Sprintf("%s/%d/content", h.server.URL, i), Root: root, Path: "/manifests", TraceParent: fmt.Sprint("span-", i)})
	}
	data, err := json.Marshal(jobs)
	if err != nil {
		t.Fatal(err)
	}
	h.env[contract.EnvJobs] = string(data)
	for _, name := range []string{contract.EnvURL, contract.EnvRoot, contract.EnvPath} {
		delete(h.env, name)
	}
}

func (h *harness) runAll(t *testing.T) int {
	return runAllCommand(t.Context(), func(name string) string { return h.env[name] }, func(r contract.Report) { h.reports = append(h.reports, r) })
}

// byBundle answers for each bundle by its own rule, and takes what has none. It returns what it took: digests by path.
func byBundle(t *testing.T, rules map[string]answer) (answer, func() map[string]string) {
	var mu sync.Mutex
	taken := map[string]string{}
	return func(w http.ResponseWriter, r *http.Request) {
			if rule := rules[r.URL.Path]; rule != nil {
				rule(w, r)
				return
			}
			summary, err := tarball.Verify(r.Context(), r.Body, tarball.Limits{}, nil)
			if err != nil {
				t.Errorf("content of %s: %v", r.URL.Path, err)
			}
			if want := "span-" + strings.Trim(strings.TrimSuffix(r.URL.Path, "content"), "/"); r.Header.Get("traceparent") != want {
				t.Errorf("content of %s belongs to %q, want %q", r.URL.Path, r.Header.Get("traceparent"), want)
			}
			mu.Lock()
			defer mu.Unlock()
			taken[r.URL.Path] = summary.Digest
			w.WriteHeader(http.StatusCreated)
		}, func() map[string]string {
			mu.Lock()
			defer mu.Unlock()
			return taken
		}
}

func TestRunAllSendsEachItsOwn(t *testing.T) {
	serve, taken := byBundle(t, nil)
	h := newHarness(t, serve)
	h.several(t, 5)
	if code := h.runAll(t); code != 0 || len(h.reports) > 0 {
		t.Fatalf("exit code %d, reports %v", code, h.reports)
	}
	digests := map[string]bool{}
	for _, digest := range taken() {
		digests[digest] = true
	}
	if len(taken()) != 5 || len(digests) != 5 {
		t.Errorf("taken were %v", taken())
	}
}

// What goes wrong with some keeps none of the others from being sent.
func TestRunAllGoesOn(t *testing.T) {
	ended := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"message":"it has ended","details":{"causes":[{"reason":"AttemptEnded","message":"it has ended"}]}}`)
	}
	serve, taken := byBundle(t, map[string]answer{
		"/0/content": status(http.StatusUnprocessableEntity, "no manifest"),
		"/1/content": ended,
		"/2/content": status(http.StatusForbidden, "another attempt"),
	})
	h := newHarness(t, serve)
	h.several(t, 6)
	if code := h.runAll(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if len(taken()) != 3 {
		t.Errorf("taken were %v", taken())
	}
	message := h.last().Message
	for _, words := range []string{"3 of 6 bundles", "no manifest", "/1/content", "/2/content"} {
		if !strings.Contains(message, words) {
			t.Errorf("the report %q does not say %q", message, words)
		}
	}
	// Of an attempt that has ended nothing is tried again.
	if turns := h.turns.Load(); turns != 6 {
		t.Errorf("%d requests", turns)
	}
}

func TestRunAllRefusesItsConfiguration(t *testing.T) {
	for name, change := range map[string]func(h *harness){
		"no jobs":       func(h *harness) { delete(h.env, contract.EnvJobs) },
		"an empty list": func(h *harness) { h.env[contract.EnvJobs] = "[]" },
		"no list":       func(h *harness) { h.env[contract.EnvJobs] = "{}" },
		"no URL":        func(h *harness) { h.env[contract.EnvJobs] = `[{"root":"/"}]` },
		"no TLS":        func(h *harness) { h.env[contract.EnvJobs] = `[{"root":"/","url":"http://a/b"}]` },
		"no limit":      func(h *harness) { delete(h.env, contract.EnvBytes) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, take(t))
			h.several(t, 1)
			change(h)
			if code := h.runAll(t); code != 1 || h.last().Reason != contract.ReasonInvalidConfiguration || h.turns.Load() != 0 {
				t.Errorf("exit code %d, %d requests, report %v", code, h.turns.Load(), h.last())
			}
		})
	}
}
