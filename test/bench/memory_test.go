// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// sampleInterval is how often the server's memory is looked at while it works.
const sampleInterval = 100 * time.Millisecond

// memoryFigures are the server's resident memory before all, and at most while large content is read.
func (s *scope) memoryFigures(c content, idle float64) []figure {
	s.Helper()
	most := s.peak(func() {
		s.readers(s.direct.client, s.direct.content(s.ns, "bundles", c.name), c.size, 8, 4)
	})
	return []figure{
		{Name: "memory of the server before the run (RSS)", Unit: "MiB", Ours: over([]float64{idle})},
		{Name: "most of it while 8 readers GET 64 MiB straight", Unit: "MiB", Ours: over([]float64{most})},
	}
}

// peak is the server's resident memory at most while f runs, in MiB.
func (s *scope) peak(f func()) float64 {
	s.Helper()
	done, top := make(chan struct{}), make(chan float64, 1)
	stop := sync.OnceFunc(func() { close(done) })
	defer stop() // f may end the test
	go func() {
		tick := time.NewTicker(sampleInterval)
		defer tick.Stop()
		var most float64
		for {
			// A look that fails is one sample less; what the server answers is judged by f.
			if bytes, err := s.metric("process_resident_memory_bytes"); err == nil {
				most = max(most, bytes/(1<<20))
			}
			select {
			case <-done:
				top <- most
				return
			case <-tick.C:
			}
		}
	}()
	f()
	stop()
	return <-top
}

// residentMemory is the server's resident memory in MiB, as its metrics tell.
func (s *scope) residentMemory() float64 {
	s.Helper()
	bytes, err := s.metric("process_resident_memory_bytes")
	s.must(err)
	return bytes / (1 << 20)
}

// metric is the value of a metric that has no labels.
func (s *scope) metric(name string) (float64, error) {
	resp, err := s.direct.client.Get(s.direct.base + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s: no metric %s", resp.Status, name)
}
