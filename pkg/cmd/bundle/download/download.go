// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package download gets a bundle's content into a file, and goes on where it was when it is called again. Until all of it is there
// and has its digest, it is in a file beside, whose name holds the digest, so that no state is kept anywhere else:
//
//	app.tar.gz.sha256-530a62cc54d9….part
//
// Whoever writes it has a lock on it (flock(2), where the system and the file system have them), until it is in its place.
package download

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/flock"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// maxTries is how often a download begins anew: because a part was damaged, or its content is not served any more.
const maxTries = 3

// chunk is how much is written at a time, in bytes.
const chunk = 256 << 10

// Bundle is a bundle's content.
type Bundle struct {
	Client typed.BundleInterface
	Name   string
	// Digest picks a content; empty means the current one.
	Digest string
}

// Progress is told of a download.
type Progress interface {
	// Begin says what comes, how large it is, and how much of it is there already, in bytes.
	Begin(digest string, have, size int64)
	// Add says that n bytes more are there.
	Add(n int64)
	// Again says why it begins anew.
	Again(reason error)
}

// Result is what was downloaded.
type Result struct {
	Digest string
	Size   int64
	// Had is how much of it was there from an earlier call, in bytes.
	Had int64
	// Part is the file that it came to.
	Part string
}

// WriteError is an error of the file that is written.
type WriteError struct {
	// Part is the file that keeps what is there, and Kept how much that is, in bytes.
	Part string
	Kept int64
	Err  error
}

func (e *WriteError) Error() string {
	for _, plain := range []error{ErrNoFile, ErrBusy} {
		if errors.Is(e.Err, plain) {
			return e.Part + " " + plain.Error()
		}
	}
	return fmt.Sprintf("write %s: %v", e.Part, e.Err)
}
func (e *WriteError) Unwrap() error { return e.Err }

// ErrNoFile means that there is something in the place of the file that is written, and that it is not a file: a symbolic link, a
// pipe, a device.
var ErrNoFile = errors.New("is there, and is no ordinary file")

// ErrBusy means that another process is downloading the same content to the same path.
var ErrBusy = errors.New("is being written by another pull")

// errDamaged means that what was kept is not what it should be.
var errDamaged = errors.New("what was kept of an earlier download is damaged")

// File downloads to path. What is at path stays until it is replaced by all of the content, checked. What came is
// kept when ctx ends or something fails, for the next call. The error is ErrBusy where another call is at it.
func File(ctx context.Context, b Bundle, path string, progress Progress) (Result, error) {
	result, err := tries(ctx, b, path, progress, func(part *os.File) error { return put(part, path) })
	if err != nil {
		return result, err
	}
	return result, syncFolder(filepath.Dir(path))
}

// Part downloads to a file beside path, Result.Part, and leaves all of the content there, checked. Whoever has done with it
// removes it; until then the next call finds it, and gets nothing again. What is at path is not looked at.
func Part(ctx context.Context, b Bundle, path string, progress Progress) (Result, error) {
	return tries(ctx, b, path, progress, (*os.File).Close)
}

// tries downloads to a part. What is done with it then closes it, which takes the lock away.
func tries(ctx context.Context, b Bundle, path string, progress Progress, done func(part *os.File) error) (Result, error) {
	for try := 1; ; try++ {
		result, err := once(ctx, b, path, progress, done)
		if err == nil {
			return result, nil
		}
		again := errors.Is(err, errDamaged) || b.Digest == "" && result.Digest != "" && apierrors.IsNotFound(err)
		if !again || try == maxTries || ctx.Err() != nil {
			return Result{}, err
		}
		progress.Again(err)
	}
}

func once(ctx context.Context, b Bundle, path string, progress Progress, done func(part *os.File) error) (Result, error) {
	earlier, err := parts(path)
	if err != nil {
		return Result{}, err
	}
	opened, err := open(ctx, b, len(earlier) > 0)
	if err != nil {
		return Result{}, err
	}
	d := &download{Bundle: b, progress: progress, content: opened, sum: content.NewSum()}
	d.result = Result{Digest: opened.Digest, Size: opened.Size, Part: partPath(path, opened.Digest)}
	err = d.run(ctx, done)
	if d.content != nil {
		// It was only read.
		_ = d.content.Close()
	}
	if err == nil && b.Digest == "" {
		// They are of contents that the bundle does not have any more.
		for _, part := range earlier {
			if part == d.result.Part {
				continue
			}
			if err := drop(part); err != nil {
				return d.result, err
			}
		}
	}
	return d.result, err
}

// open opens the content, or only its first byte if some of it may be there.
func open(ctx context.Context, b Bundle, probe bool) (*typed.Content, error) {
	opts := typed.GetContentOptions{Digest: b.Digest}
	if probe {
		opts.Length = 1
	}
	return b.Client.GetContent(ctx, b.Name, opts)
}

type download struct {
	Bundle
	progress Progress
	content  *typed.Content // nil if there is nothing to read
	result   Result
	sum      *content.Sum // of what is in the file
}

func (d *download) run(ctx context.Context, done func(part *os.File) error) error {
	file, err := lockPart(d.result.Part)
	if err != nil {
		return d.unwritten(err)
	}
	if err := d.fill(ctx, file); err != nil {
		// What is kept is hashed by the next call.
		_ = file.Close()
		return err
	}
	if err := done(file); err != nil {
		return d.unwritten(err)
	}
	return nil
}

