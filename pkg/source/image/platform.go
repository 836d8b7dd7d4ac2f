// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"rukpak.io/apiserver/pkg/platform"
)

// baselines are the variants of architectures whose indexes name variants that run
// everywhere.
var baselines = map[string]string{"arm": "v7", "arm64": "v8", "amd64": "v1"}

// choose returns the image that an index holds for a platform. A variant that is
// asked for is taken and no other; else one that is the baseline, or none, is taken
// before any other. Content has no platform, so an image without one serves
// everybody, but after those that say theirs.
func choose(manifests []v1.Descriptor, want platform.Platform) (v1.Hash, error) {
	var fits, neutral []v1.Descriptor
	var others []string
	for _, d := range manifests {
		if !usable(d.MediaType) {
			continue
		}
		switch p := d.Platform; {
		case p == nil || p.OS == "" && p.Architecture == "":
			neutral = append(neutral, d)
		case p.OS == want.OS && p.Architecture == want.Architecture && (want.Variant == "" || variant(p) == want.Variant):
			fits = append(fits, d)
		default:
			others = append(others, p.String())
		}
	}
	isBaseline := func(d v1.Descriptor) bool {
		return d.Platform.Variant == "" || d.Platform.Variant == baselines[want.Architecture]
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
	return v1.Hash{}, fmt.Errorf("%w: the index holds none for %s, only for %s", ErrPlatform, want, strings.Join(others, ", "))
}

// variant of a platform, the baseline where it names none.
func variant(p *v1.Platform) string { return cmp.Or(p.Variant, baselines[p.Architecture]) }

func usable(mediaType types.MediaType) bool {
	return mediaType.IsImage() || mediaType.IsIndex()
}
