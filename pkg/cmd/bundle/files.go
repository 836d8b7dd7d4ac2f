// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/listing"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/nameless"
	"rukpak.io/apiserver/pkg/tarball"
)

// files is one side of a diff: what there is, and how a file is opened.
type files struct {
	name    string
	entries map[string]listing.Entry
	order   []string
	// folder says that they are those of a folder.
	folder bool
	// digest is that of the whole content, or empty.
	digest string
	open   func(ctx context.Context, path string) (io.ReadCloser, error)
}

func (f *files) add(path string, e listing.Entry) {
	f.entries[path] = e
	f.order = append(f.order, path)
}

// isLocal tells what is on this machine from the name of a bundle: it has a slash or begins with a dot, or ends as archives do.
func isLocal(arg string) bool {
	return isLocalWhere(os.PathSeparator, arg)
}

// isLocalWhere is isLocal where a path has slashes, or separators of the system in place of them.
func isLocalWhere(separator rune, arg string) bool {
	return strings.ContainsRune(arg, '/') || strings.ContainsRune(arg, separator) || strings.HasPrefix(arg, ".") ||
		strings.HasSuffix(arg, ".tar.gz") || strings.HasSuffix(arg, ".tgz") || strings.HasSuffix(arg, ".tar")
}

// side opens one side of a diff.
func (s *session) side(ctx context.Context, arg string) (*files, error) {
	if local := strings.Contains(arg, "/") && hasKind(arg); !local && isLocal(arg) {
		return localFiles(ctx, arg)
	}
	bundles, t, digest, err := s.opened(ctx, arg)
	if err != nil {
		return nil, err
	}
	f := &files{name: arg, entries: map[string]listing.Entry{}, digest: digest}
	for e, err := range bundles.ListFiles(ctx, t.name, "", typed.ListFilesOptions{Digest: digest, Recursive: true}) {
		if err != nil {
			return nil, err
		}
		f.add(e.Path(), e)
	}
	f.open = func(ctx context.Context, path string) (io.ReadCloser, error) {
		return bundles.GetFile(ctx, t.name, path, typed.GetFileOptions{Digest: digest, IfDigest: f.entries[path].Digest})
	}
	return f, nil
}

func hasKind(arg string) bool {
	for _, kind := range kinds {
		if strings.HasPrefix(arg, kind) {
			return true
		}
	}
	return false
}

// localFiles reads a folder or an archive, as the server would: what it would refuse is an error.
func localFiles(ctx context.Context, path string) (_ *files, err error) {
	f := &files{name: path, entries: map[string]listing.Entry{}}
	visit := func(e tarball.Entry, content io.Reader) error {
		entry, err := local(e, content)
		f.add(e.Name, entry)
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return f, f.archive(ctx, path, visit)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	// It is open as long as the program runs.
	f.open = func(_ context.Context, path string) (io.ReadCloser, error) { return root.Open(path) }
	f.folder = true
	archive, w := io.Pipe()
	go func() {
		_, err := tarball.Pack(ctx, w, path, "", tarball.Limits{})
		// Nothing fails in closing a pipe.
		_ = w.CloseWithError(err)
	}()
	_, err = tarball.Verify(ctx, archive, tarball.Limits{}, visit)
	return f, errors.Join(err, archive.Close())
}

// archive reads any tar or tar.gz, once, and keeps the files whose text a diff may show, one after the other.
func (f *files) archive(ctx context.Context, path string, visit tarball.Visitor) error {
	// It is open as long as the program runs.
	kept, err := nameless.Create("", "kubectl-bundle-")
	if err != nil {
		return err
	}
	offsets, end, w := map[string]int64{}, int64(0), bufio.NewWriter(kept)
	f.open = func(_ context.Context, name string) (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(kept, offsets[name], f.entries[name].Size)), nil
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer closing(file)
	_, err = tarball.Canonicalize(ctx, io.Discard, file, tarball.Options{Visit: func(e tarball.Entry, content io.Reader) error {
		if e.Type == tarball.TypeFile && e.Size <= maxText {
			offsets[e.Name] = end
			end += e.Size
			content = io.TeeReader(content, w)
		}
		return visit(e, content)
	}})
	return errors.Join(err, w.Flush())
}

// local makes of an entry what a server would list.
func local(e tarball.Entry, file io.Reader) (listing.Entry, error) {
	entry := listing.Entry{Name: e.Name, Mode: fmt.Sprintf("%04o", e.Mode), Size: e.Size, LinkTarget: e.Linkname}
	switch e.Type {
	case tarball.TypeDirectory:
		entry.Type = listing.Directory
	case tarball.TypeSymlink:
		entry.Type = listing.SymbolicLink
	default:
		entry.Type = listing.File
		sum := content.NewSum()
		if _, err := io.Copy(sum, file); err != nil {
			return entry, err
		}
		entry.Digest = sum.Digest()
	}
	return entry, nil
}
