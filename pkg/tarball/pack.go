// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Pack writes the tree below the directory path of the folder root to w as a
// canonical archive. Path is relative to root; a leading slash is allowed, and
// "", "." and "/" mean root itself. No symbolic link is followed, neither in
// path nor below it, and nothing outside root is reached.
//
// A file that cannot be read, changes while it is read, or may not be in an
// archive gives an *EntryError whose entry is the path below path; an archive
// beyond the limits a *LimitError. What w holds after an error is no archive.
// Until Pack returns, another goroutine writes to w.
//
// Where KeepsModes is false, directories get the mode 0755 and files 0644.
func Pack(ctx context.Context, w io.Writer, root, path string, limits Limits) (Summary, error) {
	return packTree(ctx, w, root, path, limits, KeepsModes)
}

func packTree(ctx context.Context, w io.Writer, root, path string, limits Limits, modes bool) (Summary, error) {
	top, err := openTree(root, path)
	if err != nil {
		return Summary{}, err
	}
	limits = limits.effective()
	p := &packer{archive: newArchive(ctx, w, limits, Options{}), limits: limits, modes: modes}
	defer p.archive.abort()
	// A folder that was opened for reading loses nothing by a failed close.
	defer top.Close()
	_, children, err := p.list(top, "")
	if err != nil {
		return Summary{}, err
	}
	if err := p.pack(top, "", children); err != nil {
		return Summary{}, err
	}
	return p.archive.finish()
}

// openTree opens the directory path below root, one component after the other,
// so that a symbolic link is seen and refused.
func openTree(root, path string) (*os.Root, error) {
	name, err := cleanRoot(path)
	if err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	if name == "" {
		return dir, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		next, err := openChild(dir, part)
		dir.Close()
		if err != nil {
			return nil, &EntryError{Entry: shown(name), Reason: reasonOf(err), Err: err}
		}
		dir = next
	}
	return dir, nil
}

var (
	errLink         = errors.New("the path goes through a symbolic link")
	errNotDirectory = errors.New("not a directory")
)

func openChild(dir *os.Root, name string) (*os.Root, error) {
	info, err := dir.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case info.Mode().Type() == fs.ModeSymlink:
		return nil, errLink
	case !info.IsDir():
		return nil, errNotDirectory
	}
	return dir.OpenRoot(name)
}

func unreadable(name string, err error) error { return failed(name, "cannot be read", err) }

// packer walks a tree and writes it to an archive.
type packer struct {
	archive     *archive
	limits      Limits
	modes       bool  // the file system has them
	files       int64 // listed so far, which runs ahead of what is written
	directories int64
}

// pack writes the children of the directory dir, whose path is name.
func (p *packer) pack(dir *os.Root, name string, children []fs.DirEntry) error {
	for _, child := range children {
		childName := join(name, child.Name())
		if err := checkName(childName, p.limits); err != nil {
			return err
		}
		var err error
		switch child.Type() {
		case fs.ModeDir:
			err = p.packDirectory(dir, child.Name(), childName)
		case fs.ModeSymlink:
			err = p.packSymlink(dir, child.Name(), childName)
		case 0:
			err = p.packFile(dir, child.Name(), childName)
		default:
			err = refuse(childName, "is %s", kindOf(child.Type()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) packDirectory(dir *os.Root, base, name string) error {
	sub, err := dir.OpenRoot(base)
	if err != nil {
		return unreadable(name, err)
	}
	defer sub.Close()
	mode, children, err := p.list(sub, name)
	if err != nil {
		return err
	}
	if err := p.archive.add(Entry{Name: name, Type: TypeDirectory, Mode: p.permissions(mode)}, nil); err != nil {
		return err
	}
	return p.pack(sub, name, children)
}

func (p *packer) packSymlink(dir *os.Root, base, name string) error {
	target, err := dir.Readlink(base)
	if err != nil {
		return unreadable(name, err)
	}
	if filepath.VolumeName(target) != "" {
		return refuse(name, "the symbolic link has the absolute target %q", target)
	}
	target = filepath.ToSlash(target)
	if err := checkLink(name, target, p.limits); err != nil {
		return err
	}
	return p.archive.add(Entry{Name: name, Type: TypeSymlink, Mode: fs.ModePerm, Linkname: target}, nil)
}

func (p *packer) packFile(dir *os.Root, base, name string) error {
	// Should the file have become a FIFO since it was listed, opening it must not wait.
	file, err := dir.OpenFile(base, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return unreadable(name, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return unreadable(name, err)
	}
	if !info.Mode().IsRegular() {
		return refuse(name, "is %s now and was a regular file before", kindOf(info.Mode().Type()))
	}
	e := Entry{Name: name, Type: TypeFile, Mode: p.permissions(info.Mode()), Size: info.Size()}
	if err := p.archive.add(e, file); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return refuse(name, "became shorter than %d bytes while it was read", e.Size)
		}
		return err
	}
	if n, err := file.Read(make([]byte, 1)); n != 0 {
		return refuse(name, "became longer than %d bytes while it was read", e.Size)
	} else if err != nil && err != io.EOF {
		return unreadable(name, err)
	}
	return nil
}

// permissions are those that an archive has of what the file system says.
func (p *packer) permissions(mode fs.FileMode) fs.FileMode {
	switch {
	case p.modes:
		return mode.Perm()
	case mode.IsDir():
		return 0o755
	default:
		return 0o644
	}
}

// list returns the mode and the sorted children of a directory. It counts them
// as it goes, so that a huge directory is refused before it fills the memory.
func (p *packer) list(dir *os.Root, name string) (fs.FileMode, []fs.DirEntry, error) {
	shownAs := cmp.Or(name, ".")
	file, err := dir.Open(".")
	if err != nil {
		return 0, nil, unreadable(shownAs, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0, nil, unreadable(shownAs, err)
	}
	var children []fs.DirEntry
	for {
		batch, err := file.ReadDir(1024)
		for _, child := range batch {
			if err := p.count(child.IsDir(), join(name, child.Name())); err != nil {
				return 0, nil, err
			}
		}
		children = append(children, batch...)
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, nil, unreadable(shownAs, err)
		}
	}
	slices.SortFunc(children, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return info.Mode(), children, nil
}

func (p *packer) count(directory bool, name string) error {
	if directory {
		if p.directories++; p.directories > p.limits.directories() {
			return exceeds(LimitDirectories, p.limits.directories(), name)
		}
	} else if p.files++; p.files > p.limits.Files {
		return exceeds(LimitFiles, p.limits.Files, name)
	}
	return nil
}

// kindOf names what an archive may not hold.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeCharDevice != 0:
		return "a character device"
	case mode&fs.ModeDevice != 0:
		return "a block device"
	case mode&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode.IsDir():
		return "a directory"
	default:
		return "neither a regular file, a directory nor a symbolic link"
	}
}
