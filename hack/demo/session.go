// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// session shows what a user would type and what comes back.
type session struct {
	dataDir    string
	kubeconfig string // absolute, as is bin: they are for other terminals, too
	bin        string // the folder of the server and of the plugin
	port       int
	env        []string
	err        error // the first; after it nothing runs any more
}

func newSession(o options) (*session, error) {
	kubeconfig, err := filepath.Abs(filepath.Join(o.dataDir, "kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("find the kubeconfig: %w", err)
	}
	bin, err := filepath.Abs(filepath.Dir(o.server))
	if err != nil {
		return nil, fmt.Errorf("find the programs: %w", err)
	}
	// The commands say kubectl, whichever it is.
	path := bin
	if dir := filepath.Dir(o.kubectl); dir != "." {
		path += string(os.PathListSeparator) + dir
	}
	env := append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+path+string(os.PathListSeparator)+os.Getenv("PATH"))
	return &session{dataDir: o.dataDir, kubeconfig: kubeconfig, bin: bin, port: o.port, env: env}, nil
}

// exports is the command by which a shell finds the server and the programs. $PATH is quoted for the shells that split it at spaces.
func (s *session) exports() string {
	return "export KUBECONFIG=" + quote(s.kubeconfig) + " PATH=" + quote(s.bin) + `:"$PATH"`
}

// plain is what a shell takes as it is; a tilde at the beginning it would not.
var plain = regexp.MustCompile(`^[\w./:@,+-]+$`)

// quote writes a word for a shell (POSIX.1-2017, XCU 2.2.2), with quotes only where it needs them.
func quote(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// say prints a remark.
func (s *session) say(format string, args ...any) {
	if s.err == nil {
		fmt.Printf("# "+format+"\n", args...)
	}
}

// shell prints a command, runs it and returns its output, which is printed too.
func (s *session) shell(ctx context.Context, command string) string {
	if s.err != nil {
		return ""
	}
	fmt.Printf("$ %s\n", command)
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, "sh", "-ec", command)
	cmd.Env = s.env
	cmd.Stdout = io.MultiWriter(os.Stdout, &output)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		s.err = fmt.Errorf("%s: %w", command, errors.Join(ctx.Err(), err))
		return ""
	}
	if output.Len() > 0 {
		fmt.Println()
	}
	return strings.TrimSpace(output.String())
}

// explain runs a command that says why the one before it failed, if it did.
func (s *session) explain(ctx context.Context, command string) {
	if s.err == nil || ctx.Err() != nil {
		return
	}
	why := &session{env: s.env}
	why.shell(ctx, command)
	s.err = errors.Join(s.err, why.err)
}

// verify compares the digest of a file with the one that the status gave.
func (s *session) verify(path, want string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return fmt.Errorf("hash %s: %w", path, err)
	}
	if got := "sha256:" + hex.EncodeToString(hash.Sum(nil)); got != want {
		return fmt.Errorf("the content has the digest %s, and status.content.digest is %s", got, want)
	}
	s.say("They are equal.")
	return nil
}

// tryNext prints what to do with the running server.
func (s *session) tryNext(registry string) {
	fmt.Printf(`
The server is running; its log is %[2]s/server.log. In another terminal, try:

  %[1]s
  kubectl get --raw %[3]s | tar xzO manifests/service.yaml
  kubectl get bundle hello -o yaml
  kubectl explain bundle.spec.source
  kubectl get provisionerclasses
  kubectl get bundles --watch

Content of your own, without an image:

  kubectl apply -f artifacts/examples/bundle-upload.yaml
  kubectl replace --raw %[4]s -f %[7]s > /dev/null

Nobody reads it without a credential:

  curl --insecure https://127.0.0.1:%[5]d%[3]s

The registry at %[6]s takes images of yours as long as this runs.
Ctrl-C stops everything; %[2]s stays, and the next run goes on with it.
`, s.exports(), s.dataDir, contentPath, strings.Replace(contentPath, "/hello/", "/uploaded/", 1), s.port, registry, quote(filepath.Join(s.dataDir, "hello.tar.gz")))
}
