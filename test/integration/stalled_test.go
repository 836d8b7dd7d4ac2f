// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// Who announces a body and sends none of it is answered all the same, known or not, and its connection is closed: it would keep
// the server from ending.
func TestStalledBodiesAreAnswered(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	u := uploader(t, namespace)
	known := "Authorization: Bearer " + u.token + "\r\n"
	for name, test := range map[string]struct {
		request, head string
		want          int
	}{
		"nobody, at the root":           {"POST /", "", http.StatusUnauthorized},
		"nobody, content":               {"PUT " + contentPath(namespace, "app"), "", http.StatusUnauthorized},
		"content of no bundle":          {"PUT " + contentPath(namespace, "app"), known, http.StatusNotFound},
		"an upload to no bundle":        {"POST " + uploadsPath(namespace, "app"), known, http.StatusNotFound},
		"what the user must not create": {"POST /apis/rukpak.io/v1alpha1/namespaces/" + namespace + "/bundles", known, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, direct(t))
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: a\r\n%sContent-Length: 100\r\n\r\n", test.request, test.head); err != nil {
				t.Fatal(err)
			}
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("no answer: %v", err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != test.want {
				t.Errorf("answer is %d, want %d: %s, %v", resp.StatusCode, test.want, short(body), err)
			}
			if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("the connection is not closed: %v", err)
			}
		})
	}
}
