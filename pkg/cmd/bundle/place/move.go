// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// modes are the bits of a mode that chmod(2) sets.
const modes = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// move is a renaming to where nothing is.
type move struct{ from, to string }

// moves are those of entries from one folder to another.
func moves(names []string, from, to string) []move {
	moves := make([]move, len(names))
	for i, name := range names {
		moves[i] = move{filepath.Join(from, name), filepath.Join(to, name)}
	}
	return moves
}

// all does moves until one fails, and returns how many it did.
func all(moves []move) (int, error) {
	for i, m := range moves {
		if err := m.do(); err != nil {
			return i, err
		}
	}
	return len(moves), nil
}

// undo moves back, the last first, as much as can be.
func undo(moves []move) error {
	var errs []error
	for _, m := range slices.Backward(moves) {
		errs = append(errs, move{m.to, m.from}.do())
	}
	return errors.Join(errs...)
}

func (m move) do() error { return renamed(func() error { return rename(m.from, m.to) }, m) }

// renamed does a renaming of directories. Who moves one must be allowed to write to it, which its mode may not say: then it does
// meanwhile.
func renamed(rename func() error, moves ...move) error {
	err := rename()
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	was := make([]fs.FileMode, len(moves)) // of those that were changed
	for i, m := range moves {
		info, statErr := os.Lstat(m.from)
		if statErr != nil || !info.IsDir() || info.Mode()&0o200 != 0 {
			continue
		}
		if os.Chmod(m.from, info.Mode()&modes|0o700) == nil {
			was[i] = info.Mode()
		}
	}
	err = rename()
	failed := err != nil
	for i, m := range moves {
		path := m.to
		if failed {
			path = m.from
		}
		if was[i] != 0 {
			err = errors.Join(err, os.Chmod(path, was[i]&modes))
		}
	}
	return err
}

// renameWhereNothingIs renames on systems that do not look at the same time whether anything is there.
func renameWhereNothingIs(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: fs.ErrExist}
	}
	return os.Rename(from, to)
}
