// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// platform chooses the platform of the next attempt, so that it never is that of whichever
// node the pod comes to. A verdict means that what is asked for cannot be had.
//
// A node takes the image of its own architecture from an index, and a pod cannot ask it for
// another: so the architecture chooses the nodes. Which variant of it a node takes is the node's.
func (w *work) platform(mode v1alpha1.UnpackMode) (platform.Platform, *verdict) {
	refuse := func(format string, args ...any) (platform.Platform, *verdict) {
		return platform.Platform{}, &verdict{reason: v1alpha1.ReasonPlatformNotAllowed, message: fmt.Sprintf(format, args...)}
	}
	ofClass, err := w.platformOfClass(mode)
	if err != nil {
		return refuse("unpack.podTemplate.nodeSelector of the class: %v", err)
	}
	if text := w.bundle.Spec.Source.Image.Platform; text != "" {
		wanted, err := platform.Parse(text)
		switch {
		case err != nil:
			return refuse("spec.source.image.platform: %v", err)
		case wanted.Variant != "" && mode != v1alpha1.UnpackModeDirect:
			return refuse("spec.source.image.platform is %s, and in mode %s the node chooses the variant: leave it out, or name the image of that variant by its own digest", text, mode)
		case !ofClass.IsZero() && ofClass.Architecture != wanted.Architecture:
			return refuse("spec.source.image.platform is %s, and the class has its pods run on nodes of %s alone", text, ofClass)
		}
		return wanted, nil
	}
	if !ofClass.IsZero() {
		return ofClass, nil
	}
	if had := w.platformOfContent(); !had.IsZero() {
		return had, nil
	}
	return w.Platform, nil
}

// platformOfClass is that of the nodes which the class has its pods run on, if it says so.
func (w *work) platformOfClass(mode v1alpha1.UnpackMode) (platform.Platform, error) {
	if mode == v1alpha1.UnpackModeDirect || w.class.Unpack == nil || w.class.Unpack.PodTemplate == nil {
		return platform.Platform{}, nil
	}
	arch, ok := w.class.Unpack.PodTemplate.NodeSelector[corev1.LabelArchStable]
	if !ok {
		return platform.Platform{}, nil
	}
	return platform.Parse(platform.Linux + "/" + arch)
}

// platformOfContent is that of the content that the bundle has had for its present spec: to
// fetch it anew must not depend on where the server runs by then.
func (w *work) platformOfContent() platform.Platform {
	s := &w.bundle.Status
	if s.Content == nil || s.Content.Generation != w.bundle.Generation || s.ResolvedSource == nil || s.ResolvedSource.Image == nil {
		return platform.Platform{}
	}
	// An earlier version of the server wrote none, and no other than Parse reads.
	had, err := platform.Parse(s.ResolvedSource.Image.Platform)
	if err != nil {
		return platform.Platform{}
	}
	return had
}

// withPlatform adds to the scheduler's words about selectors which architecture the pod asks for.
func withPlatform(o pod.Outcome, target string) string {
	if o.Reason != v1alpha1.ReasonUnschedulable || target == "" || !strings.Contains(o.Message, "node affinity/selector") {
		return o.Message
	}
	return pod.Words(o.Message, "the image is to be that for "+target+", so it has to be a node of that architecture")
}
