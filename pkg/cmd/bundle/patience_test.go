// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// What can help is tried again, and said once; what cannot is not.
func TestRetrying(t *testing.T) {
	since := time.Now()
	dial := func(err error) error {
		return fmt.Errorf("content: %w", &url.Error{Op: "Get", URL: "https://server", Err: &net.OpError{Op: "dial", Net: "tcp", Err: err}})
	}
	refused := dial(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	unknown := dial(&net.DNSError{Err: "no such host", Name: "server", IsNotFound: true})
	confused := dial(&net.DNSError{Err: "server misbehaving", Name: "server", IsTemporary: true})
	for _, test := range []struct {
		name  string
		met   bool
		err   error
		next  time.Duration
		ends  bool
		until string // what is said of it, if something is
	}{
		{name: "a moment", err: refused, next: 100 * time.Millisecond},
		{name: "nobody there", err: refused, next: 2 * time.Second, until: "5s"},
		{name: "nobody there for long", err: refused, next: 6 * time.Second, ends: true},
		{name: "nobody there any more", met: true, err: refused, next: 6 * time.Second, until: "2m"},
		{name: "no such host", err: unknown, next: 100 * time.Millisecond, ends: true},
		{name: "no such host any more", met: true, err: unknown, next: 2 * time.Second, until: "2m"},
		{name: "no names at the moment", err: confused, next: 2 * time.Second, until: "5s"},
		{name: "an answer", err: errors.New("unable to handle the request"), next: 6 * time.Second, until: "2m"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var said bytes.Buffer
			s := newSession(streamsTo(&said))
			s.trials.met.Store(test.met)
			for range 2 {
				err := s.retrying(typed.Retry{Err: test.err, Since: since, Next: since.Add(test.next), Until: since.Add(2 * time.Minute)})
				if (err != nil) != test.ends || err != nil && err != test.err {
					t.Errorf("it is ended with %v", err)
				}
			}
			want := ""
			if test.until != "" {
				want = "trying again, for " + test.until + " at most: " + test.err.Error() + "\n"
			}
			if said.String() != want {
				t.Errorf("it says %q, not %q", said.String(), want)
			}
		})
	}
}

// Whoever waits for a server that is away is told, and of one that is not wanted to be silent nothing is hidden from the output.
func TestReadsSayThatTheyWait(t *testing.T) {
	asked := 0
	url := serveBundle(t, served(), func(w http.ResponseWriter, _ *http.Request) bool {
		if asked++; asked == 1 {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "away", http.StatusServiceUnavailable)
			return true
		}
		w.Header().Set("ETag", `"`+digestOf([]byte("text"))+`"`)
		w.Header().Set("Content-Length", "4")
		_, _ = w.Write([]byte("text"))
		return true
	})
	stdout, stderr, code := run(t, "cat", "app", "file", "-s", url, "-n", "team")
	if code != ExitOK || stdout != "text" || asked != 2 || strings.Count(stderr, "trying again, for 2m at most: ") != 1 {
		t.Errorf("it ends with %d after %d requests: %s%s", code, asked, stdout, stderr)
	}
}

// The command of the kubeconfig that gives credentials, which may ask a person, is run once.
func TestCredentialsThatCannotBeHad(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("it is a script")
	}
	dir := t.TempDir()
	config, runs := filepath.Join(dir, "config"), filepath.Join(dir, "runs")
	text := `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: team}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users:
- name: u
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      interactiveMode: Never
      command: sh
      args: [-c, "echo run >>` + runs + `; exit 1"]
`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "app.tar.gz")
	if err := os.WriteFile(archive, packed(t, "file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"cat", "app", "file"}, {"ls", "app"}, {"pull", "app", "-"}, {"push", "app", archive}, {"list"}} {
		if err := os.RemoveAll(runs); err != nil {
			t.Fatal(err)
		}
		_, stderr, code := run(t, append(args, "--kubeconfig", config)...)
		ran, err := os.ReadFile(runs)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(ran), "run"); code != ExitNotAllowed || n != 1 || !strings.Contains(stderr, "hint: the command of the kubeconfig") {
			t.Errorf("%s ends with %d after %d runs: %s", args[0], code, n, stderr)
		}
	}
}
