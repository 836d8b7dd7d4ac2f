// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bufio"
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"rukpak.io/apiserver/pkg/bytesize"
	"rukpak.io/apiserver/pkg/content/listing"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// tree draws a directory and all that is below it.
func (s *session) tree() *cobra.Command {
	return &cobra.Command{
		Use:   "tree NAME[@REVISION] [PATH]",
		Short: "Draw the directories and files of the content",
		Example: `  kubectl bundle tree app
  kubectl bundle tree app@-1 manifests`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: s.completeFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			bundles, t, digest, err := s.opened(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			d := &drawing{}
			path := inside(args[1:])
			for e, err := range bundles.ListFiles(cmd.Context(), t.name, path, typed.ListFilesOptions{Digest: digest, Recursive: true}) {
				if err != nil {
					if _, ok := instead(cmd.Context(), bundles, t.name, digest, path, err); ok {
						return fail(ExitNotFound, fmt.Errorf("%s is no directory", path), "%s cat %s %s%s prints it", program, quoted(args[0]), quoted(path), s.where(""))
					}
					return err
				}
				d.add(e)
			}
			out := bufio.NewWriter(s.Out)
			if err := d.write(out, cmp.Or(path, t.name)); err != nil {
				return err
			}
			return out.Flush()
		},
	}
}

// drawing is a tree that is drawn. A line is drawn from what comes after it, so all names are kept; the class of a
// bundle bounds how many there are.
type drawing struct {
	lines       []drawn
	files       int64
	directories int64
	bytes       int64
}

type drawn struct {
	depth int
	text  string
}

func (d *drawing) add(e listing.Entry) {
	path := e.Path()
	name := clean(path[strings.LastIndexByte(path, '/')+1:])
	switch e.Type {
	case listing.Directory:
		d.directories++
		name += "/"
	case listing.SymbolicLink:
		d.files++
		name += " -> " + clean(e.Target())
	default:
		d.files++
		d.bytes += e.Size
		name += "  " + bytesize.String(e.Size)
	}
	d.lines = append(d.lines, drawn{strings.Count(path, "/"), name})
}

func (d *drawing) write(out *bufio.Writer, root string) error {
	// A branch goes on at a depth if a later line has it before one that is less deep. Read from the end, that is known at each line.
	branches := make([]string, len(d.lines))
	open := map[int]bool{}
	for i := len(d.lines) - 1; i >= 0; i-- {
		depth := d.lines[i].depth
		for deeper := range open {
			if deeper > depth {
				delete(open, deeper)
			}
		}
		var b strings.Builder
		for above := range depth {
			if open[above] {
				b.WriteString("│   ")
			} else {
				b.WriteString("    ")
			}
		}
		if open[depth] {
			b.WriteString("├── ")
		} else {
			b.WriteString("└── ")
		}
		open[depth] = true
		branches[i] = b.String()
	}
	fmt.Fprintln(out, clean(root))
	for i, line := range d.lines {
		fmt.Fprintln(out, branches[i]+line.text)
	}
	// A bufio.Writer keeps its first error for Flush.
	_, err := fmt.Fprintf(out, "%s, %s, %s\n", plural(d.directories, "directory"), plural(d.files, "file"), bytesize.String(d.bytes))
	return err
}
