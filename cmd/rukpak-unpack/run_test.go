// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// answer is one turn of the server; what it returns is checked by nobody but the client.
type answer func(w http.ResponseWriter, r *http.Request)

func status(code int, message string) answer {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","message":%q,"code":%d}`, message, code)
	}
}

// take reads the content and checks that it is canonical, as the server does.
func take(t *testing.T) answer {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := tarball.Verify(r.Context(), r.Body, tarball.Limits{}, nil); err != nil {
			t.Errorf("the content is not canonical: %v", err)
		}
		w.WriteHeader(http.StatusCreated)
	}
}

func breakOff(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// harness is a server that gives one answer after the other, and an environment
// that points at it.
type harness struct {
	server  *httptest.Server
	env     map[string]string
	turns   atomic.Int32
	reports []contract.Report
}

func newHarness(t *testing.T, answers ...answer) *harness {
	h := &harness{}
	h.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		turn := int(h.turns.Add(1))
		if r.Method != http.MethodPut || r.ProtoMajor != 1 || r.ContentLength != -1 ||
			r.Header.Get("Content-Type") != tarball.MediaType || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer token") {
			t.Errorf("turn %d: %s %s length %d, headers %v", turn, r.Method, r.Proto, r.ContentLength, r.Header)
		}
		answers[min(turn, len(answers))-1](w, r)
	}))
	h.server.EnableHTTP2 = true
	h.server.StartTLS()
	t.Cleanup(h.server.Close)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "token-1\n")
	root := filepath.Join(dir, "root")
	write(t, filepath.Join(root, "manifests", "a.yaml"), "kind: A\n")
	write(t, filepath.Join(root, "manifests", "sub", "b.yaml"), "kind: B\n")
	h.env = map[string]string{
		contract.EnvURL:             h.server.URL + "/content",
		contract.EnvServerName:      "example.com",
		contract.EnvCA:              string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.server.Certificate().Raw})),
		contract.EnvTokenFile:       filepath.Join(dir, "token"),
		contract.EnvRoot:            root,
		contract.EnvPath:            "/manifests",
		contract.EnvCompressedBytes: "1000000",
		contract.EnvBytes:           "1000000",
		contract.EnvFiles:           "10",
		contract.EnvTimeout:         "1m",
	}
	return h
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (h *harness) run(ctx context.Context) int {
	return runCommand(ctx, func(name string) string { return h.env[name] }, func(r contract.Report) { h.reports = append(h.reports, r) })
}

// last is the report that stays in the termination log.
func (h *harness) last() contract.Report {
	if len(h.reports) == 0 {
		return contract.Report{}
	}
	return h.reports[len(h.reports)-1]
}

func TestRun(t *testing.T) {
	for name, test := range map[string]struct {
		answers []answer
		turns   int
		code    int
		reason  string
		words   string
	}{
		"taken":             {answers: []answer{take(t)}, turns: 1},
		"taken before":      {answers: []answer{status(200, "")}, turns: 1},
		"not recorded yet":  {answers: []answer{status(409, "pod not recorded"), status(409, "pod not recorded"), take(t)}, turns: 3},
		"busy":              {answers: []answer{status(429, "slow down"), status(503, "starting"), take(t)}, turns: 3},
		"token not known":   {answers: []answer{status(401, "Unauthorized"), take(t)}, turns: 2},
		"broken connection": {answers: []answer{breakOff, take(t)}, turns: 2},
		"too large":         {answers: []answer{status(413, "larger than 1 byte")}, turns: 1, code: 1, reason: contract.ReasonLimitExceeded, words: "larger than 1 byte"},
		"refused":           {answers: []answer{status(422, `file "x" is no manifest`)}, turns: 1, code: 1, reason: contract.ReasonContentRefused, words: `file "x" is no manifest`},
		"bad request":       {answers: []answer{status(400, "no tar")}, turns: 1, code: 1, reason: contract.ReasonContentRefused, words: "no tar"},
		"not allowed":       {answers: []answer{status(403, "another attempt")}, turns: 1, code: 1, reason: contract.ReasonUploadFailed, words: "another attempt"},
		"over quota": {answers: []answer{func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			io.WriteString(w, `{"message":"bundle: exceeded quota","details":{"causes":[{"reason":"ContentQuotaExceeded","message":"exceeded quota: 1 byte"}]}}`)
		}}, turns: 1, code: 1, reason: contract.ReasonContentQuotaExceeded, words: "exceeded quota: 1 byte"},
		"redirect": {answers: []answer{func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}}, turns: 1, code: 1, reason: contract.ReasonUploadFailed, words: "307"},
		"no words": {answers: []answer{func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }}, turns: 1, code: 1, reason: contract.ReasonUploadFailed, words: "Not Found"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, test.answers...)
			if code := h.run(t.Context()); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if got := int(h.turns.Load()); got != test.turns {
				t.Errorf("%d tries, want %d", got, test.turns)
			}
			if test.code == 0 {
				return
			}
			if r := h.last(); r.Reason != test.reason || !strings.Contains(r.Message, test.words) {
				t.Errorf("report %+v, want %s with %q", r, test.reason, test.words)
			}
		})
	}
}

