// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/cmd/bundle/progress"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

// session is one run of the program: its flags, its streams, and clients that follow from them.
type session struct {
	genericiooptions.IOStreams
	flags *genericclioptions.ConfigFlags
	// given are the flags of flags, nil before there is a command.
	given *pflag.FlagSet
	quiet bool
	// modeless says that a folder on this machine has no modes that are worth comparing.
	modeless bool
	// inside is the bundle, as it was named, of commands for which a 404 may be about a file or a content.
	inside string
	// stdout is Out, the standard output.
	stdout *stdout
	// sends means that it is content that is sent, and that may be why the server refuses something.
	sends  bool
	trials trials
}

func newSession(streams genericiooptions.IOStreams) *session {
	s := &session{IOStreams: streams, flags: genericclioptions.NewConfigFlags(true), modeless: !tarball.KeepsModes, stdout: &stdout{Writer: streams.Out}}
	s.Out = s.stdout
	s.flags.WrapConfigFn = func(c *rest.Config) *rest.Config {
		// One person's requests are few, and the server has limits of its own.
		c.QPS, c.Burst = 50, 100
		c.WarningHandler = rest.NewWarningWriter(&harmless{out: s.ErrOut}, rest.WarningWriterOptions{Deduplicate: true})
		c.Wrap(s.trials.noting)
		return c
	}
	return s
}

// namespace is the one that was chosen.
func (s *session) namespace() (string, error) {
	namespace, _, err := s.flags.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

func (s *session) clientset() (versioned.Interface, error) {
	config, err := s.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	return versioned.NewForConfig(config)
}

// bundles is the client of the bundles in the namespace.
func (s *session) bundles() (typed.BundleInterface, error) {
	client, err := s.clientset()
	if err != nil {
		return nil, err
	}
	namespace, err := s.namespace()
	if err != nil {
		return nil, err
	}
	return patient{client.RukpakV1alpha1().Bundles(namespace), s.retrying}, nil
}

// kubernetes is a client of Kubernetes' own objects. A standalone server has none of them.
func (s *session) kubernetes() (kubernetes.Interface, error) {
	config, err := s.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// say writes a line for people: to the standard error, so that it never gets into what a program reads. Not with --quiet.
func (s *session) say(format string, args ...any) {
	if s.quiet {
		return
	}
	// Nobody is left to tell of an error.
	_, _ = fmt.Fprintln(s.ErrOut, clean(fmt.Sprintf(format, args...)))
}

// print writes a line of output.
func (s *session) print(format string, args ...any) error {
	_, err := fmt.Fprintf(s.output(""), format+"\n", args...)
	return err
}

// meter shows a transfer, unless --quiet says not to.
func (s *session) meter(what string, have, size int64) *progress.Meter {
	if s.quiet {
		return progress.Discard()
	}
	return progress.New(s.ErrOut, clean(what), have, size)
}

// stdout is output, and the first error of it: some of kubectl's printers return none.
type stdout struct {
	io.Writer
	err error
}

// Write is an io.Writer's.
func (w *stdout) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil && w.err == nil {
		w.err = err
	}
	return n, err
}

// isTerminal reports whether a stream is one that a person looks at.
func isTerminal(stream any) bool {
	if w, ok := stream.(*stdout); ok {
		stream = w.Writer
	}
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// closing closes something that was only read.
func closing(c io.Closer) { _ = c.Close() }
