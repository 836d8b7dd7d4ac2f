// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package place puts a folder of new files where a folder is, or is to be. What is there is moved or deleted only where it is to be
// replaced, and deleted only when the new files are in its place. What a crash leaves is brought to an end by the next call, or named.
//
// All that is made on the way is in a folder beside, or in the folder itself where that one stays:
//
//	.app.kubectl-bundle-pull/    beside the folder app; .kubectl-bundle-pull/ in one that is empty, or where something is mounted
//	    lock                     locked by the pull that is at work, and there as long as anything else but archives is
//	    archive.sha256-….part    what has come of an archive
//	    new/                     what is to be put in place, and after an exchange what was there
//	    old/                     what was moved away; it is to come back
//	    replaced/                the same, from when all of it is away; it is to go, and what is new to be put in place
package place

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"rukpak.io/apiserver/pkg/tarball/extract"
)

// Errors of Open and Put. They come with the path that they are about, and nothing was changed there.
var (
	// ErrRoot means that the folder is the root of a file system, beside which there is nothing.
	ErrRoot = errors.New("is the root of the file system")
	// ErrNotEmpty means that there are files in the folder, which were not to be replaced.
	ErrNotEmpty = errors.New("is not empty")
	// ErrArrived means that something came to be there since Open.
	ErrArrived = errors.New("has come to be there meanwhile")
	// ErrBusy means that another process is putting files there.
	ErrBusy = errors.New("is being written by another pull")
	// ErrForeign means that something has the name that this package needs, and is not its own.
	ErrForeign = errors.New("is in the way: no pull has left it so")
	// ErrReserved means that one of the new files has that name.
	ErrReserved = errors.New("is a name that pull keeps for itself")
	// ErrMounted means that something is mounted in what is to be replaced.
	ErrMounted = errors.New("is where something is mounted")
)

// KeptError means that files of the user's are where they do not belong, and could not be put back.
type KeptError struct {
	// Dir is the folder that they are in.
	Dir string
	Err error
}

func (e *KeptError) Error() string {
	return fmt.Sprintf("%v; what was there is kept in %s", e.Err, e.Dir)
}

// Unwrap is for errors.Is and errors.As.
func (e *KeptError) Unwrap() error { return e.Err }

// about says what an error is about.
func about(path string, err error) error { return fmt.Errorf("%s %w", path, err) }

// Options say how.
type Options struct {
	// Replace what is there.
	Replace bool
	// Healed is told what was done about a crash of before, in words.
	Healed func(string)
}

// Place is a folder that files are put at. Only one at a time is open for a folder, where the system has locks (flock(2)).
type Place struct {
	Options
	// path is the folder, which no symbolic link leads to.
	path string
	// name is the entry of work.root that it is, or empty: then it is work.root itself, and stays.
	name string
	work *work
	// all are open: a crash may have left another than the one that is needed now.
	all []*work
}

// Open looks at what is at a path, which may be a symbolic link to a folder, and makes the folder that it is to be in. Whoever
// has opened it closes it.
func Open(path string, opts Options) (_ *Place, err error) {
	path, err = resolve(path)
	if err != nil {
		return nil, err
	}
	parent, base := filepath.Split(path)
	if base == "" {
		return nil, about(path, ErrRoot)
	}
	p := &Place{Options: opts, path: path}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	beside, inside := filepath.Join(parent, "."+base+workName), filepath.Join(path, workName)
	for _, left := range []struct{ dir, root string }{{beside, parent}, {inside, path}} {
		if err := p.heal(left.dir, left.root); err != nil {
			return nil, err
		}
	}
	stays, err := p.look()
	if err != nil {
		return nil, err
	}
	if stays {
		p.work, err = p.open(inside, path)
		return p, err
	}
	p.name = base
	p.work, err = p.open(beside, parent)
	return p, err
}

// resolve follows symbolic links, and makes the folder in which a path is.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	if _, there := os.Lstat(path); there == nil {
		return "", err // a link to nothing
	}
	parent := filepath.Dir(path)
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return "", err
	}
	if parent, err = filepath.EvalSymlinks(parent); err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(path)), nil
}

