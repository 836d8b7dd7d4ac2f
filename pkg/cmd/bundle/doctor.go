// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
)

// level is how bad a finding is.
type level string

const (
	levelOK      level = "ok"
	levelUnknown level = "?"
	levelWarning level = "warn"
	levelBad     level = "BAD"
)

// finding is what a check of doctor found.
type finding struct {
	level level
	what  string
	// remedy says what to do. What is ok has none.
	remedy string
}

// doctor looks at all that has to be right.
func (s *session) doctor() *cobra.Command {
	systemNamespace := "rukpak-system"
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the server, its registration, certificates, classes, stores, and what you may do",
		Long: `Check what has to be right for bundles to work: that the API is there and available, its certificates, what you may do in
the namespace, the classes, the state of bundles and stores, the server's pods, and versions. Each finding comes with its remedy.

What you may not look at is marked with a question mark, and is no failure. Exit code 1 means that something is wrong.`,
		Example: `  kubectl bundle doctor

  # What somebody else may do in a namespace
  kubectl bundle doctor -n team-a --as jane`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := s.newDoctor(systemNamespace)
			if err != nil {
				return err
			}
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&systemNamespace, "system-namespace", systemNamespace, "The namespace that the server is in.")
	return cmd
}

// examination is one run of doctor.
type examination struct {
	*session
	config *rest.Config
	kube   kubernetes.Interface
	rukpak versioned.Interface
	in     string // the namespace that is looked at
	system string // the one of the server

	// alone means that a server without a cluster answers.
	alone bool
	// served means that kube-apiserver reaches the server.
	served bool
	bad    int
}

func (s *session) newDoctor(system string) (*examination, error) {
	d := &examination{session: s, system: system}
	var err error
	if d.config, err = s.flags.ToRESTConfig(); err != nil {
		return nil, err
	}
	if d.kube, err = s.kubernetes(); err != nil {
		return nil, err
	}
	if d.rukpak, err = s.clientset(); err != nil {
		return nil, err
	}
	d.in, err = s.namespace()
	return d, err
}

// run makes all checks, until one without which the others make no sense fails.
func (d *examination) run(ctx context.Context) error {
	for _, check := range []struct {
		needed bool
		look   func(context.Context) []finding
	}{
		{true, d.server}, {false, d.registration}, {false, d.pods}, {true, d.group},
		{false, d.access}, {false, d.classes}, {false, d.bundlesState},
	} {
		before := d.bad
		for _, f := range check.look(ctx) {
			if err := d.tell(f); err != nil {
				return err
			}
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if check.needed && d.bad > before {
			break
		}
	}
	if d.bad > 0 {
		return errNo
	}
	return nil
}

func (d *examination) tell(f finding) error {
	if f.level == levelBad {
		d.bad++
	}
	if err := d.print("%-5s %s", f.level, clean(f.what)); err != nil {
		return err
	}
	if f.remedy == "" {
		return nil
	}
	return d.print("      -> %s", clean(f.remedy))
}

func ok(format string, args ...any) finding {
	return finding{level: levelOK, what: fmt.Sprintf(format, args...)}
}

func bad(remedy, format string, args ...any) finding {
	return finding{levelBad, fmt.Sprintf(format, args...), remedy}
}

func warning(remedy, format string, args ...any) finding {
	return finding{levelWarning, fmt.Sprintf(format, args...), remedy}
}

func unknown(format string, args ...any) finding {
	return finding{level: levelUnknown, what: fmt.Sprintf(format, args...)}
}

// names joins names, of which only some are shown.
func names(all []string) string {
	const most = 5
	if len(all) > most {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" and %d more", len(all)-most)
	}
	return strings.Join(all, ", ")
}
