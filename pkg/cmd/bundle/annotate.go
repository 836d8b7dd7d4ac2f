// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// request is what a command asks for with an annotation.
type request struct {
	annotation string
	// outlook says what will come of it.
	outlook func(state) outlook
	// handled is the value that the server has acted upon.
	handled func(*v1alpha1.Bundle) string
	// busy, if set, reports whether what was asked for is still being worked on after that.
	busy func(*v1alpha1.Bundle) bool
	// failed, if set, reports whether it has ended in vain, though content may be served.
	failed func(*v1alpha1.Bundle) bool
	// vain, if set, reports whether it will not be acted upon.
	vain func(*v1alpha1.Bundle) bool
	wait bool
	waiting
}

// retry asks for an attempt.
func (s *session) retry() *cobra.Command {
	r := &request{
		annotation: v1alpha1.AnnotationRetry, outlook: retryOutlook,
		handled: func(b *v1alpha1.Bundle) string { return b.Status.LastHandledRetry },
	}
	return s.asking(r, &cobra.Command{
		Use:   "retry NAME",
		Short: "Try again at once to unpack a bundle that fails",
		Long: `Try again at once to unpack a bundle that fails. Where nothing would come of it nothing is asked for, and it says why: of a
bundle whose content is served that is no failure; one that is suspended, or has no class, ends with 6.`,
		Example: `  # After what was wrong has been mended
  kubectl bundle retry app --wait`,
	})
}

func (s *session) asking(r *request, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = s.completeNames
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return s.ask(cmd.Context(), r, args[0]) }
	cmd.Flags().BoolVar(&r.wait, "wait", false, "Wait until the content is there.")
	r.waiting.flags(cmd)
	return cmd
}

func (s *session) ask(ctx context.Context, r *request, arg string) error {
	bundles, name, err := s.named(arg)
	if err != nil {
		return err
	}
	// Who may ask need not be allowed to look: then what will come of it is known only afterwards.
	b, err := bundles.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	looked := err == nil
	if looked {
		if o := r.outlook(s.stateOf(b)); !o.asks {
			return s.idle(ctx, bundles, name, r, o)
		}
	}
	value := time.Now().UTC().Format(time.RFC3339Nano)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{r.annotation: value}}})
	if err != nil {
		return err
	}
	if b, err = bundles.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	o := r.outlook(s.stateOf(b))
	if !o.asks && !looked {
		return s.idle(ctx, bundles, name, r, o)
	}
	if !s.quiet {
		if err := s.print("bundle.rukpak.io/%s: %s", name, o.says); err != nil {
			return err
		}
	}
	if !r.wait {
		return nil
	}
	return s.waitHandled(ctx, bundles, name, r, r.handledSince(b, value))
}

// handledSince returns what reports whether the server has acted upon a request, or upon one that came after it and took its place:
// of those that come at the same time it sees the last alone. b is the bundle with the request, as value, in it.
func (r *request) handledSince(b *v1alpha1.Bundle, value string) func(*v1alpha1.Bundle) bool {
	before := r.handled(b)
	asked, err := time.Parse(time.RFC3339Nano, value)
	return func(b *v1alpha1.Bundle) bool {
		last, current := r.handled(b), b.Annotations[r.annotation]
		if last == value || current != "" && current != value && last == current {
			return true
		}
		// That one, too, may be gone by now. Whatever others than this program ask with need not be a time.
		at, lastErr := time.Parse(time.RFC3339Nano, last)
		return err == nil && lastErr == nil && last != before && !at.Before(asked)
	}
}

// idle ends a command that asks for nothing.
func (s *session) idle(ctx context.Context, bundles typed.BundleInterface, name string, r *request, o outlook) error {
	if o.hint != "" {
		return fail(ExitNoContent, fmt.Errorf("bundle %q: %s", name, o.says), "%s", o.hint)
	}
	s.say("bundle/%s: %s", name, o.says)
	if !r.wait {
		return nil
	}
	return s.waitReady(ctx, bundles, name, r.waiting)
}

// waitHandled waits until a request was acted upon, and then as wait does.
func (s *session) waitHandled(ctx context.Context, bundles typed.BundleInterface, name string, r *request, handled func(*v1alpha1.Bundle) bool) error {
	inVain := func(b *v1alpha1.Bundle) bool { return !handled(b) && r.vain != nil && r.vain(b) }
	w := r.waiting
	w.begun = func(b *v1alpha1.Bundle) bool { return handled(b) || inVain(b) }
	ready := s.ready(w)
	return s.waitUntil(ctx, bundles, name, w, func(b *v1alpha1.Bundle) (bool, error) {
		switch {
		case inVain(b):
			return false, &vain{s.stateOf(b).next()}
		case !handled(b), r.busy != nil && r.busy(b):
			return false, nil
		case r.failed != nil && r.failed(b):
			return false, &vain{s.stateOf(b).next()}
		}
		return ready(b)
	})
}
