// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// where are the flags with which another command, of this program or kubectl, has to do with the same server, user and namespace as
// this one, each with a space in front. Every command in a hint has them: it may be pasted, and delete something. An empty namespace is
// the one that -n chose, if it did. A token is left out, since it is a secret.
func (s *session) where(namespace string) string { return s.flagsBut(namespace, "token") }

// elsewho are the same for somebody else, who may do what the user may not.
func (s *session) elsewho(namespace string) string {
	return s.flagsBut(namespace, "token", "as", "as-group", "as-uid", "as-user-extra", "user", "client-certificate", "client-key")
}

func (s *session) flagsBut(namespace string, leftOut ...string) string {
	var b strings.Builder
	if s.given != nil {
		s.given.VisitAll(func(f *pflag.Flag) {
			if f.Changed && f.Name != "namespace" && !slices.Contains(leftOut, f.Name) {
				b.WriteString(written(f))
			}
		})
	}
	if namespace = cmp.Or(namespace, *s.flags.Namespace); namespace != "" {
		b.WriteString(" -n " + quoted(namespace))
	}
	return b.String()
}

// written is a flag as it is given.
func written(f *pflag.Flag) string {
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand
	}
	values := []string{f.Value.String()}
	switch several, ok := f.Value.(pflag.SliceValue); {
	case ok:
		values = several.GetSlice()
	case f.NoOptDefVal != "":
		return " " + name + "=" + values[0]
	}
	var b strings.Builder
	for _, value := range values {
		b.WriteString(" " + name + " " + quoted(value))
	}
	return b.String()
}

// stateOf is the state of a bundle, whose hints are for the same server and user.
func (s *session) stateOf(b *v1alpha1.Bundle) state {
	st := stateOf(b)
	st.where = s.where(b.Namespace)
	return st
}

// quoted is a word of a shell's.
func quoted(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// plain are words that mean to a shell what they are, and that are no flags.
var plain = regexp.MustCompile(`^[\w./:@%+=,][\w./:@%+=,-]*$`)

// localWord is a path of this machine as diff takes it: with a slash, which tells it from a bundle.
func localWord(path string) string {
	if !isLocal(path) || hasKind(path) {
		path = "./" + path
	}
	return quoted(path)
}
