// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// request is what a command asks for with an annotation.
type request struct {
	annotation string
	// done says what was asked for.
	done string
	// handled is the value that the server has acted upon.
	handled func(*v1alpha1.Bundle) string
	// busy, if set, reports whether what was asked for is still being worked on after that.
	busy func(*v1alpha1.Bundle) bool
	// failed, if set, reports whether it has ended in vain, though content may be served.
	failed  func(*v1alpha1.Bundle) bool
	wait    bool
	timeout time.Duration
}

// retry asks for an attempt.
func (s *session) retry() *cobra.Command {
	r := &request{
		annotation: v1alpha1.AnnotationRetry, done: "a new attempt was asked for",
		handled: func(b *v1alpha1.Bundle) string { return b.Status.LastHandledRetry },
	}
	return s.asking(r, &cobra.Command{
		Use:   "retry NAME",
		Short: "Try again at once to unpack a bundle that fails",
		Example: `  # After what was wrong has been mended
  kubectl bundle retry app --wait`,
	})
}

func (s *session) asking(r *request, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = s.completeNames
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return s.ask(cmd.Context(), r, args[0]) }
	cmd.Flags().BoolVar(&r.wait, "wait", false, "Wait until the content is there.")
	cmd.Flags().DurationVar(&r.timeout, "timeout", defaultWait, "How long to wait. 0 is for ever.")
	return cmd
}

func (s *session) ask(ctx context.Context, r *request, arg string) error {
	bundles, name, err := s.named(arg)
	if err != nil {
		return err
	}
	value := time.Now().UTC().Format(time.RFC3339Nano)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{r.annotation: value}}})
	if err != nil {
		return err
	}
	b, err := bundles.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	if b.Spec.Source.Type != v1alpha1.SourceTypeImage {
		s.say("bundle/%s: nothing is fetched for a bundle whose source is %s", name, b.Spec.Source.Type)
		return nil
	}
	if !s.quiet {
		if err := s.print("bundle.rukpak.io/%s: %s", name, r.done); err != nil {
			return err
		}
	}
	if !r.wait {
		return nil
	}
	return s.waitHandled(ctx, bundles, name, r, value)
}

// waitHandled waits until a request was acted upon, and then as wait does.
func (s *session) waitHandled(ctx context.Context, bundles typed.BundleInterface, name string, r *request, value string) error {
	began := time.Now()
	err := s.waitUntil(ctx, bundles, name, r.timeout, func(b *v1alpha1.Bundle) (bool, error) {
		if r.handled(b) != value || r.busy != nil && r.busy(b) {
			return false, nil
		}
		if r.failed != nil && r.failed(b) {
			return false, s.givesUp(b)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	left := r.timeout
	if left > 0 {
		if left -= time.Since(began); left <= 0 {
			return fail(ExitUnavailable, fmt.Errorf("bundle %q is not ready after %s", name, r.timeout), "--timeout waits longer")
		}
	}
	return s.waitReady(ctx, bundles, name, left)
}