// look reports whether the folder stays the one that it is.
func (p *Place) look() (stays bool, err error) {
	there, err := others(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if len(there) > 0 && !p.Replace {
		return false, about("folder "+p.path, ErrNotEmpty)
	}
	return len(there) == 0 || isMount(p.path), nil
}

// others are the entries of a folder but for those of this package. A file system that was just made holds lost+found, which is
// nobody's to move.
func others(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.Name() != workName && !(e.Name() == "lost+found" && isMount(dir)) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Archive is the path beside which an archive is kept for the folder, also when it is closed: the next Open finds it.
func (p *Place) Archive() string { return p.work.at("archive") }

// Fresh makes an empty folder for the new files.
func (p *Place) Fresh() (string, error) {
	dir := p.work.at(newName)
	if err := os.Mkdir(dir, 0o700); err != nil || p.name == "" {
		return dir, err
	}
	dir = filepath.Join(dir, p.name)
	// The mode is that which the user's umask gives to folders.
	return dir, os.Mkdir(dir, 0o777)
}

// Put puts what is in the folder of Fresh in place, whole or not at all, and deletes what it replaces then. What it cannot put back
// after a failure the error names: KeptError.
func (p *Place) Put() error {
	if p.Replace {
		// What is new outlasts a loss of power before what is old goes. What may not be read is not synced everywhere.
		if err := extract.Sync(p.work.at(newName)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	come, away, err := p.plan()
	if err != nil {
		return err
	}
	if p.name == "" || len(away) == 0 {
		return p.work.change(away, come)
	}
	fresh := filepath.Join(p.work.at(newName), p.name)
	info, err := os.Stat(p.path)
	if err != nil {
		return err
	}
	if err := os.Chmod(fresh, info.Mode()&modes); err != nil {
		return err
	}
	err = renamed(func() error { return exchange(fresh, p.path) }, move{fresh, p.path}, move{p.path, fresh})
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return p.work.change(away, come)
	case err != nil:
		return err
	}
	return p.work.dispose(newName)
}

// plan decides what comes and what goes away, and refuses what may not.
func (p *Place) plan() (come, away []string, err error) {
	if come, err = names(p.work.at(newName)); err != nil {
		return nil, nil, err
	}
	files := come
	if p.name == "" {
		away, err = others(p.path)
	} else {
		if files, err = names(filepath.Join(p.work.at(newName), p.name)); err != nil {
			return nil, nil, err
		}
		away, err = p.whole()
	}
	if err != nil {
		return nil, nil, err
	}
	for _, name := range files {
		if strings.EqualFold(name, workName) {
			return nil, nil, about(name, ErrReserved)
		}
	}
	return come, away, p.may(come, away)
}

// whole is what is where the folder is to be.
func (p *Place) whole() ([]string, error) {
	info, err := os.Lstat(p.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, about(p.path, ErrArrived)
	}
	return []string{p.name}, nil
}

// may refuses what would take from the user what is not to be replaced.
func (p *Place) may(come, away []string) error {
	goes := map[string]bool{}
	for _, name := range away {
		path := filepath.Join(p.work.root, name)
		if !p.Replace {
			return about(path, ErrArrived)
		}
		mounted, err := mounts(path)
		if err != nil {
			return err
		}
		if len(mounted) > 0 {
			return about(mounted[0], ErrMounted)
		}
		goes[name] = true
	}
	for _, name := range come {
		path := filepath.Join(p.work.root, name)
		if _, err := os.Lstat(path); err == nil && !goes[name] {
			return &fs.PathError{Op: "write", Path: path, Err: fs.ErrExist}
		}
	}
	return nil
}

// names are the entries of a folder.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// Close removes what is left but for archives, and for what the error of Put named.
func (p *Place) Close() error {
	var errs []error
	for _, w := range p.all {
		errs = append(errs, w.close())
	}
	return errors.Join(errs...)
}
