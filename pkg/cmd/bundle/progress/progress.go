// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package progress shows how far a transfer is: a bar on a terminal, and a line now and then elsewhere.
//
//	meter := progress.New(os.Stderr, "app.tar.gz", size)
//	defer meter.Stop()
//	meter.Set(n)
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"rukpak.io/apiserver/pkg/bytesize"
)

const (
	// barEvery and lineEvery are the time between two looks, on a terminal and elsewhere.
	barEvery  = 150 * time.Millisecond
	lineEvery = 10 * time.Second
	// rateOver is the time that a rate is the mean of.
	rateOver = 5 * time.Second
	// defaultWidth is that of a terminal that does not say.
	defaultWidth = 80
)

// Meter shows one transfer. Set may be called from any goroutine.
type Meter struct {
	out   io.Writer
	what  string
	total int64
	bar   bool
	width func() int
	stop  chan struct{}
	ended sync.WaitGroup

	mu      sync.Mutex
	done    int64
	base    int64 // where it began
	samples []sample
}

// sample is how far it was at a time.
type sample struct {
	at   time.Time
	done int64
}

// New begins to show a transfer of total bytes, of which from are there already. A total of 0 is not known. Stop ends it.
func New(out io.Writer, what string, from, total int64) *Meter {
	m := &Meter{out: out, what: what, total: total, done: from, base: from, stop: make(chan struct{})}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		m.bar = true
		m.width = func() int {
			width, _, err := term.GetSize(int(file.Fd()))
			if err != nil || width <= 0 {
				return defaultWidth
			}
			return width
		}
	}
	m.start()
	return m
}

// Discard returns a Meter that shows nothing.
func Discard() *Meter { return &Meter{out: io.Discard} }

func (m *Meter) start() {
	m.samples = []sample{{time.Now(), m.done}}
	every := lineEvery
	if m.bar {
		every = barEvery
	}
	m.ended.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.show()
			case <-m.stop:
				return
			}
		}
	})
}

// Set says how many bytes are there.
func (m *Meter) Set(done int64) {
	m.mu.Lock()
	m.done = done
	m.mu.Unlock()
}

// Add says that n bytes more are there.
func (m *Meter) Add(n int64) {
	m.mu.Lock()
	m.done += n
	m.mu.Unlock()
}

// Stop ends the showing. On a terminal the bar is taken away: what there is to say is said by the caller.
func (m *Meter) Stop() {
	if m.stop == nil {
		return
	}
	close(m.stop)
	m.ended.Wait()
	m.stop = nil
	if m.bar {
		// What shows progress need not be told of its failure.
		_, _ = io.WriteString(m.out, "\r\x1b[K")
	}
}

// show writes the bar, or a line.
func (m *Meter) show() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.samples = append(m.samples, sample{now, m.done})
	for len(m.samples) > 2 && now.Sub(m.samples[1].at) >= rateOver {
		m.samples = m.samples[1:]
	}
	first := m.samples[0]
	var rate float64
	if took := now.Sub(first.at).Seconds(); took > 0 && m.done > first.done {
		rate = float64(m.done-first.done) / took
	}
	if m.bar {
		// As above.
		_, _ = io.WriteString(m.out, "\r"+Bar(m.what, m.done, m.total, rate, m.width()-1)+"\x1b[K")
		return
	}
	_, _ = fmt.Fprintln(m.out, Line(m.what, m.done, m.total, rate))
}

// Line says how far a transfer is. Rate is in bytes a second, 0 if there is none.
func Line(what string, done, total int64, rate float64) string {
	s := what + ": " + bytesize.String(done)
	if total > 0 {
		s += fmt.Sprintf(" of %s, %d%%", bytesize.String(total), percent(done, total))
	}
	return s + ", " + speed(done, total, rate)
}

// Bar says the same in at most width columns, with a bar where there is room for one.
func Bar(what string, done, total int64, rate float64, width int) string {
	tail := bytesize.String(done) + ", " + speed(done, total, rate)
	if total > 0 {
		tail = fmt.Sprintf("%3d%% %s/%s, %s", percent(done, total), bytesize.String(done), bytesize.String(total), speed(done, total, rate))
	}
	room := width - len([]rune(what)) - len(tail) - 4
	switch {
	case total > 0 && room >= 10:
		room = min(room, 40)
		full := int(int64(room) * int64(percent(done, total)) / 100)
		return what + " [" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "] " + tail
	case room >= -2:
		return what + " " + tail
	case len(tail) <= width:
		return tail
	}
	return tail[:max(width, 0)]
}

func percent(done, total int64) int {
	return int(min(max(float64(done)/float64(total), 0), 1) * 100)
}

// speed says how fast it goes, and how long it will take.
func speed(done, total int64, rate float64) string {
	if rate <= 0 {
		return "waiting"
	}
	s := bytesize.String(int64(rate)) + "/s"
	if total > done {
		left := time.Duration(float64(total-done) / rate * float64(time.Second))
		s += ", " + short(left) + " left"
	}
	return s
}

// short writes a duration to the second.
func short(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 100*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return "days"
}