func TestRunReadsTheTokenAnew(t *testing.T) {
	var h *harness
	var seen []string
	renew := func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		write(t, h.env[contract.EnvTokenFile], "token-2")
		w.WriteHeader(http.StatusConflict)
	}
	h = newHarness(t, renew, func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		take(t)(w, r)
	})
	if code := h.run(t.Context()); code != 0 {
		t.Fatalf("exit code %d, %+v", code, h.last())
	}
	if want := []string{"Bearer token-1", "Bearer token-2"}; fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Errorf("tokens %q, want %q", seen, want)
	}
}

func TestRunGivesUpAtItsDeadlineWithTheLastError(t *testing.T) {
	h := newHarness(t, status(503, "starting"))
	h.env[contract.EnvTimeout] = "300ms"
	if code := h.run(t.Context()); code != 1 {
		t.Fatalf("exit code %d", code)
	}
	if r := h.last(); r.Reason != contract.ReasonUploadFailed || !strings.Contains(r.Message, "starting") {
		t.Errorf("report %+v", r)
	}
}

// TestRunGivesUpAServerThatIsNotReached ends long before the deadline of the run, so that its report is heard.
func TestRunGivesUpAServerThatIsNotReached(t *testing.T) {
	h := newHarness(t, take(t))
	h.server.Close()
	h.env[contract.EnvTimeout] = "2s"
	if code := h.run(t.Context()); code != 1 {
		t.Fatalf("exit code %d", code)
	}
	if r := h.last(); r.Reason != contract.ReasonServerUnreachable || !strings.Contains(r.Message, "NetworkPolicy") || !strings.Contains(r.Message, "tried for") {
		t.Errorf("report %+v", r)
	}
	if len(h.reports) < 2 {
		t.Errorf("it was not tried again: %+v", h.reports)
	}
}

func TestRunTrustsNoOtherServer(t *testing.T) {
	for name, change := range map[string]func(h *harness){
		"name": func(h *harness) {
			h.env[contract.EnvServerName] = "rukpak-apiserver.rukpak-system.svc"
		},
		"CA": func(h *harness) { h.env[contract.EnvCA] = otherCA(t) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, take(t))
			change(h)
			h.env[contract.EnvTimeout] = "300ms"
			if code := h.run(t.Context()); code != 1 || h.turns.Load() != 0 {
				t.Errorf("exit code %d after %d tries", code, h.turns.Load())
			}
			if r := h.last(); !strings.Contains(r.Message, "x509") && !strings.Contains(r.Message, "certificate") {
				t.Errorf("report %+v", r)
			}
		})
	}
}

func TestRunUsesNoProxy(t *testing.T) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "ALL_PROXY"} {
		t.Setenv(name, "http://127.0.0.1:1")
	}
	h := newHarness(t, take(t))
	if code := h.run(t.Context()); code != 0 {
		t.Errorf("exit code %d, %+v", code, h.last())
	}
}

func TestRunEndsWhenItIsTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := newHarness(t, func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	if code := h.run(ctx); code != 1 {
		t.Errorf("exit code %d", code)
	}
}

func TestRunRefusesBadContent(t *testing.T) {
	drain := func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			t.Error("the body of a failed pack ended as if it were whole")
		}
		panic(http.ErrAbortHandler)
	}
	for name, test := range map[string]struct {
		prepare func(t *testing.T, h *harness, manifests string)
		reason  string
		words   string
	}{
		"link that leaves": {func(t *testing.T, _ *harness, dir string) {
			if err := os.Symlink("/etc/passwd", filepath.Join(dir, "leak")); err != nil {
				t.Fatal(err)
			}
		}, contract.ReasonContentRefused, "leak"},
		"no such path":   {func(_ *testing.T, h *harness, _ string) { h.env[contract.EnvPath] = "/absent" }, contract.ReasonContentRefused, "absent"},
		"path is a file": {func(_ *testing.T, h *harness, _ string) { h.env[contract.EnvPath] = "/manifests/a.yaml" }, contract.ReasonContentRefused, "not a directory"},
		"too many files": {func(_ *testing.T, h *harness, _ string) { h.env[contract.EnvFiles] = "1" }, contract.ReasonLimitExceeded, "more than 1 files"},
		"empty root":     {func(t *testing.T, h *harness, _ string) { h.env[contract.EnvRoot] = t.TempDir() }, contract.ReasonImageEmpty, "not one file"},
		"no such root":   {func(_ *testing.T, h *harness, _ string) { h.env[contract.EnvRoot] = "/nonexistent/root" }, contract.ReasonContentUnreadable, "nonexistent"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, drain)
			test.prepare(t, h, filepath.Join(h.env[contract.EnvRoot], "manifests"))
			if code := h.run(t.Context()); code != 1 {
				t.Errorf("exit code %d", code)
			}
			if r := h.last(); r.Reason != test.reason || !strings.Contains(r.Message, test.words) {
				t.Errorf("report %+v, want %s with %q", r, test.reason, test.words)
			}
			if n := h.turns.Load(); n > 1 {
				t.Errorf("%d tries of what cannot be mended", n)
			}
		})
	}
}

