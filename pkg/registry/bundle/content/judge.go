// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"net/http"
	"strings"
	"time"
)

// judge says what the conditions of a request make of an answer with a tag and a date: 200, 304 or 412 (RFC 9110, section 13.2.2). It is
// what net/http makes of them where it sends the answer itself, as that to the request for a file.
func judge(req *http.Request, tag string, modified time.Time) int {
	asked := &http.Request{Method: req.Method, Header: http.Header{}}
	for _, field := range []string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		asked.Header.Set(field, list(req.Header, field))
	}
	v := judgement{header: http.Header{}}
	v.header.Set("ETag", tag)
	http.ServeContent(&v, asked, "", modified, strings.NewReader(""))
	return v.code
}

// judgement is the answer to a request of which only the code is of interest.
type judgement struct {
	header http.Header
	code   int
}

func (v *judgement) Header() http.Header         { return v.header }
func (v *judgement) Write(b []byte) (int, error) { return len(b), nil }
func (v *judgement) WriteHeader(code int)        { v.code = code }
