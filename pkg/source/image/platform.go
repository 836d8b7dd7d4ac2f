// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// variants are the baselines of architectures whose indexes name variants.
var variants = map[string]string{"arm": "v7", "arm64": "v8"}

// choose returns the image that an index holds for linux and architecture. A
// variant that is the baseline, or none, is taken before any other. Content has
// no platform, so an image without one serves every architecture, but after
// those that say theirs.
func choose(manifests []v1.Descriptor, architecture string) (v1.Hash, error) {
	var fits, neutral []v1.Descriptor
	var others []string
	for _, d := range manifests {
		if !usable(d.MediaType) {
			continue
		}
		switch p := d.Platform; {
		case p == nil || p.OS == "" && p.Architecture == "":
			neutral = append(neutral, d)
		case p.OS == "linux" && p.Architecture == architecture:
			fits = append(fits, d)
		default:
			others = append(others, p.String())
		}
	}
	isBaseline := func(d v1.Descriptor) bool {
		return d.Platform.Variant == "" || d.Platform.Variant == variants[architecture]
	}
	if i := slices.IndexFunc(fits, isBaseline); i >= 0 {
		return fits[i].Digest, nil
	}
	if candidates := append(fits, neutral...); len(candidates) > 0 {
		return candidates[0].Digest, nil
	}
	if len(others) == 0 {
		return v1.Hash{}, fmt.Errorf("%w: the index holds no image", ErrNoImage)
	}
	return v1.Hash{}, fmt.Errorf("%w: the index holds no image for linux/%s, only for %s", ErrPlatform, architecture, strings.Join(others, ", "))
}

func usable(mediaType types.MediaType) bool {
	return mediaType.IsImage() || mediaType.IsIndex()
}
