// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

func TestListFilesIsPatientUntilTheNextEntry(t *testing.T) {
	const list = `{"path":"","entries":[` + "\n" + `{"name":"a","type":"Directory"},` + "\n" + `{"name":"b","type":"File","size":3}` + "\n]}\n"
	afterOne := strings.Index(list, "\n"+`{"name":"b"`)
	refused := errors.New("connection refused")
	for name, test := range map[string]struct {
		content  string // a list, where there is nothing else
		patience time.Duration
		faults   []fault
		always   fault // of all further requests
		want     string
		fails    func(error) bool
		requests int  // 0 where their number is a matter of time
		goesOn   bool // the server knows how to
		waits    time.Duration
	}{
		"nothing goes wrong":     {want: "a b", requests: 1},
		"no server at first":     {faults: []fault{{err: refused}, {code: 503, after: "7"}, {code: 502}}, want: "a b", requests: 4, waits: 7 * time.Second},
		"no answer":              {faults: []fault{{takes: time.Hour}}, want: "a b", requests: 2, waits: readStall},
		"cut before an entry":    {faults: []fault{{cut: 0}, {cut: 10}, {cut: afterOne / 2}}, want: "a b", requests: 4},
		"nothing comes":          {faults: []fault{{cut: 10, stall: true}}, want: "a b", requests: 2, waits: readStall},
		"cut after an entry":     {faults: []fault{{cut: afterOne + 5}}, want: "a", fails: isError(io.ErrUnexpectedEOF), requests: 2},
		"nothing comes after it": {faults: []fault{{cut: afterOne + 5, stall: true}}, want: "a", fails: isError(errReadStalled), requests: 2, waits: readStall},
		"cut between entries":    {goesOn: true, faults: []fault{{cut: afterOne + 5}, {err: refused}, {cut: 0}}, want: "a b", requests: 4},
		"cut at the end":         {goesOn: true, faults: []fault{{cut: len(list) - 3}}, want: "a b", requests: 2},
		"a pause between them":   {goesOn: true, faults: []fault{{cut: afterOne + 5, stall: true}}, want: "a b", requests: 2, waits: readStall},
		"no patience for more":   {goesOn: true, patience: -1, faults: []fault{{cut: afterOne + 5}}, want: "a", fails: IsNoAnswer, requests: 1},
		"never the next":         {goesOn: true, faults: []fault{{cut: afterOne + 5}}, always: fault{cut: 3}, want: "a", fails: IsNoAnswer, waits: readPatience - readMaxPause},
		"gone when it goes on":   {goesOn: true, faults: []fault{{cut: afterOne + 5}, {code: 404}}, want: "a", fails: apierrors.IsNotFound, requests: 2},
		"no file of that name":   {faults: []fault{{code: 404}}, fails: apierrors.IsNotFound, requests: 1},
		"a file":                 {content: "text", fails: func(err error) bool { return !retriable(err) }, requests: 1},
		"an empty file":          {content: " ", fails: func(err error) bool { return !retriable(err) }, requests: 1},
		"no patience":            {patience: -1, faults: []fault{{code: 503}}, fails: apierrors.IsServiceUnavailable, requests: 1},
		"never a server":         {faults: []fault{{code: 503}}, always: fault{code: 503}, fails: apierrors.IsServiceUnavailable, waits: readPatience - readMaxPause},
		"never an entry":         {faults: []fault{{cut: 10}}, always: fault{cut: 10}, fails: isError(io.ErrUnexpectedEOF), waits: readPatience - readMaxPause},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := &server{content: []byte(list), faults: test.faults}
				if test.content != "" {
					s.content = []byte(test.content)
				}
				s.old = !test.goesOn
				if test.requests == 0 {
					s.faults = append(s.faults, slices.Repeat([]fault{test.always}, 1000)...)
				}
				var names []string
				var failed error
				for e, err := range s.bundles(t).ListFiles(t.Context(), "app", "", ListFilesOptions{Patience: test.patience}) {
					if failed = err; err == nil {
						names = append(names, e.Name)
					}
				}
				if got := strings.Join(names, " "); got != test.want || (failed != nil) != (test.fails != nil) || failed != nil && !test.fails(failed) {
					t.Errorf("%q, %v", got, failed)
				}
				if got := len(s.requests); test.requests != 0 && got != test.requests {
					t.Errorf("%d requests, not %d: %q", got, test.requests, s.requests)
				}
				if took := time.Since(began); took < test.waits || took > test.waits+2*readMaxPause {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// The time that the caller takes for an entry is none in which nothing comes.
func TestListFilesIsPatientWhateverTheCallerTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := `{"entries":[` + "\n" + `{"name":"a"},` + "\n" + `{"name":"b"},` + "\n" + `{"name":"c"}` + "\n]}\n"
		behind := func(name string) int { return strings.Index(list, `"`+name+`"},`) + len(`"a"},`) }
		s := &server{content: []byte(list), faults: []fault{{cut: behind("a")}, {code: 503}, {cut: behind("a")}, {code: 503}}}
		var names []string
		for e, err := range s.bundles(t).ListFiles(t.Context(), "app", "", ListFilesOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, e.Name)
			time.Sleep(3 * readPatience)
		}
		if got := strings.Join(names, " "); got != "a b c" || len(s.requests) != 5 {
			t.Errorf("%q after %q", got, s.requests)
		}
	})
}

