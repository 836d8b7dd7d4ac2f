// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/cmd/bundle/place"
)

// What this machine does not let be done has a code of its own, and where files are kept is said after Ctrl-C as well.
func TestExplainLocal(t *testing.T) {
	link := func(err error) error { return &os.LinkError{Op: "rename", Old: "a", New: "b", Err: err} }
	requested := func(err error) error {
		return fmt.Errorf("content: %w", &url.Error{Op: "Get", URL: "https://server", Err: err})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name string
		ctx  context.Context
		err  error
		code int
		hint string
	}{
		{"a file", t.Context(), &os.PathError{Op: "open", Path: "a", Err: syscall.EACCES}, ExitLocal, ""},
		{"a renaming", t.Context(), link(syscall.EACCES), ExitLocal, ""},
		{"a renaming to another file system", t.Context(), link(syscall.EXDEV), ExitLocal, "cannot be renamed"},
		{"a renaming of what is in use", t.Context(), link(syscall.EBUSY), ExitLocal, "cannot be renamed"},
		{"no such host", t.Context(), requested(&net.DNSError{Err: "no such host", IsNotFound: true}), ExitUnavailable, "cannot be reached"},
		{"an unknown authority", t.Context(), requested(&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}), ExitUnavailable, "has no certificate"},
		{"no TLS", t.Context(), requested(http.ErrSchemeMismatch), ExitUnavailable, "cannot be reached"},
		{"a pipe of the network", t.Context(), requested(syscall.EPIPE), ExitUnavailable, "cannot be reached"},
		{"no credentials", t.Context(), requested(errors.New("getting credentials: exec: it failed")), ExitNotAllowed, "log in again"},
		{"Ctrl-C", ended, link(syscall.EACCES), ExitInterrupted, ""},
		{"files that are kept, after Ctrl-C", ended, notPlaced(&place.KeptError{Dir: "/here", Err: errors.New("why")}), ExitLocal, "/here"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newSession(streamsTo(io.Discard)).explain(test.ctx, test.err)
			if p.code != test.code || !strings.Contains(p.hint, test.hint) || (p.hint == "") != (test.hint == "") {
				t.Errorf("%d: %v: %s", p.code, p, p.hint)
			}
		})
	}
}

// A request that the server does not understand is a matter of the command, unless it has content.
func TestBadRequests(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "app.tar.gz")
	if err := os.WriteFile(archive, packed(t, "file"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := serveBundle(t, served(), func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/content/conf/") || strings.HasSuffix(r.URL.Path, "/content/conf") {
			_, _ = io.WriteString(w, `{"path":"conf","entries":[`+"\n"+`{"name":"a.txt","type":"File"}`+"\n]}\n")
			return true
		}
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "not understood")
		return true
	})
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"list", "-l", "a=b=c"}, ExitUsage, "not understood"},
		{[]string{"list", "--field-selector", "foo=bar"}, ExitUsage, "not understood"},
		{[]string{"push", "app", archive}, ExitWrongContent, "not understood"},
		{[]string{"push", "app", archive, "--if-digest", "sha256:abc"}, ExitUsage, `"sha256:abc" is no digest`},
		{[]string{"tree", "app", "conf/a.txt"}, ExitNotFound, "hint: kubectl bundle cat app conf/a.txt -s " + url + " -n team prints it"},
		{[]string{"ls", "-R", "app", "conf/a.txt"}, ExitOK, ""},
	} {
		stdout, stderr, code := run(t, append(test.args, "-s", url, "-n", "team")...)
		if code != test.code || !strings.Contains(stderr, test.says) {
			t.Errorf("%v ends with %d: %s%s", test.args, code, stdout, stderr)
		}
	}
}