func TestUnreadableFileNamesTheRemedy(t *testing.T) {
	f := packFailure(&tarball.EntryError{Entry: "secret", Reason: "cannot be read", Err: &os.PathError{Op: "open", Path: "secret", Err: os.ErrPermission}})
	if f.retry || f.reason != contract.ReasonContentUnreadable ||
		!strings.Contains(f.Error(), `"secret"`) || !strings.Contains(f.Error(), "runAsUser") {
		t.Errorf("%s: %v", f.reason, f)
	}
}

// TestRunStreams checks that the first bytes are sent before the last are packed, and that
// an answer in between is heard.
func TestRunStreams(t *testing.T) {
	if testing.Short() {
		t.Skip("packs 64 MiB")
	}
	started := make(chan struct{})
	h := newHarness(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadFull(r.Body, make([]byte, 64<<10)); err != nil {
			t.Errorf("read: %v", err)
		}
		close(started)
		status(413, "enough")(w, r)
	})
	for name, v := range map[string]string{contract.EnvBytes: "1000000000", contract.EnvCompressedBytes: "1000000000"} {
		h.env[name] = v
	}
	random, err := os.Open("/dev/urandom")
	if err != nil {
		t.Fatal(err)
	}
	defer random.Close()
	large, err := os.Create(filepath.Join(h.env[contract.EnvRoot], "manifests", "big"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(large, random, 64<<20); err != nil {
		t.Fatal(err)
	}
	if err := large.Close(); err != nil {
		t.Fatal(err)
	}
	if code := h.run(t.Context()); code != 1 {
		t.Errorf("exit code %d", code)
	}
	<-started
	// The refusal came while the body was under way, and was heard.
	if r := h.last(); r.Reason != contract.ReasonLimitExceeded || r.Message == "" {
		t.Errorf("report %+v after %d tries", r, h.turns.Load())
	}
}

func TestConfigNamesTheVariable(t *testing.T) {
	for name, value := range map[string]string{
		contract.EnvURL: "http://plain.example", contract.EnvServerName: "", contract.EnvCA: "no PEM", contract.EnvTokenFile: "",
		contract.EnvRoot: "", contract.EnvBytes: "-1", contract.EnvFiles: "many", contract.EnvCompressedBytes: "", contract.EnvTimeout: "0s",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, take(t))
			h.env[name] = value
			if code := h.run(t.Context()); code != 1 {
				t.Errorf("exit code %d", code)
			}
			if r := h.last(); r.Reason != contract.ReasonInvalidConfiguration || !strings.Contains(r.Message, name) {
				t.Errorf("report %+v does not name %s", r, name)
			}
		})
	}
}

func TestTerminationLogKeepsTheLastReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	report := terminationLog(path)
	report(contract.Report{Reason: contract.ReasonUploadFailed, Message: strings.Repeat("long ", 2000)})
	report(contract.Report{Reason: contract.ReasonContentRefused, Message: "short"})
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := contract.ParseReport(string(data)); err != nil || r.Reason != contract.ReasonContentRefused || r.Message != "short" {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	program, path := filepath.Join(dir, "program"), filepath.Join(dir, "copy")
	write(t, program, "#!/bin/true")
	for range 2 { // a container may be started twice
		if err := install(program, path); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o755 || info.Size() != 11 {
		t.Errorf("%v, %v", info, err)
	}
	if err := install(program, filepath.Join(dir, "absent", "copy")); err == nil {
		t.Error("no error for a folder that does not exist")
	}
}

func TestCommands(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
	}{
		{[]string{"exit"}, 0}, {nil, 2}, {[]string{"install"}, 2}, {[]string{"what"}, 2}, {[]string{"exit", "now"}, 2},
		{[]string{"install", "/nonexistent/folder/unpack"}, 1},
	} {
		if code := command(t.Context(), test.args); code != test.code {
			t.Errorf("%v: exit code %d, want %d", test.args, code, test.code)
		}
	}
}

// otherCA makes the certificate of nobody that is asked here.
func otherCA(t *testing.T) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
