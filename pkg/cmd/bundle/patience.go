// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content/listing"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

const (
	// strangerPatience is how long a server is tried to which no connection was ever made: it may be a wrong name or port.
	strangerPatience = 5 * time.Second
	// hiccup is how long something may fail until it is said that it is tried again.
	hiccup = time.Second
)

// patient are bundles whose content is asked for again where that may help, and says so.
type patient struct {
	typed.BundleInterface
	retrying func(typed.Retry) error
}

func (p patient) GetContent(ctx context.Context, name string, opts typed.GetContentOptions) (*typed.Content, error) {
	opts.Retrying = p.retrying
	return p.BundleInterface.GetContent(ctx, name, opts)
}

func (p patient) GetFile(ctx context.Context, name, path string, opts typed.GetFileOptions) (*typed.Content, error) {
	opts.Retrying = p.retrying
	return p.BundleInterface.GetFile(ctx, name, path, opts)
}

func (p patient) ListFiles(ctx context.Context, name, path string, opts typed.ListFilesOptions) iter.Seq2[listing.Entry, error] {
	opts.Retrying = p.retrying
	return p.BundleInterface.ListFiles(ctx, name, path, opts)
}

func (p patient) UploadContent(ctx context.Context, name string, content io.ReaderAt, size int64, opts typed.UploadContentOptions) (*v1alpha1.Bundle, error) {
	opts.Retrying = p.retrying
	return p.BundleInterface.UploadContent(ctx, name, content, size, opts)
}

// trials is what is known of what is tried again.
type trials struct {
	// met means that the server has answered something.
	met atomic.Bool
	// told is since when what was told of last gets no further.
	told time.Time
}

// noting notes that a server answers.
func (t *trials) noting(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil {
			t.met.Store(true)
		}
		return response, err
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// retrying says, once, that something is tried again, and returns the reason in place of that where it is no use.
func (s *session) retrying(r typed.Retry) error {
	if until := r.Since.Add(strangerPatience); !s.trials.met.Load() && unconnected(r.Err) {
		if r.Next.After(until) || unnamed(r.Err) {
			return r.Err
		}
		r.Until = until
	}
	if r.Next.Sub(r.Since) < hiccup || r.Since.Equal(s.trials.told) {
		return nil
	}
	s.trials.told = r.Since
	if isTerminal(s.ErrOut) && !s.quiet {
		// A bar may stand there. Nobody is left to tell of an error.
		_, _ = io.WriteString(s.ErrOut, "\r\x1b[K")
	}
	s.say("trying again, for %s at most: %v", duration.HumanDuration(r.Until.Sub(r.Since)), r.Err)
	return nil
}

// unconnected reports whether no connection could be made.
func unconnected(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && (op.Op == "dial" || op.Op == "proxyconnect")
}

// unnamed reports whether there is no host of that name.
func unnamed(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound
}