// lockPart opens a part, or makes it, and locks it where there are locks.
func lockPart(path string) (*os.File, error) {
	for {
		file, err := openPart(path)
		if err != nil {
			return nil, err
		}
		mine := false
		switch err = flock.Try(file, flock.Exclusive); {
		case err == nil:
			// Whoever had the lock may have put the file in its place, or removed it, between the two steps.
			mine, err = flock.IsAt(file, path)
		case errors.Is(err, flock.ErrBusy):
			err = ErrBusy
		case lockless(err):
			mine, err = true, nil
		}
		if mine && err == nil {
			return file, nil
		}
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, err
		}
	}
}

// lockless reports whether an error of a lock is that there are none.
func lockless(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENOLCK)
}

// drop removes a part, unless somebody is writing it.
func drop(part string) error {
	lock, err := flock.TryOpen(part, flock.Exclusive)
	switch {
	case err == nil:
		defer closing(lock)
	case errors.Is(err, flock.ErrBusy), errors.Is(err, os.ErrPermission):
		return nil
	case !lockless(err):
		return err
	}
	if err := os.Remove(part); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// closing closes what nothing was written to.
func closing(c io.Closer) { _ = c.Close() }

// openPart opens a part, or makes it. Where it is written others may write, too: it goes through no link, waits for nobody at the
// other end of a pipe, and has to do with files alone.
func openPart(path string) (*os.File, error) {
	// This one, too, tells of a link: what is opened below may be one all the same by then, where the system cannot refuse them.
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, ErrNoFile
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|openFlags, 0o666)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = ErrNoFile
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// fill makes the file the whole of the content.
func (d *download) fill(ctx context.Context, file *os.File) error {
	if err := d.keep(ctx, file); err != nil {
		return err
	}
	d.result.Had = d.sum.Size()
	d.progress.Begin(d.result.Digest, d.result.Had, d.result.Size)
	if err := d.seek(ctx); err != nil {
		return err
	}
	if d.content != nil {
		if err := d.copy(file); err != nil {
			return err
		}
	}
	if got := d.sum.Digest(); got != d.result.Digest {
		if d.result.Had > 0 {
			// Emptied, and not removed: that is possible everywhere while the file is open, and its lock held.
			return errors.Join(errDamaged, file.Truncate(0))
		}
		return d.discard(fmt.Errorf("%w: %s, not %s", typed.ErrDigestMismatch, got, d.result.Digest))
	}
	if err := file.Sync(); err != nil {
		return d.unwritten(err)
	}
	return nil
}

// discard takes away what is of no use, because of an error.
func (d *download) discard(err error) error {
	return errors.Join(err, os.Remove(d.result.Part))
}

// keep hashes what is there, and stands behind it then.
func (d *download) keep(ctx context.Context, file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return d.unwritten(err)
	}
	if info.Size() > d.result.Size {
		if err := file.Truncate(0); err != nil {
			return d.unwritten(err)
		}
	}
	for ctx.Err() == nil {
		_, err := io.CopyN(d.sum, file, 64<<20)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return d.unwritten(err)
		}
	}
	return context.Cause(ctx)
}

// seek makes content what follows of it.
func (d *download) seek(ctx context.Context) error {
	if d.sum.Size() == d.content.Offset && d.content.Length == d.result.Size {
		return nil
	}
	err := d.content.Close()
	d.content = nil
	if err != nil || d.sum.Size() == d.result.Size {
		return err
	}
	d.content, err = d.Client.GetContent(ctx, d.Name, typed.GetContentOptions{Digest: d.result.Digest, Offset: d.sum.Size()})
	return err
}

func (d *download) copy(file *os.File) error {
	buf := make([]byte, chunk)
	for {
		n, err := d.content.Read(buf)
		if n > 0 {
			if _, err := file.WriteAt(buf[:n], d.sum.Size()); err != nil {
				return d.unwritten(err)
			}
			// It takes everything.
			_, _ = d.sum.Write(buf[:n])
			d.progress.Add(int64(n))
		}
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, typed.ErrDigestMismatch):
			return d.discard(err)
		case err != nil:
			return err
		}
	}
}

func (d *download) unwritten(err error) error {
	return &WriteError{Part: d.result.Part, Kept: d.sum.Size(), Err: err}
}

func partPath(path, digest string) string {
	return filepath.Join(filepath.Dir(path), partPrefix(path)) + "." + strings.Replace(digest, ":", "-", 1) + ".part"
}

// maxName is how long the name of a file may be, in bytes, on all systems.
const maxName = 255

// partPrefix is what the names of the parts of a path begin with: its name, or where that leaves no room for the rest, its beginning
// and a digest of it.
func partPrefix(path string) string {
	name := filepath.Base(path)
	if len(name)+len(".sha256-")+2*sha256.Size+len(".part") <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return strings.ToValidUTF8(name[:100], "") + "~" + hex.EncodeToString(sum[:8])
}

var partName = regexp.MustCompile(`^\.sha256-[0-9a-f]{64}\.part$`)

// parts are the parts that are there of downloads to a path.
func parts(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		if rest, ok := strings.CutPrefix(entry.Name(), partPrefix(path)); ok && partName.MatchString(rest) && entry.Type().IsRegular() {
			found = append(found, filepath.Join(filepath.Dir(path), entry.Name()))
		}
	}
	return found, nil
}

// syncFolder makes a renaming last.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	// Not every file system knows how, and the content itself is safe.
	_ = folder.Sync()
	return folder.Close()
}
