// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"errors"
	"fmt"
	"io/fs"
)

var (
	// ErrNotTar says that the input of Canonicalize is not a tar or tar.gz, or is damaged.
	ErrNotTar = errors.New("not a tar archive")
	// ErrNotCanonical says that the input of Verify is not a canonical archive, or is damaged.
	ErrNotCanonical = errors.New("not a canonical archive")
)

// The names that LimitError.Limit takes.
const (
	LimitCompressedBytes = "compressedBytes"
	LimitBytes           = "bytes"
	LimitFiles           = "files"
	LimitDirectories     = "directories"
	LimitPathLength      = "pathLength"
	LimitDepth           = "depth"
	LimitRatio           = "ratio"
	LimitMetadata        = "metadata"
	LimitBlocks          = "blocks"
)

// maxShownName is how many bytes of a name an error holds. Names in foreign
// archives can be a mebibyte long.
const maxShownName = 2 * DefaultPathLength

// EntryError says why an entry was refused.
type EntryError struct {
	// Entry is the path below the root, as the input spells it.
	Entry string
	// Reason completes the sentence that the entry begins.
	Reason string
	// Err is the cause, if there is one. Reason says it in words already.
	Err error
}

func (e *EntryError) Error() string {
	return fmt.Sprintf("entry %q: %s", e.Entry, e.Reason)
}

func (e *EntryError) Unwrap() error { return e.Err }

// LimitError says which limit an archive exceeds, and at which entry.
type LimitError struct {
	// Limit is one of the Limit names.
	Limit string
	// Max is the largest value that would have passed, in the limit's unit.
	Max int64
	// Entry is the entry that was read or written when the limit was passed.
	// It is empty when no entry is to blame.
	Entry string
}

func (e *LimitError) Error() string {
	var s string
	switch e.Limit {
	case LimitCompressedBytes:
		s = fmt.Sprintf("the archive is larger than %d bytes compressed", e.Max)
	case LimitBytes:
		s = fmt.Sprintf("the archive is larger than %d bytes uncompressed", e.Max)
	case LimitFiles:
		s = fmt.Sprintf("the archive has more than %d files", e.Max)
	case LimitDirectories:
		s = fmt.Sprintf("the archive has more than %d directories", e.Max)
	case LimitPathLength:
		s = fmt.Sprintf("the path or link target is longer than %d bytes", e.Max)
	case LimitDepth:
		s = fmt.Sprintf("the path has more than %d components", e.Max)
	case LimitRatio:
		s = fmt.Sprintf("the archive expands more than %d times", e.Max)
	case LimitBlocks:
		s = fmt.Sprintf("the gzip is cut into more than %d blocks where one for each %d bytes would do", e.Max, blockBytes)
	default:
		s = fmt.Sprintf("the archive exceeds the limit %s of %d", e.Limit, e.Max)
	}
	if e.Entry == "" {
		return s
	}
	return fmt.Sprintf("entry %q: %s", e.Entry, s)
}

// refuse makes the error that refuses an entry for a reason of form, one that
// no cause outside the archive has.
func refuse(entry, format string, args ...any) error {
	return &EntryError{Entry: shown(entry), Reason: fmt.Sprintf(format, args...)}
}

// failed makes the error for an entry that could not be handled because of err.
func failed(entry, doing string, err error) error {
	return &EntryError{Entry: shown(entry), Reason: doing + ": " + reasonOf(err), Err: err}
}

// notCanonical makes the error for an entry whose bytes differ from the canonical ones.
func notCanonical(entry, format string, args ...any) error {
	return &EntryError{Entry: shown(entry), Reason: fmt.Sprintf(format, args...), Err: ErrNotCanonical}
}

// reasonOf says what err is without the path, which the entry's name tells already.
func reasonOf(err error) string {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Op + ": " + pathErr.Err.Error()
	}
	return err.Error()
}

func exceeds(limit string, most int64, entry string) error {
	return &LimitError{Limit: limit, Max: most, Entry: shown(entry)}
}

// at fills in the entry of a LimitError that was raised below the level of
// entries, where only bytes are known.
func at(entry string, err error) error {
	if limit, ok := errors.AsType[*LimitError](err); ok && limit.Entry == "" {
		limit.Entry = shown(entry)
	}
	return err
}

func shown(name string) string {
	if len(name) > maxShownName {
		return name[:maxShownName] + "..."
	}
	return name
}
