// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/duration"
)

// stages shows the stages of something that is waited for: each on a line, and on a terminal how long the current one takes.
type stages struct {
	out   io.Writer // nil to show nothing
	what  string
	live  bool
	width int
	// until is when waiting ends, if it does, and limit how long that is from the beginning.
	until time.Time
	limit time.Duration
	// promised means that this was said.
	promised bool
	stop     chan struct{}
	ended    sync.WaitGroup

	mu    sync.Mutex
	began time.Time // the stage
	stage string
}

// stageEvery is the time between two looks at the clock on a terminal.
const stageEvery = time.Second

// stages shows what becomes of a bundle, which is waited for until limit is over, if it is not 0.
func (s *session) stages(name string, limit time.Duration) *stages {
	g := &stages{what: "bundle/" + name, stop: make(chan struct{}), until: time.Now().Add(limit), limit: limit}
	if s.quiet {
		return g
	}
	g.out = s.ErrOut
	if !isTerminal(s.ErrOut) {
		return g
	}
	g.live = true
	if width, _, err := term.GetSize(int(s.ErrOut.(*os.File).Fd())); err == nil && width > 0 {
		g.width = width
	} else {
		g.width = 80
	}
	g.ended.Go(g.tick)
	return g
}

func (g *stages) tick() {
	tick := time.NewTicker(stageEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.mu.Lock()
			g.draw()
			g.mu.Unlock()
		case <-g.stop:
			return
		}
	}
}

// show begins a stage, unless it is the current one.
func (g *stages) show(stage string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	stage = clean(stage)
	if g.out == nil || stage == g.stage {
		return
	}
	if g.live && g.stage != "" {
		g.write("\r\x1b[K" + g.line(g.stage) + "\n")
	}
	g.stage, g.began = stage, time.Now()
	if g.live {
		g.draw()
		return
	}
	g.write(g.line(stage) + "\n")
}

// waits says how long it is waited for, once. On a terminal that stands beside the stage.
func (g *stages) waits() {
	if g.out == nil || g.live || g.promised {
		return
	}
	g.promised = true
	text := "waiting, as long as it takes"
	if g.limit > 0 {
		text = "waiting, for " + duration.HumanDuration(g.limit) + " at most"
	}
	g.write(g.line(text) + "\n")
}

// aside has something else said while nothing is drawn.
func (g *stages) aside(say func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return say()
}

// clock says how long the stage takes, and how long it is waited for.
func (g *stages) clock(now time.Time) string {
	clock := fmt.Sprintf("%ds", int(now.Sub(g.began).Seconds()))
	if g.limit > 0 {
		clock += ", for " + duration.HumanDuration(max(g.until.Sub(now), 0)) + " more at most"
	}
	return " (" + clock + ")"
}

func (g *stages) line(stage string) string { return g.what + ": " + stage }

// draw writes the current stage, cut to the width of the terminal.
func (g *stages) draw() {
	if g.stage == "" {
		return
	}
	clock := g.clock(time.Now())
	line := []rune(g.line(g.stage))
	if room := max(g.width-1-len(clock), 0); len(line) > room {
		line = line[:room]
	}
	g.write("\r" + string(line) + clock + "\x1b[K")
}

// end leaves the last stage standing.
func (g *stages) end() {
	g.mu.Lock()
	stage := g.stage
	g.stage = ""
	g.mu.Unlock()
	if !g.live {
		return
	}
	g.live = false
	close(g.stop)
	g.ended.Wait()
	if stage != "" {
		g.write("\r\x1b[K" + g.line(stage) + "\n")
	}
}

func (g *stages) write(text string) {
	// Nobody is left to tell of an error.
	_, _ = io.WriteString(g.out, text)
}
