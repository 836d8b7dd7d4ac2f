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
)

// stages shows the stages of something that is waited for: each on a line, and on a terminal how long the current one takes.
type stages struct {
	out   io.Writer // nil to show nothing
	what  string
	live  bool
	width int
	stop  chan struct{}
	ended sync.WaitGroup

	mu    sync.Mutex
	began time.Time // the stage
	stage string
}

// stageEvery is the time between two looks at the clock on a terminal.
const stageEvery = time.Second

func (s *session) stages(name string) *stages {
	g := &stages{what: "bundle/" + name, stop: make(chan struct{})}
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

func (g *stages) line(stage string) string { return g.what + ": " + stage }

// draw writes the current stage, cut to the width of the terminal.
func (g *stages) draw() {
	if g.stage == "" {
		return
	}
	clock := fmt.Sprintf(" (%ds)", int(time.Since(g.began).Seconds()))
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
