// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// maxRanges is how many ranges of one request are answered as such.
	maxRanges = 16
	rangeUnit = "bytes"
	// nothing is a range after the end of everything. No content has so many bytes.
	nothing = rangeUnit + "=9223372036854775806-"
)

// tidyRange makes net/http answer a Range as RFC 9110 says where it would not: it is ignored with a method other than GET, and
// in a unit that is not known (section 14.2), the known one is known in any case of its letters (section 14.1), a suffix of no bytes selects
// nothing (section 14.1.2), and so many ranges that they would cost more than the whole are not answered as such. Of
// nothing, which is what a size of 0 means, no part can be named in the answer.
func tidyRange(method string, h http.Header, size int64) {
	values := h.Values("Range")
	if len(values) == 0 {
		return
	}
	if method != http.MethodGet || size == 0 {
		h.Del("Range")
		return
	}
	unit, set, ok := strings.Cut(values[0], "=")
	ranges := strings.Split(set, ",")
	if !ok || len(values) > 1 || !strings.EqualFold(strings.TrimSpace(unit), rangeUnit) || len(ranges) > maxRanges {
		h.Del("Range")
		return
	}
	for i, r := range ranges {
		// A last position beyond all that can be counted is beyond the end, too.
		if first, last, ok := strings.Cut(strings.TrimSpace(r), "-"); ok && first != "" && len(strings.TrimLeft(last, "0")) > 18 && strings.Trim(last, "0123456789") == "" {
			ranges[i] = first + "-" + strconv.FormatInt(size-1, 10)
		}
	}
	ranges = slices.DeleteFunc(ranges, func(r string) bool {
		suffix, ok := strings.CutPrefix(strings.TrimSpace(r), "-")
		return ok && suffix != "" && strings.Trim(suffix, "0") == ""
	})
	if len(ranges) == 0 {
		h.Set("Range", nothing)
		return
	}
	h.Set("Range", rangeUnit+"="+strings.Join(ranges, ","))
}

// serve answers with a part or all of a body, or as the conditions of the request have it.
func serve(out *sender, req *http.Request, size int64, modified time.Time, body io.ReadSeeker) {
	tidyRange(req.Method, req.Header, size)
	tidyConditions(req.Header)
	http.ServeContent(out, req, "", modified, body)
}

// tidyConditions joins conditions that come in several lines, of which net/http reads the first alone (RFC 9110, section 5.3).
func tidyConditions(h http.Header) {
	for _, field := range []string{"If-Match", "If-None-Match"} {
		if len(h.Values(field)) > 1 {
			h.Set(field, list(h, field))
		}
	}
}
