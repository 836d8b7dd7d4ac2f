// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package failpoint marks the places at which a test may stop, kill or delay
// this process, so that the claim "a crash here loses nothing" can be tried.
//
// In an ordinary build Hit is an empty function that the compiler inlines away.
// In a build with the tag "failpoints" it does what the environment variable
// RUKPAK_FAILPOINTS says for its name:
//
//	name=exit          SIGKILL to this process, as kill -9 and the OOM killer send it (or,
//	                   for the first process of a container, an end that is as sudden)
//	name=exit@3        the same, at the third hit
//	name=panic         panic
//	name=sleep(100ms)  wait, so that a test can reach the moment from outside
//
// Several are separated by semicolons; every action takes an @N, counted from 1.
// Without it every hit acts. A name that Names does not list, or an action that
// is not in this list, ends the process at the first hit with a message: a
// misspelt point would make a crash test pass without a crash.
//
// A value that begins with @ names a file that holds such a text instead. It need
// not be there; it is read at every hit, so that it can come while the process
// runs, and removed before an action is taken, so that the process that comes after
// a crash does not crash again.
package failpoint

import "slices"

// names holds every point of the program, in the order of the work. A new point is
// entered here; a test compares the list with the source.
var names = []string{
	"unpack/after-attempt-write",
	"unpack/after-pod-create",
	"unpack/after-uid-write",
	"upload/after-reference",
	"upload/after-blob",
	"upload/after-session",
	"upload/after-commit",
	"upload/after-finish",
	"content/after-create",
	"content/after-write",
	"content/after-upload",
	"reference/after-add",
	"content/after-reference",
	"content/before-rename",
	"content/after-rename",
	"content/after-dirsync",
	"etcdstore/after-reserve",
	"etcdstore/after-chunk",
	"etcdstore/after-commit",
	"bucket/after-put",
	"bucket/after-upload",
	"bucket/after-copy",
	"content/after-blob",
	"content/after-status",
	"unpack/after-pod-delete",
	"collect/after-live",
	"collect/after-remove-record",
	"collect/after-mark",
	"collect/after-deleting",
	"content/after-delete",
	"etcdstore/after-delete",
	"bucket/after-delete",
	"collect/after-delete",
	"collect/after-unmark",
}

// Names lists the points that this program has.
func Names() []string { return slices.Clone(names) }
