// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// stallTimeout bounds what must not take for ever.
const stallTimeout = 30 * time.Second

// soon is what the rest of a body has in place of unreadTime.
const soon = 200 * time.Millisecond

// A client that does not send the rest of its body is answered all the same, and its connection is closed.
func TestAStalledBodyIsAnswered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		head string
		read int64 // by the handler
	}{
		"not read at all":  {"Content-Length: 100\r\n\r\n", 0},
		"read in part":     {"Content-Length: 100\r\n\r\nab", 1},
		"chunked, no end":  {"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", 2},
		"nearly 256 KiB":   {"Content-Length: 262143\r\n\r\n", 0},
		"with expectation": {"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(boundUnread(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.CopyN(io.Discard, req.Body, test.read)
				w.WriteHeader(http.StatusUnauthorized)
			}), soon))
			t.Cleanup(server.Close)
			conn := dial(t, server)
			send(t, conn, "POST / HTTP/1.1\r\nHost: a\r\n"+test.head)
			in := bufio.NewReader(conn)
			if got := answer(t, in); got != http.StatusUnauthorized {
				t.Errorf("answer is %d", got)
			}
			if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("the connection is not closed: %v", err)
			}
		})
	}
}

// What is no stalled body has no deadline: not a client that waits for its answer, nor the next request.
func TestOnlyAnUnreadBodyHasADeadline(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{
		"a whole body": "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
		"no body":      "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"an upgrade":   "POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: b\r\nContent-Length: 2\r\n\r\nab",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := make(chan time.Time, 10)
			handler := boundUnread(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				if name != "an upgrade" {
					_, _ = io.Copy(io.Discard, req.Body)
				}
			}), soon)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				handler.ServeHTTP(&deadlineWriter{w, set}, req)
			}))
			t.Cleanup(server.Close)
			conn := dial(t, server)
			in := bufio.NewReader(conn)
			for range 2 {
				send(t, conn, request)
				if got := answer(t, in); got != http.StatusOK {
					t.Errorf("answer is %d", got)
				}
			}
			if len(set) > 0 {
				t.Errorf("a deadline was set: %v", <-set)
			}
		})
	}
}

// A body of which the handler reads too little, and that comes all the same, does not cost its client the connection.
func TestTheNextRequestHasNoDeadline(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(boundUnread(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			// Longer than the deadline that the request before had.
			select {
			case <-req.Context().Done():
				w.WriteHeader(http.StatusGone)
			case <-time.After(3 * soon):
			}
		}
	}), soon))
	t.Cleanup(server.Close)
	conn := dial(t, server)
	in := bufio.NewReader(conn)
	send(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab")
	if got := answer(t, in); got != http.StatusOK {
		t.Fatalf("answer is %d", got)
	}
	send(t, conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if got := answer(t, in); got != http.StatusOK {
		t.Errorf("the request after it: %d", got)
	}
}

type deadlineWriter struct {
	http.ResponseWriter
	set chan time.Time
}

func (d *deadlineWriter) SetReadDeadline(at time.Time) error { d.set <- at; return nil }

func dial(t *testing.T, server *httptest.Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(stallTimeout)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func answer(t *testing.T, in *bufio.Reader) int {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}
