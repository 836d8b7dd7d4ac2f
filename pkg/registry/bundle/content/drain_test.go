// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"rukpak.io/apiserver/pkg/apis/rukpak"
)

// countedBody is a body of a size that nobody keeps.
type countedBody struct{ left, read int64 }

func (b *countedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), b.left)
	b.left, b.read = b.left-n, b.read+n
	return int(n), nil
}

func (*countedBody) Close() error { return nil }

// answerer tells of an answer.
type answerer struct{ onError func(error) }

func (a answerer) Error(err error) { a.onError(err) }

func (answerer) Object(int, runtime.Object) {}

func TestHowMuchOfARefusedBodyIsRead(t *testing.T) {
	const mib = 1 << 20
	refusal := func(code int32) error {
		s := apierrors.NewGenericServerResponse(int(code), "update", rukpak.Resource("bundles"), "app", "no", 0, true)
		return fmt.Errorf("write: %w", s)
	}
	for name, test := range map[string]struct {
		refusal error
		size    int64
		unknown bool // to the server
		begun   bool
		expect  bool
		proto   int
		want    int64 // bytes, before the answer, or after it of a body that waits for leave
	}{
		"wrong":                                 {refusal: refusal(400), size: 20 * mib, want: 20 * mib},
		"wrong, and begun":                      {refusal: refusal(400), size: 20 * mib, begun: true, want: 20 * mib},
		"wrong, of unknown size":                {refusal: refusal(400), size: 50 * mib, unknown: true, want: drainBytes},
		"wrong, and large":                      {refusal: refusal(400), size: 50 * mib},
		"not said why":                          {refusal: errors.New("broken"), size: 20 * mib, want: 20 * mib},
		"ended early":                           {refusal: refusal(408), size: mib},
		"busy":                                  {refusal: refusal(429), size: mib, want: mib},
		"busy, and it is more":                  {refusal: refusal(429), size: mib + 1},
		"busy, of unknown size":                 {refusal: refusal(429), size: 10, unknown: true},
		"away, and it is more":                  {refusal: refusal(503), size: 2 * mib},
		"full, of unknown size":                 {refusal: refusal(507), size: 10, unknown: true},
		"waits for leave":                       {refusal: refusal(400), size: mib, expect: true, want: mib},
		"waits for leave, of unknown size":      {refusal: refusal(400), size: mib, unknown: true, expect: true, want: mib},
		"waits for leave, and it is busy":       {refusal: refusal(429), size: mib, unknown: true, expect: true},
		"has leave, and has sent some":          {refusal: refusal(400), size: mib, begun: true, expect: true, want: mib},
		"HTTP/2, where an early answer is fine": {refusal: refusal(400), size: mib, proto: 2},
	} {
		t.Run(name, func(t *testing.T) {
			body := &countedBody{left: test.size}
			req := httptest.NewRequest(http.MethodPut, "/app", body)
			req.ContentLength = test.size
			if test.unknown {
				req.ContentLength = -1
			}
			if test.expect {
				req.Header.Set("Expect", "100-continue")
			}
			if test.proto > 0 {
				req.ProtoMajor = test.proto
			}
			before := int64(-1)
			answer := answerer{onError: func(err error) {
				if before = body.read; !errors.Is(err, test.refusal) {
					t.Errorf("the answer is %v", err)
				}
			}}
			Refuse(httptest.NewRecorder(), req, answer.Error, test.begun, test.refusal)
			if body.read != test.want {
				t.Errorf("%d bytes were read, not %d", body.read, test.want)
			}
			want := test.want
			if test.expect && !test.begun {
				want = 0
			}
			if before != want {
				t.Errorf("%d bytes were read when it was answered, not %d", before, want)
			}
		})
	}
}

// Who waits for leave to send a body (RFC 9110, section 10.1.1) gets the refusal in its place: behind an interim answer kube-apiserver
// hides the final one.
func TestARefusalIsTheFirstAnswer(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	body := archive(t, map[string]string{"file": "1"})
	for path, want := range map[string]int{
		"app":             http.StatusContinue, // it is taken
		"other":           http.StatusNotFound,
		"app/file":        http.StatusMethodNotAllowed,
		"app?recursive=2": http.StatusBadRequest,
	} {
		conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "PUT /%s HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", path, len(body)); err != nil {
			t.Fatal(err)
		}
		from := bufio.NewReader(conn)
		answer := func() int {
			res, err := http.ReadResponse(from, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := res.Body.Close(); err != nil {
				t.Fatal(err)
			}
			return res.StatusCode
		}
		if got := answer(); got != want {
			t.Errorf("PUT %s: %d, not %d", path, got, want)
		} else if got == http.StatusContinue {
			if _, err := conn.Write(body); err != nil {
				t.Fatal(err)
			}
			if got := answer(); got != http.StatusCreated {
				t.Errorf("PUT %s: the final answer is %d", path, got)
			}
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
