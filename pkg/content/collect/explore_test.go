// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// A run is one interleaving of actors. Each actor is a goroutine that runs the real
// code and stops before each step, a request to etcd, to the store or to the API;
// one of them at a time is let go for one step.
type run struct {
	world   *world
	actors  []*actor
	respawn map[*actor]func(*actor) // what a killed actor's successor does; none: it has none
	ticks   int                     // that may still come
	crashes int                     // that may still come
	trace   []string
}

type actor struct {
	name    string
	bounded func(step string) bool // whether a tick ends the actor that is about to do this step
	turn    chan bool              // false: die
	stopped chan bool              // true: before a step; false: finished
	parked  bool
	next    string      // name of the step it stops before
	ready   func() bool // nil: always
	saw     uint64      // digest of all that it saw since it last forgot
	rounds  int         // that it finished, or died in
}

var seed = maphash.MakeSeed()

// step is called by the goroutine of the actor.
func (a *actor) step(name string, do func() string) {
	a.next = name
	a.stopped <- true
	if !<-a.turn {
		panic(killed{})
	}
	a.ready = nil
	a.saw = maphash.Comparable(seed, [2]any{a.saw, do()})
}

// begin is a step that does nothing, so that the clock that is read next is read at
// a moment of its own.
func (a *actor) begin() { a.step("begin", func() string { return "" }) }

// forget says that nothing of what it saw matters to what it does from now on.
func (a *actor) forget() { a.saw = 0 }

func (r *run) start(a *actor, do func(*actor)) {
	a.turn, a.stopped = make(chan bool), make(chan bool)
	task := func() {
		defer func() {
			if cause := recover(); cause != nil && cause != (killed{}) {
				panic(cause)
			}
			a.stopped <- false
		}()
		do(a)
	}
	select {
	case idle <- task:
	default:
		go func() {
			for {
				task()
				task = <-idle
			}
		}()
	}
	a.parked = <-a.stopped
}

// killed is what a killed actor panics with.
type killed struct{}

// idle has the goroutines of finished actors, which have grown their stacks: an
// exploration starts millions of actors.
var idle = make(chan func())

func (r *run) kill(a *actor) {
	a.turn <- false
	<-a.stopped
	a.parked = false
}

func (r *run) killAll() {
	for _, a := range r.actors {
		if a.parked {
			r.kill(a)
		}
	}
}

// choice is one thing that may happen next: a step or the death of an actor, or a tick.
type choice struct {
	kind  byte // 's', 'c', 't'
	actor int
}

func (r *run) choices() []choice {
	var all []choice
	for i, a := range r.actors {
		if a.parked && (a.ready == nil || a.ready()) {
			all = append(all, choice{'s', i})
		}
	}
	for i, a := range r.actors {
		if a.parked && r.crashes > 0 && r.respawn[a] != nil && a.next != "begin" {
			all = append(all, choice{'c', i})
		}
	}
	if r.ticks > 0 {
		all = append(all, choice{kind: 't'})
	}
	return all
}

func (r *run) do(c choice) {
	a := r.actors[c.actor]
	switch c.kind {
	case 's':
		r.trace = append(r.trace, a.name+": "+a.next)
		a.turn <- true
		a.parked = <-a.stopped
	case 'c':
		r.trace = append(r.trace, a.name+" is killed before: "+a.next)
		r.crashes--
		r.kill(a)
		a.forget()
		a.rounds++ // the one that it was in is over
		r.start(a, r.respawn[a])
	case 't':
		r.ticks--
		r.world.ticks++
		r.trace = append(r.trace, "more than a grace period passes")
		for _, a := range r.actors {
			if a.parked && a.bounded != nil && a.bounded(a.next) {
				r.trace = append(r.trace, a.name+" gives up before: "+a.next)
				r.kill(a)
			}
		}
	}
}

// key is the same for two runs only if the same can happen next in both.
func (r *run) key() uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	fmt.Fprint(&h, r.world.state(), r.ticks, r.crashes)
	for _, a := range r.actors {
		fmt.Fprint(&h, ";", a.parked, a.saw, a.rounds, a.next)
	}
	return h.Sum64()
}

// result counts what an exploration saw.
type result struct{ states, runs int }

// explore walks every interleaving of the runs that newRun starts, all of them alike,
// and calls check in every state that it has not seen yet. It begins anew for each
// branch and repeats the choices that lead there, since a goroutine cannot be copied.
func explore(newRun func() *run, check func(*run) error) (result, error) {
	seen := map[uint64]struct{}{}
	open := [][]choice{nil}
	var res result
	for len(open) > 0 {
		path := open[len(open)-1]
		open = open[:len(open)-1]
		res.runs++
		r := newRun()
		for _, c := range path {
			r.do(c)
		}
		more, err := r.follow(path, seen, check)
		r.killAll()
		res.states = len(seen)
		if err != nil {
			return res, fmt.Errorf("%w, after\n\t%s", err, strings.Join(r.trace, "\n\t"))
		}
		open = append(open, more...)
	}
	return res, nil
}

// follow goes on with the first choice until a state that was seen, and returns the paths not taken.
func (r *run) follow(path []choice, seen map[uint64]struct{}, check func(*run) error) ([][]choice, error) {
	var more [][]choice
	for {
		key := r.key()
		if _, ok := seen[key]; ok {
			return more, nil
		}
		seen[key] = struct{}{}
		if err := check(r); err != nil {
			return nil, err
		}
		choices := r.choices()
		if len(choices) == 0 {
			return more, nil
		}
		for _, c := range choices[1:] {
			more = append(more, append(path[:len(path):len(path)], c))
		}
		path = append(path[:len(path):len(path)], choices[0])
		r.do(choices[0])
	}
}
