// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// plan is RUKPAK_FAILPOINTS, parsed.
type plan struct{ points map[string]*point }

type point struct {
	kind string        // exit, panic or sleep
	wait time.Duration // of sleep
	at   int64         // acts at this hit only; 0: at every hit
	hits atomic.Int64
}

// parse reads "name=action;name=action"; an empty text is an empty plan.
func parse(text string) (*plan, error) {
	p := &plan{points: map[string]*point{}}
	for entry := range strings.SplitSeq(text, ";") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		name, action, ok := strings.Cut(entry, "=")
		if !ok {
			return nil, fmt.Errorf("%q has no action", entry)
		}
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("%q is no failpoint of this program", name)
		}
		pt, err := parseAction(action)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		p.points[name] = pt
	}
	return p, nil
}

func parseAction(action string) (*point, error) {
	pt := &point{}
	kind, at, counted := strings.Cut(action, "@")
	if counted {
		n, err := strconv.ParseInt(at, 10, 64)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no count of hits", at)
		}
		pt.at = n
	}
	switch {
	case kind == "exit" || kind == "panic":
		pt.kind = kind
	case strings.HasPrefix(kind, "sleep(") && strings.HasSuffix(kind, ")"):
		wait, err := time.ParseDuration(kind[len("sleep(") : len(kind)-1])
		if err != nil {
			return nil, err
		}
		pt.kind, pt.wait = "sleep", wait
	default:
		return nil, fmt.Errorf("%q is no action: exit, panic or sleep(DURATION)", kind)
	}
	return pt, nil
}

// hit counts one hit of the point and acts; kill is called for exit.
func (p *plan) hit(name string, kill func()) {
	if pt := p.due(name); pt != nil {
		pt.act(name, kill)
	}
}

// due counts one hit of a point and returns it if it is to act now.
func (p *plan) due(name string) *point {
	pt := p.points[name]
	if pt == nil {
		return nil
	}
	if n := pt.hits.Add(1); pt.at != 0 && n != pt.at {
		return nil
	}
	return pt
}

func (pt *point) act(name string, kill func()) {
	switch pt.kind {
	case "exit":
		kill()
	case "panic":
		panic("failpoint " + name)
	case "sleep":
		time.Sleep(pt.wait)
	}
}
