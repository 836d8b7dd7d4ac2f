// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/content/listing"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

const (
	// completeTime bounds how long a completion may take: somebody sits there and waits.
	completeTime = 3 * time.Second
	// maxComplete is how many names are offered.
	maxComplete = 500
)

// complete lets flags be completed.
func (s *session) complete(root *cobra.Command) {
	// The flags are there: their names are those of genericclioptions.
	must := func(name string, f cobra.CompletionFunc) {
		if err := root.RegisterFlagCompletionFunc(name, f); err != nil {
			panic(err)
		}
	}
	must("namespace", s.completeNamespace)
	must("context", s.completeContext)
}

// completeNames offers the names of bundles for the first argument, and files of this machine for others.
func (s *session) completeNames(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	bundles, err := s.bundles()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for opts := (metav1.ListOptions{Limit: pageSize}); len(names) < maxComplete; {
		list, err := bundles.List(ctx, opts)
		if err != nil {
			break // The time may be over. What was found is of use.
		}
		for _, b := range list.Items {
			if strings.HasPrefix(b.Name, begun) {
				names = append(names, cobra.CompletionWithDesc(b.Name, string(b.Status.Phase)))
			}
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			break
		}
	}
	return names[:min(len(names), maxComplete)], cobra.ShellCompDirectiveNoFileComp
}

// completeFiles offers the names of bundles, and then what is in the content of the one that was named.
func (s *session) completeFiles(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return s.completeNames(cmd, args, begun)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	bundles, t, digest, err := s.opened(ctx, args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	folder := begun[:strings.LastIndexByte(begun, '/')+1]
	var names []string
	directive := cobra.ShellCompDirectiveNoFileComp
	for e, err := range bundles.ListFiles(ctx, t.name, inside([]string{folder}), typed.ListFilesOptions{Digest: digest, Patience: -1}) {
		if err != nil || len(names) == maxComplete {
			break
		}
		name := folder + e.Path()
		if !strings.HasPrefix(name, begun) || clean(name) != name {
			continue
		}
		if e.Type == listing.Directory {
			name += "/"
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		names = append(names, name)
	}
	return names, directive
}

func (s *session) completeClass(cmd *cobra.Command) {
	err := cmd.RegisterFlagCompletionFunc("class", func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		client, err := s.clientset()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list, err := client.RukpakV1alpha1().ProvisionerClasses().List(ctx, metav1.ListOptions{Limit: maxComplete})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, c := range list.Items {
			if strings.HasPrefix(c.Name, begun) {
				names = append(names, cobra.CompletionWithDesc(c.Name, c.Provisioner))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // There is no such flag.
	}
}

func (s *session) completeNamespace(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	client, err := s.kubernetes()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: maxComplete})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, n := range list.Items {
		if strings.HasPrefix(n.Name, begun) {
			names = append(names, n.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (s *session) completeContext(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	config, err := s.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for name := range config.Contexts {
		if strings.HasPrefix(name, begun) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}
