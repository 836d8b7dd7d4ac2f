// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/flock"
	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/tarball/extract"
)

// The names in a volume. Two dots at the front, as the kubelet's own volumes have them, keep patterns such as * from finding them.
//
//	current        a symbolic link to the content that is current
//	..HEX/         the files of a content, all of them
//	..HEX.new/     files that are being written
//	..current.new  the link that is about to become current
//	..told         the digest that was last told to whom it concerns
//	..lock         locked while somebody writes to the volume
const (
	currentName = "current"
	prefix      = ".."
	suffixNew   = ".new"
	nextName    = prefix + currentName + suffixNew
	toldName    = prefix + "told"
	lockName    = prefix + "lock"
	algorithm   = "sha256:"
)

// VolumeOptions say what stays in a volume.
type VolumeOptions struct {
	// Keep is how many contents stay beside the current one, however old they are.
	Keep int
	// Grace is how long a content stays at least after it was replaced.
	Grace time.Duration
	// Limits bound a content.
	Limits tarball.Limits
}

// Volume is a folder with the content of a bundle, of which the link "current" always leads to a whole one. Who has
// resolved the link once sees one content, and no other, for as long as that stays: for the time of grace, or, with a
// shared lock (flock) on the folder that the link leads to, as long as he likes.
type Volume struct {
	dir  string
	opts VolumeOptions
	held *os.File

	mu sync.Mutex // of what is written
}

// ErrForeign means that something has a name of this package in a volume, and was not put there by it. It stays until somebody
// takes it away.
var ErrForeign = errors.New("was not put there by rukpak-fetch, which leaves it alone: remove it, or use another folder")

// foreign is the error about what is at path.
func foreign(path string, mode fs.FileMode) error {
	what := "a file of another kind"
	switch mode.Type() {
	case 0:
		what = "a file"
	case fs.ModeDir:
		what = "a folder"
	case fs.ModeSymlink:
		what = "a symbolic link"
	}
	return fmt.Errorf("%s is %s that %w", path, what, ErrForeign)
}

// ours looks whether something of a kind is at path, and links there lead nowhere. The error is ErrForeign where something else is.
func ours(path string, kind fs.FileMode) (bool, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode().Type() != kind:
		return false, foreign(path, info.Mode())
	}
	return true, nil
}

// OpenVolume opens a folder that is there, and waits for another who has it open, and for room where not even a lock fits. What one who was killed left half-done is removed.
func OpenVolume(ctx context.Context, dir string, opts VolumeOptions) (*Volume, error) {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open the volume: there is no folder %s: mount a volume there, or make it: %w", dir, os.ErrNotExist)
	}
	lock := filepath.Join(dir, lockName)
	held, err := take(ctx, lock)
	if errors.Is(err, flock.ErrBusy) {
		klog.FromContext(ctx).Info("Another rukpak-fetch has the folder: waiting until it ends", "dir", dir)
		held, err = flock.Open(ctx, lock, flock.Exclusive)
	}
	if err != nil {
		return nil, fmt.Errorf("open the volume: %w", err)
	}
	v := &Volume{dir: dir, opts: opts, held: held}
	if err := v.tidy(); err != nil {
		return nil, errors.Join(fmt.Errorf("tidy the volume: %w", err), held.Close())
	}
	return v, nil
}

// Close lets others open the volume.
func (v *Volume) Close() error { return v.held.Close() }

