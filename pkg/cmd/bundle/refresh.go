// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// annotationRefresh on a bundle asks to look its image up anew, each time its value changes. status.lastHandledRefresh
// echoes the value that was acted upon.
const annotationRefresh = "rukpak.io/refresh"

// refresh asks to look a tag up.
func (s *session) refresh() *cobra.Command {
	return s.asking(&request{annotation: annotationRefresh, done: "its image will be looked up anew", handled: s.lastRefresh}, &cobra.Command{
		Use:   "refresh NAME",
		Short: "Look up now what the tag of an image names, and unpack that if it has changed",
		Example: `  kubectl bundle refresh app

  # And wait for it
  kubectl bundle refresh app --wait`,
	})
}

// lastRefresh is what the server has acted upon.
func (s *session) lastRefresh(ctx context.Context, _ typed.BundleInterface, b *v1alpha1.Bundle) (string, error) {
	client, err := s.clientset()
	if err != nil {
		return "", err
	}
	raw, err := body(client.RukpakV1alpha1().RESTClient().Get().Namespace(b.Namespace).Resource("bundles").Name(b.Name).Do(ctx))
	if err != nil {
		return "", err
	}
	var seen struct {
		Status struct {
			LastHandledRefresh string `json:"lastHandledRefresh"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &seen); err != nil {
		return "", fmt.Errorf("read bundle %q: %w", b.Name, err)
	}
	return seen.Status.LastHandledRefresh, nil
}
