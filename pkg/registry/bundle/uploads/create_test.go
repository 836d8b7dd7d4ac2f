// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/content/etcdtest"
)

// beginning starts a POST of which 5000 bytes come, and returns it with the path of the upload that the list has then.
func (w *world) beginning(replica int) (net.Conn, string) {
	w.t.Helper()
	conn := w.start(replica, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nUpload-Complete: ?0\r\nContent-Length: %d\r\n\r\n%s", root, 8<<20, strings.Repeat("x", 5000)))
	w.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		w.t.Fatal(err)
	}
	waitUntil(w.t, func() bool { return w.store.written.Load() == 5000 })
	listed := w.listed()
	if len(listed) != 1 {
		w.t.Fatalf("listed are %v", listed)
	}
	return conn, listed[0]
}

// listed are the paths of the uploads in the list.
func (w *world) listed() []string {
	w.t.Helper()
	var list struct{ Uploads []view }
	if err := json.Unmarshal(w.do(1, http.MethodGet, root, nil).body, &list); err != nil {
		w.t.Fatal(err)
	}
	var paths []string
	for _, v := range list.Uploads {
		paths = append(paths, v.Location)
	}
	return paths
}

// A client loses its line in the request that begins an upload, finds the upload in the list, and goes on with it before
// the server knows. What it is told to be there stays.
func TestAnUploadGoesOnBeforeItsBeginningHasEnded(t *testing.T) {
	client := etcdtest.Start(t)
	for name, test := range map[string]struct {
		replica int // that the client comes to
		method  string
		want    int    // how many bytes there are then
		answer  string // to the beginning
	}{
		"it asks where it is":     {0, http.MethodHead, 5000, " 408 "},
		"it sends from the start": {0, http.MethodPatch, 5000, " 408 "},
		"it does so elsewhere":    {1, http.MethodPatch, 5, " 409 "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldIn(t, client)
			conn, path := w.beginning(0)
			if test.method == http.MethodHead {
				if a := w.do(test.replica, http.MethodHead, path, nil); a.code != http.StatusOK || a.offset(t) != int64(test.want) {
					t.Fatalf("%d %v", a.code, a.header)
				}
			} else if a := w.patch(test.replica, path, 0, []byte("bytes"), false); a.offset(t) != int64(test.want) {
				t.Fatalf("%d %v %s", a.code, a.header, a.body)
			}
			answer := w.hangUp(conn)
			if !strings.Contains(answer, test.answer) || !strings.Contains(answer, fmt.Sprintf("Upload-Offset: %d\r\n", test.want)) ||
				!strings.Contains(answer, "Location: uploads/"+path[len(root)+1:]) {
				t.Errorf("the beginning is answered with %s", answer)
			}
			if s := w.session(path); s.Offset() != int64(test.want) || len(w.held()) != 1 {
				t.Errorf("it has %d bytes, and parts are held by %v", s.Offset(), w.held())
			}
			if a := w.patch(0, path, test.want, []byte("more"), false); a.code != http.StatusNoContent || a.offset(t) != int64(test.want)+4 {
				t.Errorf("%d %v %s", a.code, a.header, a.body)
			}
		})
	}
}

// Of a beginning that breaks off before anybody has come to its upload nothing is left, nor of one that is given up.
func TestABeginningThatBreaksOffLeavesNothing(t *testing.T) {
	client := etcdtest.Start(t)
	for name, end := range map[string]func(w *world, path string){
		"it breaks off":      func(*world, string) {},
		"it is deleted":      func(w *world, path string) { w.do(0, http.MethodDelete, path, nil) },
		"deleted, elsewhere": func(w *world, path string) { w.do(1, http.MethodDelete, path, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldIn(t, client)
			conn, path := w.beginning(0)
			end(w, path)
			if answer := w.hangUp(conn); !strings.HasPrefix(answer, "HTTP/1.1 4") {
				t.Errorf("%s", answer)
			}
			if listed, held := w.listed(), w.held(); len(listed)+len(held) > 0 {
				t.Errorf("listed are %v, and parts are held by %v", listed, held)
			}
		})
	}
}

// The end of the server does not wait for a beginning, whose client is told to come again.
func TestTheEndOfTheServerEndsABeginning(t *testing.T) {
	w := newWorld(t)
	conn, _ := w.beginning(0)
	w.replicas[0].EndAppends()
	said, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	if answer := string(said); !strings.Contains(answer, " 503 ") || !strings.Contains(answer, errEnded.Error()) || !strings.Contains(answer, `"retryAfterSeconds":1`) {
		t.Errorf("%s", answer)
	}
	// Nor for one that comes later.
	if a := w.do(0, http.MethodPost, root, []byte("x")); a.code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", a.code, a.body)
	}
	if listed, held := w.listed(), w.held(); len(listed)+len(held) > 0 {
		t.Errorf("listed are %v, and parts are held by %v", listed, held)
	}
}
