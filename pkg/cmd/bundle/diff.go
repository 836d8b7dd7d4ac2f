// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"rukpak.io/apiserver/pkg/bytesize"
	"rukpak.io/apiserver/pkg/cmd/bundle/unified"
	"rukpak.io/apiserver/pkg/content/listing"
)

// maxText is how large a file may be whose lines are compared, in bytes.
const maxText = 1 << 20

// diff compares two contents, or a content and what is on this machine.
func (s *session) diff() *cobra.Command {
	names := false
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Show how two contents differ: of bundles, of revisions, of a folder or an archive",
		Long: `Show how two contents differ, as diff -u does. A and B are each NAME[@REVISION], or a folder or an archive on this machine, which is
told by a slash in it (./folder) or by its ending (.tar, .tar.gz, .tgz). On Windows a folder has no modes to compare.

Files are compared by their digests, and only those that differ are fetched. Of files of more than 1 MiB, of such that are no text, and
of such with more than 3,000 lines that differ it says no more than that they differ. Exit code 0 means that they are the same, 1 that they differ.`,
		Example: `  # What has the last update changed?
  kubectl bundle diff app@-1 app

  # What would a push change? Names only
  kubectl bundle diff app ./folder --names`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: s.completeEither,
		RunE: func(cmd *cobra.Command, args []string) error {
			var sides [2]*files
			for i, arg := range args {
				var err error
				if sides[i], err = s.side(cmd.Context(), arg); err != nil {
					return err
				}
			}
			c := &comparison{session: s, a: sides[0], b: sides[1], names: names}
			return c.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&names, "names", false, "Only name what was added (A), deleted (D) and changed (M).")
	return cmd
}

type comparison struct {
	*session
	a, b  *files
	names bool
}

func (c *comparison) run(ctx context.Context) error {
	paths := slices.Concat(c.a.order, c.b.order)
	slices.Sort(paths)
	differ := false
	for _, path := range slices.Compact(paths) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		x, inA := c.a.entries[path]
		y, inB := c.b.entries[path]
		if c.modeless && (c.a.folder || c.b.folder) {
			x.Mode, y.Mode = "", ""
		}
		letter := "M"
		switch {
		case !inA:
			letter = "A"
		case !inB:
			letter = "D"
		case same(x, y):
			continue
		}
		differ = true
		if err := c.show(ctx, letter, path, x, y); err != nil {
			return err
		}
	}
	if differ {
		return errNo
	}
	return nil
}

func same(x, y listing.Entry) bool {
	return x.Type == y.Type && x.Mode == y.Mode && x.Size == y.Size && x.Digest == y.Digest && x.Target() == y.Target()
}

func (c *comparison) show(ctx context.Context, letter, path string, x, y listing.Entry) error {
	if c.names {
		return c.print("%s %s", letter, c.line(path))
	}
	for _, line := range notes(letter, path, x, y) {
		if err := c.print("%s", line); err != nil {
			return err
		}
	}
	if x.Type != listing.File && y.Type != listing.File || x.Digest == y.Digest {
		return nil
	}
	a, err := c.text(ctx, c.a, path, x)
	if err != nil {
		return err
	}
	b, err := c.text(ctx, c.b, path, y)
	if err != nil {
		return err
	}
	if a == nil || b == nil {
		return c.print("Files %s and %s differ: %s, %s", side(c.a, path, x), side(c.b, path, y), size(x), size(y))
	}
	err = unified.Write(ctx, c.output(""), unified.Text{Name: side(c.a, path, x), Content: a}, unified.Text{Name: side(c.b, path, y), Content: b})
	if errors.Is(err, unified.ErrTooDifferent) {
		return c.print("Files %s and %s differ: %s in %s, %s in %s: too many of them to show", side(c.a, path, x), side(c.b, path, y), countLines(a), size(x), countLines(b), size(y))
	}
	return err
}

// side names one side of a file in the head of a diff.
func side(f *files, path string, e listing.Entry) string {
	if e.Type != listing.File {
		return "/dev/null"
	}
	return clean(strings.TrimRightFunc(f.name, func(r rune) bool { return r < utf8.RuneSelf && os.IsPathSeparator(byte(r)) }) + "/" + path)
}

func size(e listing.Entry) string {
	if e.Type != listing.File {
		return "none"
	}
	return bytesize.String(e.Size)
}

// notes are what differs beside the lines of a file.
func notes(letter, path string, x, y listing.Entry) []string {
	path = clean(path)
	switch {
	case letter == "A" && y.Type != listing.File:
		return []string{"Only in the second: " + path + suffix(y)}
	case letter == "D" && x.Type != listing.File:
		return []string{"Only in the first: " + path + suffix(x)}
	case letter != "M":
		return nil
	case x.Type != y.Type:
		return []string{fmt.Sprintf("%s: was %s, is %s", path, x.Type, y.Type)}
	}
	var notes []string
	if x.Mode != y.Mode {
		notes = append(notes, fmt.Sprintf("%s: mode was %s, is %s", path, x.Mode, y.Mode))
	}
	if x.Target() != y.Target() {
		notes = append(notes, fmt.Sprintf("%s: led to %s, leads to %s", path, clean(x.Target()), clean(y.Target())))
	}
	return notes
}

// suffix is what stands behind the name of something that is no file.
func suffix(e listing.Entry) string {
	if e.Type == listing.SymbolicLink {
		return " -> " + clean(e.Target())
	}
	return "/"
}

// text reads a file, and returns nil if it is large or no text. What is no file has no text.
func (c *comparison) text(ctx context.Context, f *files, path string, e listing.Entry) (_ []byte, err error) {
	if e.Type != listing.File || e.Size == 0 {
		return []byte{}, nil
	}
	if e.Size > maxText {
		return nil, nil
	}
	content, err := f.open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	text, err := io.ReadAll(io.LimitReader(content, maxText+1))
	if err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", path, f.name, err)
	}
	if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return nil, nil
	}
	return text, nil
}

// countLines says how many lines a text has.
func countLines(text []byte) string {
	n := int64(bytes.Count(text, []byte{'\n'}))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		n++
	}
	return plural(n, "line")
}

// completeEither offers bundles, and files of this machine as well.
func (s *session) completeEither(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if isLocal(begun) || len(args) > 1 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return s.completeNames(cmd, nil, begun)
}
