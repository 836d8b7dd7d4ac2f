// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bytesize"
)

// history lists the contents of a bundle.
func (s *session) history() *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "List the contents that a bundle has and had, as far as they are kept",
		Example: `  kubectl bundle history app

  # What has changed
  kubectl bundle diff app@-1 app`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := s.bundle(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			contents := revisions(b)
			if output != "" {
				return s.printAs(output, contents)
			}
			if len(contents) == 0 {
				s.say("bundle/%s has had no content yet: %s", b.Name, clean(stateOf(b).words()))
				return nil
			}
			return s.table(contents)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json or yaml.")
	return cmd
}

func (s *session) table(contents []v1alpha1.ContentStatus) error {
	w := tabwriter.NewWriter(s.Out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "REVISION\tDIGEST\tSIZE\tFILES\tGENERATION\tAGE")
	for i, c := range contents {
		revision := "current"
		if i > 0 {
			revision = fmt.Sprint(-i)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\n", revision, c.Digest, bytesize.String(c.Size), c.Files, c.Generation, age(c.UpdateTime))
	}
	// A tabwriter writes when it is flushed.
	return w.Flush()
}

// printAs prints anything as JSON or YAML.
func (s *session) printAs(format string, v any) error {
	var (
		text []byte
		err  error
	)
	switch format {
	case "json":
		text, err = json.MarshalIndent(v, "", "  ")
		text = append(text, '\n')
	case "yaml":
		text, err = yaml.Marshal(v)
	default:
		return usage("-o is json or yaml, not %q", format)
	}
	if err == nil {
		_, err = s.output(format).Write(text)
	}
	return err
}
