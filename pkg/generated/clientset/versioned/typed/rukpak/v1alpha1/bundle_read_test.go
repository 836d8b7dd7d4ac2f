// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/content/listing"
)

// server answers each request for content by RFC 9110, unless it is told to fail.
type server struct {
	content []byte
	// faults are for the requests in turn; those after the last one go well.
	faults []fault
	// requests are what came: path, Range and If-Range.
	requests []string
	// old says that it does not know how to go on in a list, of which each entry has a line.
	old bool
}

// fault is what goes wrong with a request.
type fault struct {
	err   error         // there is no answer
	code  int           // an answer without content
	after string        // its Retry-After
	cut   int           // how many bytes come until it breaks off
	stall bool          // or until nothing comes any more
	ends  bool          // or until it ends, as if that were all
	part  string        // the Content-Range of the answer
	other bool          // other content is served by now
	takes time.Duration // until the answer
}

func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	s.requests = append(s.requests, strings.TrimSpace(req.URL.RequestURI()+" "+req.Header.Get("Range")+" "+req.Header.Get("If-Range")))
	var f fault
	if n := len(s.requests); n <= len(s.faults) {
		f = s.faults[n-1]
	} else {
		f.cut = -1
	}
	if f.takes > 0 {
		select {
		case <-time.After(f.takes):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	answer := httptest.NewRecorder()
	if f.code != 0 {
		answer.Header().Set("Retry-After", f.after)
		answer.WriteHeader(f.code)
		return answer.Result(), nil
	}
	content := s.content
	if f.other {
		content = append([]byte("other"), content...)
	}
	tag, kind := strconv.Quote(digestOf(content)), "application/gzip"
	if strings.HasSuffix(req.URL.Path, "/") {
		tag, kind = "W/"+tag, listing.MediaType
	}
	answer.Header().Set("ETag", tag)
	answer.Header().Set("Content-Type", kind)
	if after := req.URL.Query().Get("after"); after != "" && !s.old {
		_, rest, _ := bytes.Cut(content, []byte(`"name":"`+after+`"`))
		_, rest, _ = bytes.Cut(rest, []byte("\n"))
		content = slices.Concat([]byte(`{"entries":[`), rest)
	}
	http.ServeContent(answer, req, "", time.Time{}, bytes.NewReader(content))
	res := answer.Result()
	if f.part != "" {
		res.Header.Set("Content-Range", f.part)
	}
	res.ContentLength = int64(answer.Body.Len())
	if f.cut >= 0 {
		reader, writer := io.Pipe()
		whole := res.Body
		context.AfterFunc(req.Context(), func() { _ = writer.CloseWithError(req.Context().Err()) })
		go func() {
			_, _ = io.CopyN(writer, whole, int64(f.cut))
			switch {
			case f.ends:
				_ = writer.Close()
			case !f.stall:
				_ = writer.CloseWithError(io.ErrUnexpectedEOF)
			}
		}()
		res.Body = reader
	}
	return res, nil
}

func digestOf(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func (s *server) bundles(t *testing.T) BundleInterface {
	t.Helper()
	c, err := NewForConfigAndClient(&rest.Config{Host: "http://server.invalid"}, &http.Client{Transport: s})
	if err != nil {
		t.Fatal(err)
	}
	return c.Bundles("team")
}

const contentPath = "/apis/rukpak.io/v1alpha1/namespaces/team/bundles/app/content"

func TestGetContentGoesOnWhereItWasCut(t *testing.T) {
	content := []byte(strings.Repeat("0123456789", 10))
	digest := digestOf(content)
	rest := func(path string, from int, to string) string {
		return path + "?digest=" + strings.Replace(digest, ":", "%3A", 1) + " bytes=" + strconv.Itoa(from) + "-" + to + " " + strconv.Quote(digest)
	}
	below := strings.Replace(contentPath, "/v1alpha1/", "/v1alpha1/watch/", 1)
	refused := errors.New("connection refused")
	for name, test := range map[string]struct {
		opts     GetContentOptions
		faults   []fault
		want     []byte
		requests []string
		waits    time.Duration // at least
	}{
		"nothing goes wrong": {requests: []string{contentPath}},
		"cut twice":          {faults: []fault{{cut: 40}, {cut: 30}}, requests: []string{contentPath, rest(contentPath, 40, "99"), rest(contentPath, 70, "99")}},
		"cut at once":        {faults: []fault{{cut: 0}}, requests: []string{contentPath, contentPath + rest("", 0, "99")}},
		"cut at the end":     {faults: []fault{{cut: 100}}, requests: []string{contentPath}},
		"nothing comes":      {faults: []fault{{cut: 50, stall: true}}, requests: []string{contentPath, rest(contentPath, 50, "99")}, waits: readStall},
		"no server at first": {faults: []fault{{err: refused}, {code: 503}}, requests: []string{contentPath, contentPath, contentPath}},
		"no server then":     {faults: []fault{{cut: 10}, {err: refused}, {code: 502}, {code: 500}}, requests: []string{contentPath, rest(contentPath, 10, "99"), rest(contentPath, 10, "99"), rest(contentPath, 10, "99"), rest(contentPath, 10, "99")}},
		"too many":           {faults: []fault{{code: 429, after: "7"}}, requests: []string{contentPath, contentPath}, waits: 7 * time.Second},
		"below watch":        {opts: GetContentOptions{BelowWatch: true}, faults: []fault{{cut: 10}}, requests: []string{below, rest(below, 10, "99")}},
		"a part": {opts: GetContentOptions{Offset: 20, Length: 50}, faults: []fault{{cut: 30}}, want: content[20:70],
			requests: []string{contentPath + " bytes=20-69", rest(contentPath, 50, "69")}},
		"a part of a part": {opts: GetContentOptions{Offset: 20, Length: 50}, faults: []fault{{cut: 30, ends: true, part: "bytes 20-49/100"}}, want: content[20:70],
			requests: []string{contentPath + " bytes=20-69", rest(contentPath, 50, "69")}},
		"the rest": {opts: GetContentOptions{Offset: 20, IfDigest: digest}, faults: []fault{{cut: 30}}, want: content[20:],
			requests: []string{contentPath + " bytes=20-", rest(contentPath, 50, "99")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := &server{content: content, faults: test.faults}
				c, err := s.bundles(t).GetContent(t.Context(), "app", test.opts)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(c)
				if want := test.want; err != nil || !bytes.Equal(got, want) && (want != nil || !bytes.Equal(got, content)) {
					t.Errorf("%d bytes: %v", len(got), err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if !slices.Equal(s.requests, test.requests) {
					t.Errorf("requests were\n%s\nwant\n%s", strings.Join(s.requests, "\n"), strings.Join(test.requests, "\n"))
				}
				if took := time.Since(began); took < test.waits || test.waits == 0 && took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

func TestGetContentGivesUp(t *testing.T) {
	content := []byte(strings.Repeat("0123456789", 10))
	refused := errors.New("connection refused")
	for name, test := range map[string]struct {
		opts    GetContentOptions
		fault   fault // of all requests
		first   fault // of the first one
		want    func(error) bool
		atLeast time.Duration
		atMost  time.Duration
	}{
		"no server":          {fault: fault{err: refused}, first: fault{err: refused}, want: isError(refused), atLeast: readPatience - readMaxPause, atMost: readPatience},
		"no server any more": {fault: fault{err: refused}, first: fault{cut: 10}, want: isError(refused), atLeast: readPatience - readMaxPause, atMost: readPatience},
		"always cut at once": {first: fault{cut: 10}, want: isError(io.ErrUnexpectedEOF), atLeast: readPatience - readMaxPause, atMost: readPatience},
		"never a byte":       {first: fault{stall: true}, fault: fault{stall: true}, want: isError(errReadStalled), atLeast: readPatience, atMost: readPatience + 2*readStall},
		"never an answer":    {first: fault{takes: time.Hour}, fault: fault{takes: time.Hour}, want: isError(errReadStalled), atLeast: readPatience - readStall, atMost: readPatience + readStall},
		"ends at once": {first: fault{cut: 10, ends: true}, fault: fault{ends: true}, want: func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) },
			atLeast: readPatience - readMaxPause, atMost: readPatience},
		"no part":              {opts: GetContentOptions{Offset: 10, Length: 5}, first: fault{part: "bytes 10-9/100"}, want: isNotThePart},
		"another part":         {opts: GetContentOptions{Offset: 10, Length: 5}, first: fault{part: "bytes 20-24/100"}, want: isNotThePart},
		"a longer part":        {opts: GetContentOptions{Offset: 10, Length: 5}, first: fault{part: "bytes 10-15/100"}, want: isNotThePart},
		"another content":      {opts: GetContentOptions{Digest: digestOf(nil)}, want: isError(ErrDigestMismatch)},
		"no patience":          {opts: GetContentOptions{Patience: -1}, first: fault{err: refused}, want: isError(refused)},
		"no patience any more": {opts: GetContentOptions{Patience: -1}, first: fault{cut: 10}, want: isError(io.ErrUnexpectedEOF)},
		"a little patience":    {opts: GetContentOptions{Patience: time.Second}, first: fault{code: 429, after: "5"}, want: apierrors.IsTooManyRequests},
		"forbidden":            {first: fault{code: 403}, want: apierrors.IsForbidden},
		"no content":           {first: fault{code: 409}, want: apierrors.IsConflict},
		"gone meanwhile":       {first: fault{cut: 10}, fault: fault{code: 404}, want: apierrors.IsNotFound, atMost: readMinPause},
		"other content":        {first: fault{cut: 10}, fault: fault{other: true}, want: func(err error) bool { return strings.Contains(err.Error(), "in place of a part") }, atMost: readMinPause},
		"an unknown authority": {first: fault{err: &tls.CertificateVerificationError{Err: errors.New("who is it")}}, want: func(err error) bool { return strings.Contains(err.Error(), "who is it") }},
		"no credentials":       {first: fault{err: errors.New("getting credentials: exec: it failed")}, want: IsNoCredentials},
		"no credentials more":  {first: fault{cut: 10}, fault: fault{err: errors.New("getting credentials: exec: it failed")}, want: IsNoCredentials, atMost: readMinPause},
		"no TLS":               {first: fault{err: http.ErrSchemeMismatch}, want: isError(http.ErrSchemeMismatch)},
		"something else":       {first: fault{err: tls.RecordHeaderError{Msg: "no handshake"}}, want: func(err error) bool { return strings.Contains(err.Error(), "no handshake") }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := &server{content: content, faults: append([]fault{test.first}, slices.Repeat([]fault{test.fault}, 1000)...)}
				c, err := s.bundles(t).GetContent(t.Context(), "app", test.opts)
				if err == nil {
					_, err = io.ReadAll(c)
					_ = c.Close()
				}
				if err == nil || !test.want(err) {
					t.Errorf("got %v", err)
				}
				if took := time.Since(began); took < test.atLeast || took > test.atMost {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// No answer is what may be another one later, which is what is tried again.
func TestIsNoAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		fault fault
		want  bool
	}{
		"refused":              {fault: fault{err: errors.New("connection refused")}, want: true},
		"no answer":            {fault: fault{takes: time.Hour}, want: true},
		"broken off":           {fault: fault{cut: 3}, want: true},
		"an unknown authority": {fault: fault{err: &tls.CertificateVerificationError{Err: errors.New("who is it")}}},
		"no TLS":               {fault: fault{err: http.ErrSchemeMismatch}},
		"something else":       {fault: fault{err: tls.RecordHeaderError{Msg: "no handshake"}}},
		"no credentials":       {fault: fault{err: errors.New("getting credentials: exec: it failed")}},
		"unavailable":          {fault: fault{code: 503}},
		"not found":            {fault: fault{code: 404}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{content: []byte(`{"entries":[{"name":"a"}]}`), faults: []fault{test.fault}}
				for _, err := range s.bundles(t).ListFiles(t.Context(), "app", "", ListFilesOptions{Patience: -1}) {
					if err == nil || IsNoAnswer(err) != test.want || test.want && !retriable(err) {
						t.Errorf("%v", err)
					}
				}
			})
		})
	}
}

// Who wants to know is told of each pause, and may end the trying.
func TestGetContentTellsOfRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		enough := errors.New("enough")
		var told []Retry
		s := &server{content: []byte("content"), faults: []fault{{cut: 3}, {code: 503, after: "7"}, {code: 502}, {code: 502}}}
		c, err := s.bundles(t).GetContent(t.Context(), "app", GetContentOptions{Retrying: func(r Retry) error {
			if told = append(told, r); len(told) == 3 {
				return enough
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); string(got) != "con" || !errors.Is(err, enough) {
			t.Errorf("%q, %v", got, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if len(told) != 3 || len(s.requests) != 3 || !errors.Is(told[0].Err, io.ErrUnexpectedEOF) || !apierrors.IsServiceUnavailable(told[1].Err) {
			t.Fatalf("it was told of %v after %q", told, s.requests)
		}
		for i, r := range told {
			if !r.Since.Equal(began) || !r.Until.Equal(began.Add(readPatience)) || i > 0 && !r.Next.After(told[i-1].Next) {
				t.Errorf("%d: %v", i, r)
			}
		}
		if wait := told[1].Next.Sub(told[0].Next); wait < 7*time.Second {
			t.Errorf("it waits for %v", wait)
		}
	})
}

// What is cut again and again goes on where it gets a byte further each time, for longer than it has patience.
func TestGetContentIsPatientFromByteToByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		content := []byte(strings.Repeat("0123456789", 10))
		s := &server{content: content, faults: slices.Repeat([]fault{{takes: readStall / 2, cut: 1}, {code: 503}}, len(content))}
		c, err := s.bundles(t).GetContent(t.Context(), "app", GetContentOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes: %v", len(got), err)
		}
		if took := time.Since(began); took < 10*readPatience {
			t.Errorf("it took %v", took)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// The time that a reader takes with what has come is none in which nothing comes.
func TestGetContentIsPatientWhateverTheReaderTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{content: []byte("content"), faults: slices.Repeat([]fault{{cut: 2}, {code: 503}, {cut: 0}}, 2)}
		c, err := s.bundles(t).GetContent(t.Context(), "app", GetContentOptions{})
		var got []byte
		for p := make([]byte, 1); err == nil; {
			time.Sleep(3 * readPatience)
			var n int
			n, err = c.Read(p)
			got = append(got, p[:n]...)
		}
		if string(got) != "content" || err != io.EOF || len(s.requests) != 7 {
			t.Errorf("%q, %v after %q", got, err, s.requests)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// swapping calls a function before it is read.
type swapping struct {
	io.ReadCloser
	swap func()
}

func (s *swapping) Read(p []byte) (int, error) {
	s.swap()
	return s.ReadCloser.Read(p)
}

// What brings nothing is ended itself, and not what is read in its place by the time that its timer comes to it.
func TestWhatBringsNothingIsEndedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{content: []byte("content"), faults: []fault{{stall: true}}}
		bundles := s.bundles(t)
		c, err := bundles.GetContent(t.Context(), "app", GetContentOptions{})
		if err != nil {
			t.Fatal(err)
		}
		next, err := bundles.GetContent(t.Context(), "app", GetContentOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.body = &swapping{c.body, func() { *c = *next }}
		got, err := io.ReadAll(c)
		if string(got) != "content" || err != nil || len(s.requests) != 3 {
			t.Errorf("%q, %v after %q", got, err, s.requests)
		}
		if err := errors.Join(c.Close(), next.Close()); err != nil {
			t.Error(err)
		}
	})
}

func isNotThePart(err error) bool {
	return strings.Contains(err.Error(), "not the part that was asked for")
}

func isError(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func TestGetContentEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		s := &server{faults: slices.Repeat([]fault{{code: 503}}, 1000)}
		began := time.Now()
		_, err := s.bundles(t).GetContent(ctx, "app", GetContentOptions{})
		if err == nil || time.Since(began) != 10*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// Bytes that were damaged on the way are an error, also when they came in parts.
func TestGetContentLooksAtTheDigest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{content: []byte(strings.Repeat("0123456789", 10)), faults: []fault{{cut: 50}}}
		c, err := s.bundles(t).GetContent(t.Context(), "app", GetContentOptions{})
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 10)
		if _, err := io.ReadFull(c, first); err != nil {
			t.Fatal(err)
		}
		c.hash.Write([]byte("something else"))
		if _, err := io.ReadAll(c); !errors.Is(err, ErrDigestMismatch) {
			t.Errorf("got %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
