// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Sizes of the files that the contents hold; the archives are a little larger.
const (
	largeSize = 64 << 20
	smallSize = 20 << 10
)

// readBuffer is how much a reader takes at once.
const readBuffer = 256 << 10

// fetch reads a URL to the end, which has to be of that many bytes, unless size is negative.
func fetch(ctx context.Context, client *http.Client, url string, size int64, buffer []byte) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	var n int64
	for {
		got, err := resp.Body.Read(buffer)
		n += int64(got)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("GET %s: after %d bytes: %w", url, n, err)
		}
	}
	if size >= 0 && n != size {
		return fmt.Errorf("GET %s: %d bytes, not %d", url, n, size)
	}
	return nil
}

// readers reads a URL from as many readers at once, each so often, and returns how long each GET took
// and how long all took together.
func (s *scope) readers(client *http.Client, url string, size int64, readers, times int) (each []time.Duration, all time.Duration) {
	s.Helper()
	took, failed := make([][]time.Duration, readers), make([]error, readers)
	var group sync.WaitGroup
	start := time.Now()
	for i := range readers {
		group.Go(func() {
			buffer := make([]byte, readBuffer)
			for range times {
				begin := time.Now()
				if failed[i] = fetch(s.Context(), client, url, size, buffer); failed[i] != nil {
					return
				}
				took[i] = append(took[i], time.Since(begin))
			}
		})
	}
	group.Wait()
	all = time.Since(start)
	s.must(errors.Join(failed...))
	return slices.Concat(took...), all
}

// alternate calls both sides once for warming up, which is round -1, and then in turn: ABBA.
func alternate(rounds int, ours, theirs func(round int)) {
	for round := -1; round < rounds; round++ {
		if round%2 == 0 {
			ours(round)
			theirs(round)
		} else {
			theirs(round)
			ours(round)
		}
	}
}

// way is a way on which the server and the bare one are reached alike.
type way struct {
	name         string
	ours, theirs target
}

func (s *scope) ways(bare bareServer) []way {
	return []way{
		{name: "straight", ours: s.direct, theirs: bare.direct},
		{name: "through kube-apiserver", ours: s.through, theirs: bare.through},
	}
}

// transferFigures are the rates at which large content is read.
func (s *scope) transferFigures(c content, bare bareServer) []figure {
	s.Helper()
	var figures []figure
	for _, way := range s.ways(bare) {
		for _, readers := range []int{1, 8} {
			var ours, theirs []float64
			measure := func(to *[]float64, client *http.Client, url string) func(int) {
				return func(round int) {
					_, took := s.readers(client, url, c.size, readers, 1)
					if round >= 0 {
						*to = append(*to, float64(c.size)*float64(readers)/1e6/took.Seconds())
					}
				}
			}
			alternate(rounds(s.T, transferRounds),
				measure(&ours, way.ours.client, way.ours.content(s.ns, "bundles", c.name)),
				measure(&theirs, way.theirs.client, way.theirs.content(s.ns, "blobs", strconv.FormatInt(c.size, 10))))
			figures = append(figures, compared(fmt.Sprintf("GET of 64 MiB %s, readers: %d", way.name, readers), "MB/s", ours, "bare Go TLS server, the same way", theirs, "≥ 0.9"))
		}
	}
	return figures
}
