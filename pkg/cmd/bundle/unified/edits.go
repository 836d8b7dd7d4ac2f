// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unified

import (
	"context"
	"slices"
)

// edit is a change: lines of a from one on that are left out, and those of b that are in their place.
type edit struct {
	a, b             int
	deleted, written int
}

func (e edit) endA() int { return e.a + e.deleted }
func (e edit) endB() int { return e.b + e.written }

// compare finds the changes, the fewest lines that there can be, in order. It is the greedy algorithm of E. Myers, "An O(ND) Difference
// Algorithm and Its Variations", on numbers in place of lines.
func (c *comparison) compare(ctx context.Context) ([]edit, error) {
	x, y := number(c.a, c.b)
	head := 0
	for head < len(x) && head < len(y) && x[head] == y[head] {
		head++
	}
	x, y = x[head:], y[head:]
	for len(x) > 0 && len(y) > 0 && x[len(x)-1] == y[len(y)-1] {
		x, y = x[:len(x)-1], y[:len(y)-1]
	}
	if len(x) == 0 && len(y) == 0 {
		return nil, nil
	}
	if len(x) == 0 || len(y) == 0 {
		return []edit{{head, head, len(x), len(y)}}, nil
	}
	s := &search{x: x, y: y}
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	return s.edits(head), nil
}

// number gives each line a number, the same to the same lines.
func number(a, b [][]byte) (x, y []int32) {
	known := map[string]int32{}
	numbers := func(lines [][]byte) []int32 {
		all := make([]int32, len(lines))
		for i, line := range lines {
			n, ok := known[string(line)]
			if !ok {
				n = int32(len(known))
				known[string(line)] = n
			}
			all[i] = n
		}
		return all
	}
	return numbers(a), numbers(b)
}

// search finds a shortest way from the beginning of x and y to their ends: a step is a line of x left out, or one of y written, and lines
// that are the same are passed without a step. A diagonal is how many more lines of x than of y are behind.
type search struct {
	x, y []int32
	// reached are, for each number of steps d, how far in x it gets on the diagonals -d to d, every second of which there is.
	reached [][]int32
	steps   int
}

func (s *search) run(ctx context.Context) error {
	for d := 0; d <= maxEdits; d++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		row := make([]int32, d+1)
		s.reached = append(s.reached, row)
		for k := -d; k <= d; k += 2 {
			i := s.enter(d, k)
			from := i
			for i < len(s.x) && i-k < len(s.y) && s.x[i] == s.y[i-k] {
				i++
			}
			row[(k+d)/2] = int32(i)
			if s.steps += 1 + i - from; s.steps > maxSteps {
				return ErrTooDifferent
			}
			if i >= len(s.x) && i-k >= len(s.y) {
				return nil
			}
		}
	}
	return ErrTooDifferent
}

// enter is where in x the d-th step gets to a diagonal: down from the one above, or to the right from the one below.
func (s *search) enter(d, k int) int {
	switch {
	case d == 0:
		return 0
	case s.down(d, k):
		return s.at(d-1, k+1)
	}
	return s.at(d-1, k-1) + 1
}

// down tells whether the step is one that writes a line of y.
func (s *search) down(d, k int) bool {
	return k == -d || k != d && s.at(d-1, k-1) < s.at(d-1, k+1)
}

func (s *search) at(d, k int) int { return int(s.reached[d][(k+d)/2]) }

// edits follows the way back, and joins its steps. Both texts have head lines in front of what was searched.
func (s *search) edits(head int) []edit {
	var edits []edit
	k := len(s.x) - len(s.y)
	for d := len(s.reached) - 1; d > 0; d-- {
		i := s.enter(d, k)
		e := edit{a: head + i, b: head + i - k}
		if s.down(d, k) {
			e.b, e.written = e.b-1, 1
			k++
		} else {
			e.a, e.deleted = e.a-1, 1
			k--
		}
		if n := len(edits); n > 0 && e.endA() == edits[n-1].a && e.endB() == edits[n-1].b {
			next := edits[n-1]
			edits[n-1] = edit{e.a, e.b, e.deleted + next.deleted, e.written + next.written}
			continue
		}
		edits = append(edits, e)
	}
	slices.Reverse(edits)
	return edits
}