// tidy removes what is half-done. The error is ErrForeign where something else has a name that will be needed.
func (v *Volume) tidy() error {
	for name, kind := range map[string]fs.FileMode{toldName: 0, toldName + suffixNew: 0, nextName: fs.ModeSymlink} {
		if _, err := ours(filepath.Join(v.dir, name), kind); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if halfDone(e) {
			if err := os.RemoveAll(filepath.Join(v.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// halfDone reports whether an entry of a volume is what this package leaves when it is killed, and nothing foreign.
func halfDone(e fs.DirEntry) bool {
	switch e.Name() {
	case nextName:
		return e.Type() == fs.ModeSymlink
	case toldName + suffixNew:
		return e.Type() == 0
	}
	name, ok := strings.CutSuffix(e.Name(), suffixNew)
	if ok {
		_, ok = digestOf(name)
	}
	return ok && e.IsDir()
}

// Current is the digest of the content that is current; empty where there is none. The error is ErrForeign where "current" is
// no link to a content.
func Current(dir string) (string, error) {
	link := filepath.Join(dir, currentName)
	if there, err := ours(link, fs.ModeSymlink); err != nil || !there {
		return "", err
	}
	target, err := os.Readlink(link)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	digest, ok := digestOf(target)
	if !ok {
		return "", fmt.Errorf("%s leads to %q, which is no content of a bundle: it %w", link, target, ErrForeign)
	}
	if there, err := ours(filepath.Join(dir, target), fs.ModeDir); err != nil || !there {
		return "", err
	}
	return digest, nil
}

// digestOf is the digest of the content in a folder of that name.
func digestOf(name string) (string, bool) {
	text, ok := strings.CutPrefix(name, prefix)
	raw, err := hex.DecodeString(text)
	return algorithm + text, ok && err == nil && len(raw) == 32 && text == strings.ToLower(text)
}

// fits is about what the server says of a content, so that one that is too large is not read again and again up to the bound.
func (v *Volume) fits(content *v1alpha1.ContentStatus) error {
	if most := v.opts.Limits.Bytes; most > 0 && content != nil && content.UncompressedSize > most {
		return &tarball.LimitError{Limit: tarball.LimitBytes, Max: most}
	}
	return nil
}

// Put makes content, the archive with that digest, the current one, and reports whether another was before. Content that is
// there already is not read.
func (v *Volume) Put(ctx context.Context, digest string, content io.Reader) (changed bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	name := prefix + strings.TrimPrefix(digest, algorithm)
	if _, ok := digestOf(name); !ok {
		return false, fmt.Errorf("%q is no digest", digest)
	}
	before, err := Current(v.dir)
	if err != nil || before == digest {
		return false, err
	}
	place := filepath.Join(v.dir, name)
	there, err := ours(place, fs.ModeDir)
	if err == nil && !there {
		err = v.write(ctx, place, content)
	}
	if err != nil {
		return false, err
	}
	return true, v.swap(name, before)
}

// write writes content to a folder that is not there, in a way that it is there as a whole or not at all.
func (v *Volume) write(ctx context.Context, place string, content io.Reader) error {
	part := place + suffixNew
	if _, err := ours(part, fs.ModeDir); err != nil {
		return err
	}
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	err := os.Mkdir(part, 0o700)
	if err == nil {
		_, err = extract.Tree(ctx, content, part, extract.Options{Limits: v.opts.Limits, Mode: extract.ForEveryone})
	}
	if err == nil {
		err = errors.Join(os.Chmod(part, 0o755), extract.Sync(part))
	}
	if err == nil {
		err = os.Rename(part, place)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	return nil
}

// swap makes a content the current one, in one step.
func (v *Volume) swap(name, before string) error {
	if before != "" {
		// The time of a folder says when it was replaced. First, so that it is never taken for older than it is.
		now := time.Now()
		if err := os.Chtimes(filepath.Join(v.dir, prefix+strings.TrimPrefix(before, algorithm)), now, now); err != nil {
			return err
		}
	}
	next := filepath.Join(v.dir, nextName)
	if _, err := ours(next, fs.ModeSymlink); err != nil {
		return err
	}
	if err := os.RemoveAll(next); err != nil { // of a process that ended in between
		return err
	}
	if err := os.Symlink(name, next); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(v.dir, currentName))
}

// Prune removes the contents that are neither current nor kept, whose time of grace is over, and that nobody has locked.
func (v *Volume) Prune(now time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	current, err := Current(v.dir)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return err
	}
	type replaced struct {
		path string
		at   time.Time
	}
	var old []replaced
	for _, e := range entries {
		digest, ok := digestOf(e.Name())
		if !ok || digest == current || !e.IsDir() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		old = append(old, replaced{filepath.Join(v.dir, e.Name()), info.ModTime()})
	}
	slices.SortFunc(old, func(a, b replaced) int { return cmp.Or(b.at.Compare(a.at), strings.Compare(a.path, b.path)) })
	for i, r := range old {
		if i < v.opts.Keep || now.Sub(r.at) < v.opts.Grace {
			continue
		}
		if err := v.remove(r.path); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a content unless somebody has locked its folder.
func (v *Volume) remove(path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := flock.Try(f, flock.Exclusive); err != nil {
		if errors.Is(err, flock.ErrBusy) {
			return nil
		}
		return err
	}
	// What is removed half must not be taken for a content.
	old := path + suffixNew
	if err := os.Rename(path, old); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

// told is the digest that was told last, empty where there is none.
func (v *Volume) told() (string, error) {
	place := filepath.Join(v.dir, toldName)
	if there, err := ours(place, 0); err != nil || !there {
		return "", err
	}
	text, err := os.ReadFile(place)
	return string(text), err
}

func (v *Volume) setTold(digest string) error {
	if _, err := v.told(); err != nil {
		return err
	}
	part := filepath.Join(v.dir, toldName+suffixNew)
	if _, err := ours(part, 0); err != nil {
		return err
	}
	if err := os.WriteFile(part, []byte(digest), 0o644); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(v.dir, toldName))
}
