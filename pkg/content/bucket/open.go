// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"gocloud.dev/blob"

	"rukpak.io/apiserver/pkg/content/places"
)

// Options are what an operator need not say.
type Options struct {
	// Call is how long an answer may take, repetitions included; 0 is DefaultCall.
	Call time.Duration
	// Stall is how long a transfer may stand still; 0 is DefaultStall.
	Stall time.Duration
	// Pause is the longest wait before a request is repeated; 0 is DefaultPause.
	Pause time.Duration
	// Wrap, if it is not nil, stands between the client of the object store and its connections.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Open returns the store that a URL names. It does not speak to the object store.
//
//	s3://BUCKET?region=…&endpoint=https://…&use_path_style=true&profile=…&request_checksum_calculation=when_supported
//	gs://BUCKET?endpoint=https://…&universe_domain=…
//	azblob://CONTAINER?storage_account=…&domain=…&protocol=…
//
// Each takes prefix=, in front of the names of all objects, and ca-file=, a PEM file of authorities
// that are trusted besides those of the system. A parameter of another name is an error. Credentials are
// found the usual way of each cloud, and never stand in the URL.
func Open(ctx context.Context, u *url.URL, options Options) (*Store, error) {
	s, err := open(ctx, u, options)
	if err != nil {
		return nil, fmt.Errorf("content store %s://%s: %w", u.Scheme, u.Host, err)
	}
	return s, nil
}

// opener makes the bucket of one kind of object store.
type opener func(ctx context.Context, name string, q *query, t tuning) (*blob.Bucket, cloud, error)

// tuning is how requests are made.
type tuning struct {
	wrap  func(*http.Transport) http.RoundTripper
	pause time.Duration
}

func open(ctx context.Context, u *url.URL, options Options) (*Store, error) {
	openers := map[string]opener{"s3": openS3, "gs": openGS, "azblob": openAzure}
	opener, ok := openers[u.Scheme]
	switch {
	case !ok:
		return nil, fmt.Errorf("unknown scheme %q: s3, gs or azblob", u.Scheme)
	case u.User != nil:
		return nil, errors.New("a URL with a user or a password: credentials do not belong there")
	case u.Host == "":
		return nil, errors.New("the URL names no bucket")
	case strings.Trim(u.Path, "/") != "" || u.Fragment != "":
		return nil, errors.New("behind the bucket only parameters may stand: a folder in it is prefix=")
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	q := &query{values: values}
	prefix := q.text("prefix")
	patient := patience{Call: cmp.Or(options.Call, DefaultCall), Stall: cmp.Or(options.Stall, DefaultStall)}
	release := func() {}
	wrap := func(base *http.Transport) http.RoundTripper {
		release = base.CloseIdleConnections
		var t http.RoundTripper = base
		if options.Wrap != nil {
			t = options.Wrap(t)
		}
		return &watched{base: t, stall: patient.Stall}
	}
	bucket, cloud, err := opener(ctx, u.Host, q, tuning{wrap: wrap, pause: cmp.Or(options.Pause, DefaultPause)})
	if err != nil {
		return nil, err
	}
	if cloud.prefix != nil {
		if err := cloud.prefix(prefix); err != nil {
			return nil, err
		}
	}
	return newStore(bucket, cloud, prefix, patient, release), nil
}

func newStore(bucket *blob.Bucket, cloud cloud, prefix string, patient patience, release func()) *Store {
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return &Store{bucket: bucket, cloud: cloud, prefix: prefix, patient: patient, release: release, uploads: places.New(maxUploads, maxPerTenant), turn: turnTime}
}

// query reads the parameters of a URL, each once.
type query struct {
	values url.Values
	err    error
}

func (q *query) text(name string) string {
	values := q.values[name]
	delete(q.values, name)
	if len(values) > 1 {
		q.err = errors.Join(q.err, fmt.Errorf("parameter %q stands there %d times", name, len(values)))
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

func (q *query) flag(name string) bool {
	text := q.text(name)
	if text == "" {
		return false
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		q.err = errors.Join(q.err, fmt.Errorf("parameter %q: %q is neither true nor false", name, text))
	}
	return value
}

// choice is one of several words, or empty.
func (q *query) choice(name string, words ...string) string {
	text := q.text(name)
	if text != "" && !slices.Contains(words, text) {
		q.err = errors.Join(q.err, fmt.Errorf("parameter %q: %q is none of %s", name, text, strings.Join(words, ", ")))
	}
	return text
}

// address is a URL of a host, or empty.
func (q *query) address(name string) string {
	text := q.text(name)
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		q.err = errors.Join(q.err, fmt.Errorf("parameter %q: %q is not an address as https://HOST:PORT", name, text))
	}
	return text
}

// end returns what was wrong with the parameters; those that nobody asked for are.
func (q *query) end() error {
	var names []string
	for name := range q.values {
		names = append(names, strconv.Quote(name))
	}
	slices.Sort(names)
	if len(names) > 0 {
		q.err = errors.Join(q.err, fmt.Errorf("unknown parameter %s", strings.Join(names, ", ")))
	}
	return q.err
}

// hasStatus reports that an answer of the object store had a code.
func hasStatus(err error, code int) bool {
	var answer interface{ HTTPStatusCode() int }
	return errors.As(err, &answer) && answer.HTTPStatusCode() == code
}