// A server that begins anew where it was to go on is noticed: nothing comes twice.
func TestListFilesOfAServerThatDoesNotGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{content: []byte(`{"entries":[{"name":"a"},{"name":"b"}` + "\n]}\n"), old: true, faults: []fault{{cut: 30}}}
		var names []string
		var failed error
		for e, err := range s.bundles(t).ListFiles(t.Context(), "app", "", ListFilesOptions{}) {
			if failed = err; err == nil {
				names = append(names, e.Name)
			}
		}
		if strings.Join(names, " ") != "a" || !errors.Is(failed, errBegunAnew) || !errors.Is(failed, io.ErrUnexpectedEOF) {
			t.Errorf("%q, %v", names, failed)
		}
		digest := strings.Replace(digestOf(s.content), ":", "%3A", 1)
		if want := []string{contentPath + "/", contentPath + "/?after=a&digest=" + digest}; !slices.Equal(s.requests, want) {
			t.Errorf("requests were %q", s.requests)
		}
	})
}

// A list that is compressed, as clients ask for it by themselves, goes on where it broke off, too.
func TestListFilesThatAreCompressed(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked = append(asked, req.Header.Get("Accept-Encoding")+" "+req.URL.Query().Get("after"))
		w.Header().Set("ETag", `W/"sha256:1"`)
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		if len(asked) == 1 {
			_, _ = io.WriteString(z, `{"entries":[`+"\n"+`{"name":"a"},`+"\n"+`{"na`)
			_ = z.Flush()
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(z, `{"entries":[`+"\n"+`{"name":"b"}`+"\n]}\n")
		_ = z.Close()
	}))
	defer server.Close()
	c, err := NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for e, err := range c.Bundles("team").ListFiles(t.Context(), "app", "", ListFilesOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, e.Name)
	}
	if !slices.Equal(names, []string{"a", "b"}) || !slices.Equal(asked, []string{"gzip ", "gzip a"}) {
		t.Errorf("%q after %q", names, asked)
	}
}

// Who stops at an entry makes no further request.
func TestListFilesStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{content: []byte(`{"entries":[{"name":"a"},{"name":"b"}]}`)}
		for e, err := range s.bundles(t).ListFiles(t.Context(), "app", "", ListFilesOptions{}) {
			if e.Name != "a" || err != nil {
				t.Errorf("%q, %v", e.Name, err)
			}
			break
		}
		if len(s.requests) != 1 {
			t.Errorf("requests were %q", s.requests)
		}
	})
}
