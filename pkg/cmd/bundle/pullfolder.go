// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"rukpak.io/apiserver/pkg/cmd/bundle/download"
	"rukpak.io/apiserver/pkg/tarball/extract"
)

// ours is how the names begin of what is in a folder while it is filled. With it the folder counts as empty.
const ours = ".kubectl-bundle."

// place is where the files of a content go.
type place struct {
	// path is the folder, which no symbolic link leads to.
	path string
	// fill means that the folder is there and stays: files are put into it. Otherwise a folder is put in its place.
	fill bool
	// beside is the folder that all is made in, and prefix how the names there begin.
	beside, prefix string
}

// findPlace decides how files get to a path.
func findPlace(path string, replace bool) (*place, error) {
	path, err := resolve(path)
	if err != nil {
		return nil, err
	}
	parent, base := filepath.Split(path)
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && base != "":
		if err := os.MkdirAll(parent, 0o777); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	default:
		mount := base == "" || isMount(path)
		taken := len(others(entries, mount)) > 0
		if taken && !replace {
			return nil, fail(ExitLocal, fmt.Errorf("folder %s is not empty", path), "--replace replaces what is in it; or name another")
		}
		if mount || !taken {
			return &place{path: path, fill: true, beside: path, prefix: ours}, nil
		}
	}
	return &place{path: path, beside: parent, prefix: "." + base + "."}, nil
}

// resolve follows the symbolic link that a path may be.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if info, err := os.Lstat(path); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return path, nil
	}
	return filepath.EvalSymlinks(path)
}

// others are the entries of a folder that a pull did not leave there. A file system that was just made holds lost+found, which is
// nobody's to move.
func others(entries []os.DirEntry, mount bool) []os.DirEntry {
	var others []os.DirEntry
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ours) && !(mount && e.Name() == "lost+found") {
			others = append(others, e)
		}
	}
	return others
}

// folder makes files out of the archive: beside, or in a folder of their own, and in place when they are all there.
func (p *puller) folder(ctx context.Context, path string, replace bool) (err error) {
	to, err := findPlace(path, replace)
	if err != nil {
		return err
	}
	p.to = filepath.Base(path)
	result, err := download.Part(ctx, p.Bundle, filepath.Join(to.beside, strings.TrimSuffix(to.prefix, ".")), p)
	if err := p.fetched(ctx, err); err != nil {
		return err
	}
	holder, err := os.MkdirTemp(to.beside, to.prefix+"*.new")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, extract.Remove(holder)) }()
	files, err := unpack(ctx, result.Part, filepath.Join(holder, "new"))
	if err != nil {
		return p.notUnpacked(ctx, result.Part, err)
	}
	if err := to.put(holder); err != nil {
		return err
	}
	p.say("%s: %s, %s", path, result.Digest, plural(files, "file"))
	return os.Remove(result.Part)
}

// notUnpacked tells that the archive need not come again.
func (p *puller) notUnpacked(ctx context.Context, part string, err error) error {
	explained := p.explain(ctx, err)
	hint := "the archive is kept in " + part + ": the same command unpacks it, and fetches nothing again"
	if explained.hint != "" && ctx.Err() == nil {
		hint = explained.hint + "; " + hint
	}
	return fail(explained.code, explained.err, "%s", hint)
}

// unpack makes a new folder of an archive, and returns how many files are in it.
func unpack(ctx context.Context, archive, folder string) (int64, error) {
	// The mode is that which the user's umask gives to folders.
	if err := os.Mkdir(folder, 0o777); err != nil {
		return 0, err
	}
	file, err := os.Open(archive)
	if err != nil {
		return 0, err
	}
	defer closing(file)
	summary, err := extract.Tree(ctx, file, folder, extract.Options{Mode: extract.Exact})
	return summary.Files, err
}

// put puts the folder "new" of holder in place, and what was there into holder.
func (to *place) put(holder string) error {
	fresh, old := filepath.Join(holder, "new"), filepath.Join(holder, "old")
	if to.fill {
		return to.fillFrom(holder)
	}
	if info, err := os.Stat(to.path); err == nil {
		if err := os.Chmod(fresh, info.Mode().Perm()); err != nil {
			return err
		}
	}
	if err := os.Rename(to.path, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(fresh, to.path); err != nil {
		return errors.Join(err, restore(old, to.path))
	}
	return nil
}

func restore(old, path string) error {
	if err := os.Rename(old, path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// fillFrom moves what is in the folder to "old" in holder, with holders that crashes left, and what is in "new" into the folder.
// What fails is undone.
func (to *place) fillFrom(holder string) error {
	fresh, old := filepath.Join(holder, "new"), filepath.Join(holder, "old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	there, err := os.ReadDir(to.path)
	if err != nil {
		return err
	}
	come, err := os.ReadDir(fresh)
	if err != nil {
		return err
	}
	var moves []move
	away := others(there, true)
	for _, e := range there {
		if left, _ := filepath.Match(ours+"*.new", e.Name()); left && e.Name() != filepath.Base(holder) {
			away = append(away, e)
		}
	}
	for _, e := range away {
		moves = append(moves, move{filepath.Join(to.path, e.Name()), filepath.Join(old, e.Name())})
	}
	for _, e := range come {
		moves = append(moves, move{filepath.Join(fresh, e.Name()), filepath.Join(to.path, e.Name())})
	}
	for i, m := range moves {
		if err := m.do(); err != nil {
			return errors.Join(err, undo(moves[:i]))
		}
	}
	return nil
}

// move is a renaming to where nothing is.
type move struct{ from, to string }

func (m move) do() error {
	if _, err := os.Lstat(m.to); err == nil {
		return &fs.PathError{Op: "write", Path: m.to, Err: fs.ErrExist}
	}
	err := os.Rename(m.from, m.to)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	// Who moves a directory must be allowed to write to it, which its mode may not say.
	info, statErr := os.Lstat(m.from)
	if statErr != nil || !info.IsDir() {
		return err
	}
	if err := os.Chmod(m.from, info.Mode().Perm()|0o700); err != nil {
		return err
	}
	if err := os.Rename(m.from, m.to); err != nil {
		return errors.Join(err, os.Chmod(m.from, info.Mode().Perm()))
	}
	return os.Chmod(m.to, info.Mode().Perm())
}

// undo moves back, the last first.
func undo(moves []move) error {
	var errs []error
	for i := len(moves) - 1; i >= 0; i-- {
		errs = append(errs, move{moves[i].to, moves[i].from}.do())
	}
	return errors.Join(errs...)
}
