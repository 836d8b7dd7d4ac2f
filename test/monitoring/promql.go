// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Query is what an expression of PromQL asks for.
type Query struct {
	Selectors []Selector
	// Grouped are the labels of by, on and group_left: those that the result can have.
	Grouped []string
}

// Selector is a metric with the labels that it is chosen by.
type Selector struct {
	Name   string
	Labels []string
}

var (
	token   = regexp.MustCompile(`^(?:\s+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\]]*\]|[0-9][0-9a-z.]*|[a-zA-Z_:][a-zA-Z0-9_:]*|=~|!~|!=|[<>]=|==|.)`)
	name    = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	words   = []string{"and", "or", "unless", "bool", "offset", "inf", "nan"}
	groups  = []string{"by", "on", "group_left", "group_right"}
	ignores = []string{"without", "ignoring"}
)

// Parse finds the metrics and the labels of an expression. It knows as much of the language as that takes, and
// complains about parentheses that do not match.
func Parse(expr string) (Query, error) {
	var q Query
	tokens := split(expr)
	var open []string
	for i := 0; i < len(tokens); i++ {
		t, next := tokens[i], ""
		if i+1 < len(tokens) {
			next = tokens[i+1]
		}
		switch {
		case t == "(":
			open = append(open, t)
		case t == ")":
			if len(open) == 0 {
				return q, fmt.Errorf("%q closes what was not opened", expr)
			}
			open = open[:len(open)-1]
		case t == "{" || t == "}":
			return q, fmt.Errorf("%q has braces without a metric", expr)
		case !name.MatchString(t) || slices.Contains(words, strings.ToLower(t)):
		case slices.Contains(groups, t) || slices.Contains(ignores, t):
			list, end, err := enclosed(tokens, i+1, "(", ")")
			if err != nil {
				return q, fmt.Errorf("%q: %w", expr, err)
			}
			if slices.Contains(groups, t) {
				q.Grouped = append(q.Grouped, names(list)...)
			}
			i = end
		case next == "(" || next == "by" || next == "without": // a function or an aggregation
		case next == "{":
			list, end, err := enclosed(tokens, i+1, "{", "}")
			if err != nil {
				return q, fmt.Errorf("%q: %w", expr, err)
			}
			q.Selectors = append(q.Selectors, Selector{t, names(list)})
			i = end
		default:
			q.Selectors = append(q.Selectors, Selector{Name: t})
		}
	}
	if len(open) > 0 {
		return q, fmt.Errorf("%q leaves %d parentheses open", expr, len(open))
	}
	return q, nil
}

// split returns the tokens without white space. Ranges in brackets are left out.
func split(expr string) []string {
	var tokens []string
	for expr != "" {
		t := token.FindString(expr)
		if t == "" {
			t = expr[:1] // a line break, which . does not match
		}
		expr = expr[len(t):]
		if strings.TrimSpace(t) != "" && t[0] != '[' {
			tokens = append(tokens, t)
		}
	}
	return tokens
}

// enclosed returns the tokens between two others, and where the second one is.
func enclosed(tokens []string, at int, first, last string) ([]string, int, error) {
	if at >= len(tokens) || tokens[at] != first {
		return nil, 0, fmt.Errorf("a %s is missing", first)
	}
	end := slices.Index(tokens[at:], last)
	if end < 0 {
		return nil, 0, fmt.Errorf("a %s is missing", last)
	}
	return tokens[at+1 : at+end], at + end, nil
}

func names(tokens []string) []string {
	var found []string
	for _, t := range tokens {
		if name.MatchString(t) {
			found = append(found, t)
		}
	}
	return found
}
