// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"rukpak.io/apiserver/pkg/cmd/bundle/download"
	"rukpak.io/apiserver/pkg/cmd/bundle/place"
	"rukpak.io/apiserver/pkg/tarball/extract"
)

// folder makes files out of the archive, and puts them in place when they are all there.
func (p *puller) folder(ctx context.Context, path string, replace bool) (err error) {
	to, err := place.Open(path, place.Options{Replace: replace, Healed: func(what string) { p.say("%s: %s", path, what) }})
	if err != nil {
		return notPlaced(err)
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	p.to = filepath.Base(path)
	result, err := download.Part(ctx, p.Bundle, to.Archive(), p)
	if err := p.fetched(ctx, err); err != nil {
		return err
	}
	folder, err := to.Fresh()
	if err != nil {
		return p.notUnpacked(ctx, result.Part, err)
	}
	files, err := unpack(ctx, result.Part, folder)
	if err == nil {
		err = to.Put()
	}
	if err != nil {
		return p.notUnpacked(ctx, result.Part, notPlaced(err))
	}
	p.say("%s: %s, %s", path, result.Digest, plural(files, "file"))
	return os.Remove(result.Part)
}

// notPlaced says what to do where files cannot be put.
func notPlaced(err error) error {
	hint := ""
	kept, isKept := errors.AsType[*place.KeptError](err)
	switch {
	case isKept:
		hint = "see what is in " + kept.Dir + ", put it where it belongs, and remove that folder: nothing of it is deleted before"
	case errors.Is(err, place.ErrRoot):
		return usage("%w: name a folder in it", err)
	case errors.Is(err, place.ErrNotEmpty):
		hint = "--replace replaces what is in it; or name another"
	case errors.Is(err, place.ErrArrived):
		hint = "it is as it was: see what it is; --replace replaces it; or name another folder"
	case errors.Is(err, place.ErrBusy):
		hint = "wait until that has ended, or name another folder"
	case errors.Is(err, place.ErrForeign):
		hint = "see what it is, and rename or remove it; or name another folder"
	case errors.Is(err, place.ErrReserved):
		hint = "the content has a file of that name: pull it as an archive"
	case errors.Is(err, place.ErrMounted):
		hint = "unmount it, or name another folder: what is mounted would be deleted, too"
	default:
		return err
	}
	return fail(ExitLocal, err, "%s", hint)
}

// notUnpacked tells that the archive need not come again.
func (p *puller) notUnpacked(ctx context.Context, part string, err error) error {
	explained := p.explain(ctx, err)
	hint := "the archive is kept in " + part + ": the same command unpacks it, and fetches nothing again"
	if explained.hint != "" && explained.code != ExitInterrupted {
		hint = explained.hint + "; " + hint
	}
	return fail(explained.code, explained.err, "%s", hint)
}

// unpack writes the files of an archive to an empty folder, and returns how many there are.
func unpack(ctx context.Context, archive, folder string) (int64, error) {
	file, err := os.Open(archive)
	if err != nil {
		return 0, err
	}
	defer closing(file)
	summary, err := extract.Tree(ctx, file, folder, extract.Options{Mode: extract.Exact})
	return summary.Files, err
}
