// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"rukpak.io/apiserver/pkg/flock"
	"rukpak.io/apiserver/pkg/tarball/extract"
)

const (
	workName     = ".kubectl-bundle-pull"
	lockName     = "lock"
	newName      = "new"
	oldName      = "old"
	replacedName = "replaced"
)

var archiveName = regexp.MustCompile(`^archive\.sha256-[0-9a-f]{64}\.part$`)

// work is the folder in which the entries of root are made that are to be new, and kept that are old.
type work struct {
	dir, root string
	lock      *os.File // nil where the system, or the file system, has no locks
}

func (w *work) at(name string) string { return filepath.Join(w.dir, name) }

func (w *work) has(name string) bool {
	_, err := os.Lstat(w.at(name))
	return err == nil
}

// open makes or opens a folder to work in.
func (p *Place) open(dir, root string) (*work, error) {
	for _, w := range p.all {
		if w.dir == dir {
			return w, nil
		}
	}
	w, err := openWork(dir, root)
	if errors.Is(err, flock.ErrBusy) {
		err = about(p.path, ErrBusy)
	}
	if err != nil {
		return nil, err
	}
	p.all = append(p.all, w)
	return w, nil
}

// heal brings to an end what a crash has left in a folder to work in, if there is one.
func (p *Place) heal(dir, root string) error {
	if _, err := os.Lstat(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	w, err := p.open(dir, root)
	if err != nil {
		return err
	}
	done, err := w.heal()
	if done != "" && p.Healed != nil {
		p.Healed(done)
	}
	return err
}

// openWork makes or opens a folder to work in, and locks it.
func openWork(dir, root string) (*work, error) {
	for {
		err := os.Mkdir(dir, 0o700)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// It cannot be made, though there may be what it is to be in, as in /proc.
			return nil, err
		case errors.Is(err, fs.ErrExist):
			err = recognize(dir)
		}
		var lock *os.File
		if err == nil {
			lock, err = flock.TryOpen(filepath.Join(dir, lockName), flock.Exclusive)
		}
		switch {
		case err == nil, errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.ENOLCK):
			return &work{dir: dir, root: root, lock: lock}, nil
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		// Whoever had the lock has just removed the folder.
	}
}

// recognize refuses a folder that is not of this package, or that is somebody else's.
func recognize(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || !own(info) {
		return about(dir, ErrForeign)
	}
	names, err := names(dir)
	if err != nil {
		return err
	}
	locked, used := false, false
	for _, name := range names {
		switch {
		case name == lockName:
			locked = true
		case name == newName, name == oldName, name == replacedName:
			used = true
		case !archiveName.MatchString(name):
			return about(filepath.Join(dir, name), ErrForeign)
		}
	}
	if used && !locked {
		return about(dir, ErrForeign)
	}
	return nil
}

// heal puts back what was moved away, or goes on where all of that was done, and says so.
func (w *work) heal() (done string, err error) {
	switch {
	case w.has(oldName):
		if err := w.back(); err != nil {
			return "", &KeptError{w.at(oldName), fmt.Errorf("a pull that broke off had moved files away: %w", err)}
		}
		done = "a pull that broke off is undone: what was there is back"
	case w.has(replacedName):
		if err := w.forward(); err != nil {
			return "", &KeptError{w.dir, fmt.Errorf("a pull that broke off had put only some of its files in place: %w", err)}
		}
		done = "a pull that broke off is brought to its end: all of its files are in place"
	case w.has(newName):
		done = "what a pull that broke off had made, or had replaced, is removed"
	}
	return done, w.remove(newName)
}

// back moves what is in old to where it was.
func (w *work) back() error {
	names, err := names(w.at(oldName))
	if err != nil {
		return err
	}
	if err := undo(moves(names, w.root, w.at(oldName))); err != nil {
		return err
	}
	return os.Remove(w.at(oldName))
}

// forward moves the rest of what is new to where it is to be, and deletes what it replaces, and the archive that it came from.
func (w *work) forward() error {
	rest, err := names(w.at(newName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, m := range moves(rest, w.at(newName), w.root) {
		if err := m.do(); err != nil {
			return err
		}
	}
	left, err := names(w.dir)
	for _, name := range left {
		if archiveName.MatchString(name) {
			err = errors.Join(err, os.Remove(w.at(name)))
		}
	}
	return errors.Join(err, w.remove(replacedName))
}

// change moves entries of root away and those of new in. What fails is undone.
func (w *work) change(away, come []string) error {
	out, in := moves(away, w.root, w.at(oldName)), moves(come, w.at(newName), w.root)
	if len(out) == 0 && len(in) == 1 {
		return in[0].do() // in one step, of which nothing can be left
	}
	if err := os.Mkdir(w.at(oldName), 0o700); err != nil {
		return err
	}
	n, err := all(out)
	if err != nil {
		return w.undone(err, nil, out[:n])
	}
	if err := os.Rename(w.at(oldName), w.at(replacedName)); err != nil {
		return w.undone(err, nil, out)
	}
	if n, err = all(in); err != nil {
		return w.undone(err, in[:n], out)
	}
	return w.dispose(replacedName)
}

// dispose deletes what was replaced.
func (w *work) dispose(name string) error {
	if err := w.remove(name); err != nil {
		return &KeptError{w.at(name), fmt.Errorf("the new files are in place, but what they replace cannot be deleted: %w", err)}
	}
	return nil
}

// undone undoes moves because of an error, and returns it.
func (w *work) undone(cause error, in, out []move) error {
	err := undo(in)
	if err == nil && w.has(replacedName) {
		err = os.Rename(w.at(replacedName), w.at(oldName))
	}
	if err == nil {
		err = undo(out)
	}
	if err == nil {
		err = os.Remove(w.at(oldName))
	}
	if err != nil {
		return &KeptError{w.dir, errors.Join(cause, err)}
	}
	return cause
}

// remove deletes a folder of this one, unless something is mounted in it.
func (w *work) remove(name string) error {
	if !w.has(name) {
		return nil
	}
	mounted, err := mounts(w.at(name))
	if err != nil {
		return err
	}
	if len(mounted) > 0 {
		return about(mounted[0], ErrMounted)
	}
	return extract.Remove(w.at(name))
}

// close removes what nobody needs, the lock last, and the folder if nothing is left.
func (w *work) close() error {
	err := w.clear()
	if w.lock != nil {
		err = errors.Join(err, w.lock.Close())
	}
	if err != nil {
		return err
	}
	// Archives stay, and so does what another pull has begun by now.
	if err := os.Remove(w.dir); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// clear removes what is new, and the lock. Where there is something of the user's it stays as it is.
func (w *work) clear() error {
	if w.has(oldName) || w.has(replacedName) {
		return nil
	}
	if err := w.remove(newName); err != nil {
		return err
	}
	if err := os.Remove(w.at(lockName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
