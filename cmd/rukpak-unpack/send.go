// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// commitTimeout bounds the time from the last byte sent to the first of the answer:
// what the server needs to check and store the content.
const commitTimeout = 5 * time.Minute

// newClient makes a client that speaks HTTP/1.1 to the one server, through no
// proxy, and follows no redirect.
func newClient(c config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                 nil,
			DialContext:           (&net.Dialer{Timeout: min(10*time.Second, c.patience())}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: commitTimeout,
			DisableCompression:    true,
			TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.roots, ServerName: c.serverName},
			// A map without an entry is what keeps HTTP/2 off.
			TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// send makes one try: it packs the files as a stream into the body of a PUT.
func send(ctx context.Context, client *http.Client, c config) *failure {
	token, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return &failure{reason: contract.ReasonUploadFailed, err: fmt.Errorf("token: %w", err), retry: true}
	}
	if err := notEmpty(c.root); err != nil {
		return &failure{reason: contract.ReasonImageEmpty, err: err}
	}
	body, content := io.Pipe()
	packed := make(chan error, 1)
	// What is in there when the body ends is sent after it.
	trailer := http.Header{contract.TrailerWalk: nil}
	go func() {
		began, out := time.Now(), &timedWriter{w: content}
		_, err := tarball.Pack(ctx, out, c.root, c.path, c.limits)
		trailer.Set(contract.TrailerWalk, (time.Since(began) - out.took).String())
		// With an error the body breaks off, so that the server does not take a
		// part for the whole.
		content.CloseWithError(err)
		packed <- err
	}()
	f := put(ctx, client, c, strings.TrimSpace(string(token)), body, trailer)
	// Whatever the answer is, nobody reads the rest: what is still being packed
	// ends with io.ErrClosedPipe.
	body.Close()
	if err := <-packed; err != nil && !errors.Is(err, io.ErrClosedPipe) && ctx.Err() == nil && !isRefusal(f) {
		return packFailure(err)
	}
	return f
}

// isRefusal tells whether the server answered, rather than the connection broke.
func isRefusal(f *failure) bool {
	if f == nil {
		return false
	}
	_, ok := errors.AsType[*statusError](f.err)
	return ok
}

// timedWriter measures the time that writing takes.
type timedWriter struct {
	w    io.Writer
	took time.Duration
}

func (t *timedWriter) Write(p []byte) (int, error) {
	began := time.Now()
	n, err := t.w.Write(p)
	t.took += time.Since(began)
	return n, err
}

func put(ctx context.Context, client *http.Client, c config, token string, body io.Reader, trailer http.Header) *failure {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, c.url, body)
	if err != nil {
		return &failure{reason: contract.ReasonInvalidConfiguration, err: err}
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", tarball.MediaType)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "rukpak-unpack")
	if c.traceParent != "" {
		req.Header.Set("Traceparent", c.traceParent)
	}
	req.Trailer = trailer
	resp, err := client.Do(req)
	if err != nil {
		return sendFailure(err)
	}
	// The answer is read below as far as it matters; a failed close loses nothing of it.
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusCreated {
		return nil
	}
	return answered(resp)
}

// sendFailure tells a server that is not reached, as where a NetworkPolicy drops the packets, from
// one that breaks off.
func sendFailure(err error) *failure {
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return &failure{reason: contract.ReasonServerUnreachable, err: fmt.Errorf("the pod cannot reach the server, as where a NetworkPolicy is in the way: %w", dial), retry: true}
	}
	return &failure{reason: contract.ReasonUploadFailed, err: fmt.Errorf("upload: %w", err), retry: true}
}

// statusError is an answer of the server other than success.
type statusError struct {
	code    int
	message string
	refusal bool // of the content: the message says all
}

func (e *statusError) Error() string {
	if e.refusal {
		return e.message
	}
	return fmt.Sprintf("the server answered %d: %s", e.code, e.message)
}

// answered tells what a refusal means. Status.message of the answer, a
// metav1.Status, is the message.
func answered(resp *http.Response) *failure {
	const enough = 64 << 10
	var status struct {
		Message string `json:"message"`
		Details struct {
			Causes []struct {
				Reason  string `json:"reason"`
				Field   string `json:"field"`
				Message string `json:"message"`
			} `json:"causes"`
		} `json:"details"`
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, enough))
	if err == nil {
		err = json.Unmarshal(data, &status)
	}
	if err != nil || status.Message == "" {
		status.Message = http.StatusText(resp.StatusCode)
	}
	answer := &statusError{code: resp.StatusCode, message: status.Message}
	f := &failure{reason: contract.ReasonUploadFailed, err: answer}
	switch code := resp.StatusCode; {
	case code == http.StatusRequestEntityTooLarge:
		f.reason = contract.ReasonLimitExceeded
	case code == http.StatusBadRequest, code == http.StatusUnprocessableEntity:
		f.reason = contract.ReasonContentRefused
	case code == http.StatusConflict, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= http.StatusInternalServerError,
		// The server asks the cluster about tokens, and says this too when it gets no answer.
		code == http.StatusUnauthorized:
		f.retry = true
	}
	if causes := status.Details.Causes; len(causes) > 0 {
		switch causes[0].Reason {
		case contract.ReasonContentQuotaExceeded:
			f.reason = contract.ReasonContentQuotaExceeded
		case contract.CauseAttemptEnded:
			f.retry = false
		}
	}
	if causes := status.Details.Causes; len(causes) > 0 && f.reason != contract.ReasonUploadFailed {
		// Whoever reads it knows the bundle.
		answer.refusal, answer.message = true, causes[0].Message
		if field := causes[0].Field; f.reason == contract.ReasonContentRefused && field != "" {
			answer.message = field + ": " + answer.message
		}
	}
	return f
}
