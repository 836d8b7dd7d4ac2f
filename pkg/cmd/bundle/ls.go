// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rukpak.io/apiserver/pkg/bytesize"
	"rukpak.io/apiserver/pkg/content/listing"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// ls lists a directory.
func (s *session) ls() *cobra.Command {
	var (
		opts   typed.ListFilesOptions
		long   bool
		output string
	)
	cmd := &cobra.Command{
		Use:   "ls NAME[@REVISION] [PATH]",
		Short: "List the files in a directory of the content",
		Example: `  kubectl bundle ls app
  kubectl bundle ls app manifests -l

  # Everything, with digests, for a program
  kubectl bundle ls app -R -o json`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: s.completeFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			bundles, t, digest, err := s.opened(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			opts.Digest = digest
			files := bundles.ListFiles(cmd.Context(), t.name, inside(args[1:]), opts)
			out := bufio.NewWriter(s.output(output))
			var print printer
			switch {
			case output == "json":
				print = &jsonPrinter{out: out}
			case output == "wide" || output == "" && long:
				print = &longPrinter{tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)}
			case output == "name" || output == "":
				print = &namePrinter{out, s.line}
			default:
				return usage("-o is json, name or wide, not %q", output)
			}
			for e, err := range files {
				if err != nil {
					if one, ok := instead(cmd.Context(), bundles, t.name, digest, inside(args[1:]), err); ok {
						e, err = one, nil
					}
				}
				if err == nil {
					err = print.add(e)
				}
				if err != nil {
					return err
				}
			}
			if err := print.end(); err != nil {
				return err
			}
			return out.Flush()
		},
	}
	cmd.Flags().BoolVarP(&opts.Recursive, "recursive", "R", false, "List what is in directories below, too.")
	cmd.Flags().BoolVarP(&long, "long", "l", false, "Show mode, size and the beginning of the digest, too.")
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json, name or wide.")
	return cmd
}

// inside is the path that was named, without what means the same.
func inside(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return strings.TrimPrefix(path.Clean("/"+args[0]), "/")
}

// printer prints entries.
type printer interface {
	add(listing.Entry) error
	end() error
}

// namePrinter prints a name on each line.
type namePrinter struct {
	out  io.Writer
	line func(string) string
}

func (p *namePrinter) add(e listing.Entry) error {
	name := e.Path()
	if e.Type == listing.Directory {
		name += "/"
	}
	_, err := fmt.Fprintln(p.out, p.line(name))
	return err
}

func (*namePrinter) end() error { return nil }

// longPrinter prints a table.
type longPrinter struct{ *tabwriter.Writer }

func (p *longPrinter) add(e listing.Entry) error {
	size, digest, name := "", "", clean(e.Path())
	kind := "-"
	switch e.Type {
	case listing.Directory:
		kind, name = "d", name+"/"
	case listing.SymbolicLink:
		kind, name = "l", name+" -> "+clean(e.Target())
	default:
		size, digest = bytesize.String(e.Size), shortDigest(e.Digest)
	}
	_, err := fmt.Fprintf(p, "%s%s\t%s\t%s\t%s\n", kind, permissions(e.Mode), size, digest, name)
	return err
}

func (p *longPrinter) end() error { return p.Flush() }

// permissions writes octal permission bits as ls does.
func permissions(mode string) string {
	bits := 0
	if _, err := fmt.Sscanf(mode, "%o", &bits); err != nil {
		return mode
	}
	text := []byte("rwxrwxrwx")
	for i := range text {
		if bits&(1<<(len(text)-1-i)) == 0 {
			text[i] = '-'
		}
	}
	return string(text)
}

// jsonPrinter prints an array.
type jsonPrinter struct {
	out   io.Writer
	begun bool
}

func (p *jsonPrinter) add(e listing.Entry) error {
	line, err := json.Marshal(&e)
	if err != nil {
		return err
	}
	separator := ",\n"
	if !p.begun {
		p.begun, separator = true, "[\n"
	}
	_, err = fmt.Fprintf(p.out, "%s%s", separator, line)
	return err
}

func (p *jsonPrinter) end() error {
	text := "\n]\n"
	if !p.begun {
		text = "[]\n"
	}
	_, err := io.WriteString(p.out, text)
	return err
}

// instead is the file that was named in place of a directory, if that is why there is no list: the server refuses a recursive one.
func instead(ctx context.Context, bundles typed.BundleInterface, name, digest, path string, err error) (listing.Entry, bool) {
	if !errors.Is(err, typed.ErrNotDirectory) && !apierrors.IsBadRequest(err) {
		return listing.Entry{}, false
	}
	e, ok := stat(ctx, bundles, name, digest, path)
	return e, ok && e.Type != listing.Directory
}

// stat finds an entry in the list of the directory that it is in.
func stat(ctx context.Context, bundles typed.BundleInterface, name, digest, file string) (listing.Entry, bool) {
	dir, base := path.Split(file)
	for e, err := range bundles.ListFiles(ctx, name, strings.TrimSuffix(dir, "/"), typed.ListFilesOptions{Digest: digest}) {
		if err != nil {
			break
		}
		if e.Path() == base {
			return e, true
		}
	}
	return listing.Entry{}, false
}
