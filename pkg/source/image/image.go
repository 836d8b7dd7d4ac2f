// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package image pulls an image in this process and packs its files as a
// canonical archive: mode Direct, where no node is there to do it.
//
//	puller := image.New()
//	resolved, err := puller.Resolve(ctx, "registry.example/app:v1")
//	summary, err := puller.Pack(ctx, resolved, "/manifests", w, limits, scratch)
//
// It speaks the OCI distribution protocol, with the credentials and authorities
// that an Access gives it and anonymously without one: no credential of the host, of
// a user or of a tenant is looked for. Plain HTTP is spoken with registries on a
// loopback address, as container runtimes do, and with those that the Access names.
// A registry's credentials go to it and to the token server that it names, and stay
// behind where it redirects to.
//
// What it packs is what an image volume of the same image shows: layers are
// applied as the OCI image specification says, so both ways give the same
// UncompressedDigest.
package image

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/tarball"
)

// Puller pulls images. It may be used by many goroutines at once.
type Puller struct {
	access    Access
	transport func() (http.RoundTripper, error)
	floor     bounds
	stall     time.Duration
}

// New returns a Puller that pulls anonymously. It goes through the proxy that the
// environment names, if it names one.
func New() *Puller { return NewWithAccess(Access{}) }

// NewWithAccess returns a Puller with the credentials and authorities of an Access,
// which ought to have been checked.
func NewWithAccess(access Access) *Puller {
	connections := &transports{file: access.AuthoritiesFile}
	return &Puller{access: access, transport: connections.get, floor: defaultFloor, stall: time.Minute}
}

// Resolve returns what reference names at this moment, as
// registry/repository@sha256:… of a manifest or an index. A reference that
// holds a digest is answered without asking the registry.
//
// Its errors are ErrInvalidReference, ErrNotFound, ErrUnauthorized,
// ErrTooManyRequests, ErrUnreachable, ErrNotTrusted, ErrInvalidImage and ErrAccess, or that of ctx.
func (p *Puller) Resolve(ctx context.Context, reference string) (string, error) {
	ref, err := name.ParseReference(reference, name.WeakValidation)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidReference, err)
	}
	if digest, ok := ref.(name.Digest); ok {
		return spell(digest.Context(), digest.DigestStr()), nil
	}
	s, err := p.open(ctx, ref.Context())
	if err != nil {
		return "", describe(ctx, reference, err)
	}
	digest, err := s.resolve(ctx, ref.Identifier())
	if err != nil {
		return "", describe(ctx, reference, err)
	}
	return spell(ref.Context(), digest.String()), nil
}

// Pack pulls the image that resolved names, a reference by digest, and writes
// the tree below the directory path of its root to w as a canonical archive. A
// leading slash of path is allowed; "", "." and "/" mean the root. Of an index
// the image for the platform is taken; the zero Platform means linux and this
// program's architecture.
//
// The limits bound the archive as those of tarball.Canonicalize do. The image
// as a whole may be four times as large, and always 1 GiB compressed, 4 GiB
// uncompressed and 250,000 entries, so that a small path can be taken out of a
// large image. Scratch is an existing folder for a temporary file without a
// name, as large as the image's layers and the selected files; empty means
// os.TempDir().
//
// Errors are those of Resolve for what the registry does, ErrPlatform, *tarball.EntryError
// and *tarball.LimitError for what the image holds, and that of ctx. What w
// holds after an error is no archive.
func (p *Puller) Pack(ctx context.Context, resolved string, want platform.Platform, path string, w io.Writer, limits tarball.Limits, scratch string) (_ tarball.Summary, err error) {
	ref, err := name.NewDigest(resolved, name.WeakValidation)
	if err != nil {
		return tarball.Summary{}, fmt.Errorf("%w: %w", ErrInvalidReference, err)
	}
	if want.IsZero() {
		want = platform.Own()
	}
	root, err := cleanPath(path)
	if err != nil {
		return tarball.Summary{}, err
	}
	spool, err := openScratch(scratch)
	if err != nil {
		return tarball.Summary{}, err
	}
	// The file has no name any more and nothing in it outlives the call.
	defer spool.Close()
	bounds := p.floor.atLeast(limits)
	layers, err := p.fetch(ctx, ref, want, bounds, spool)
	if err != nil {
		return tarball.Summary{}, describe(ctx, resolved, err)
	}
	selected, err := flatten(ctx, layers, bounds, root)
	if err != nil {
		return tarball.Summary{}, describe(ctx, resolved, err)
	}
	summary, err := selected.pack(ctx, w, tarball.Options{Limits: limits, Scratch: scratch})
	if err != nil {
		return tarball.Summary{}, describe(ctx, resolved, err)
	}
	return summary, nil
}

// openScratch makes a temporary file that goes when it is closed, or when the
// process ends in whatever way.
func openScratch(folder string) (*os.File, error) {
	file, err := os.CreateTemp(folder, "image-")
	if err != nil {
		return nil, fmt.Errorf("create scratch file: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, fmt.Errorf("unlink scratch file: %w", err)
	}
	return file, nil
}

// spell writes a reference the way that users and container runtimes do, where
// the library names the host that Docker Hub's registry has.
func spell(repository name.Repository, digest string) string {
	full := repository.Name()
	if rest, ok := strings.CutPrefix(full, name.DefaultRegistry+"/"); ok {
		full = "docker.io/" + rest
	}
	return full + "@" + digest
}
