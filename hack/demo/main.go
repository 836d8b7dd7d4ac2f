// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo does the main job once in front of the user: it starts a
// standalone server, and an image becomes a Bundle whose content is read with
// kubectl. Then it keeps the server running until Ctrl-C.
//
// It exits with 0 when the job is done and it was asked to stop, with 1 when
// something went wrong, with 2 when it was called wrongly, and with 130 when it
// was interrupted in the middle.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"rukpak.io/apiserver/pkg/flock"
)

const exitInterrupted = 130

// options are the flags.
type options struct {
	once    bool
	server  string
	kubectl string
	dataDir string
	port    int
}

func main() {
	var o options
	flag.BoolVar(&o.once, "once", false, "end after the job instead of serving until Ctrl-C")
	flag.StringVar(&o.server, "server", "_output/bin/rukpak-apiserver", "the server's program")
	flag.StringVar(&o.kubectl, "kubectl", "kubectl", "the kubectl program")
	flag.StringVar(&o.dataDir, "data-dir", "_output/standalone", "where the server keeps its data; what is there already is used on")
	flag.IntVar(&o.port, "port", 6444, "port of the server on 127.0.0.1")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "error: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err == nil:
		return
	case interrupted && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "interrupted")
		os.Exit(exitInterrupted)
	default:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if err := portIsFree(o.port); err != nil {
		return err
	}
	if err := os.MkdirAll(o.dataDir, 0o700); err != nil {
		return fmt.Errorf("make the data dir: %w", err)
	}
	lock, err := lockDataDir(o.dataDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	images, err := serveRegistry()
	if err != nil {
		return err
	}
	defer images.close()
	reference, err := images.pushExample(ctx)
	if err != nil {
		return err
	}
	server, err := startServer(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	s, err := newSession(o)
	if err != nil {
		return err
	}
	s.say("A registry in this process serves an example image with manifests/ inside,")
	s.say("and %s --standalone is starting.", o.server)
	if err := server.ready(ctx); err != nil {
		return err
	}
	if err := mainJob(ctx, s, reference); err != nil {
		return err
	}
	if o.once {
		return nil
	}
	s.tryNext(images.host)
	select {
	case <-ctx.Done():
		return nil
	case <-server.done:
		return server.died()
	}
}

// portIsFree says in plain words what the server would say in its log.
func portIsFree(port int) error {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d of 127.0.0.1 is in use, perhaps by a server that was started before: stop it, or choose another one: hack/run.sh --port NUMBER", port)
	}
	if err != nil {
		return fmt.Errorf("port %d of 127.0.0.1 cannot be used: %w", port, err)
	}
	return listener.Close()
}

// lockDataDir keeps two runs from using one data dir: the second server would
// wait for the database without a word. Closing the file ends the lock, as does
// the end of the process.
func lockDataDir(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "demo.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data dir: %w", err)
	}
	if err := flock.Try(file, flock.Exclusive); err != nil {
		file.Close()
		if errors.Is(err, flock.ErrBusy) {
			return nil, fmt.Errorf("%s is in use by another run: stop it, or choose another folder with --data-dir", dir)
		}
		return nil, fmt.Errorf("lock the data dir: %w", err)
	}
	return file, nil
}

// mainJob makes a Bundle of the image and reads its content.
func mainJob(ctx context.Context, s *session, reference string) error {
	bundle := filepath.Join(s.dataDir, "hello.yaml")
	if err := os.WriteFile(bundle, []byte(bundleFor(reference)), 0o600); err != nil {
		return fmt.Errorf("write the example bundle: %w", err)
	}
	archive := filepath.Join(s.dataDir, "hello.tar.gz")
	s.shell(ctx, s.exports())
	s.say("The Bundle names the image:")
	s.shell(ctx, "cat "+quote(bundle))
	s.shell(ctx, "kubectl apply -f "+quote(bundle))
	s.shell(ctx, "kubectl wait --for=condition=Ready bundle/hello --timeout=60s")
	s.explain(ctx, `kubectl get bundle hello -o jsonpath='{.status.conditions[?(@.type=="Ready")].message}{"\n"}'`)
	s.shell(ctx, "kubectl get bundles -o wide")
	s.say("Its content is a subresource, so reading it takes the RBAC verb get on bundles/content:")
	s.shell(ctx, "kubectl get --raw "+contentPath+" > "+quote(archive))
	s.shell(ctx, "tar tzvf "+quote(archive))
	s.say("The bytes are those whose digest the status holds:")
	s.shell(ctx, "sha256sum "+quote(archive))
	digest := s.shell(ctx, `kubectl get bundle hello -o jsonpath='{.status.content.digest}{"\n"}'`)
	if s.err != nil {
		return s.err
	}
	return s.verify(archive, digest)
}

const contentPath = "/apis/rukpak.io/v1alpha1/namespaces/default/bundles/hello/content"

func bundleFor(reference string) string {
	return `apiVersion: rukpak.io/v1alpha1
kind: Bundle
metadata:
  name: hello
  namespace: default
spec:
  provisionerClassName: plain
  source:
    type: Image
    image:
      reference: ` + reference + "\n"
}
