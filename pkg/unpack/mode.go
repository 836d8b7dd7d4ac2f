// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// imageVolumesSince is the minor version of Kubernetes 1 that has image volumes
// switched on.
const imageVolumesSince = 35

// versionAge is how long the cluster's version is taken for granted. Clusters are
// upgraded while this server runs.
const versionAge = 10 * time.Minute

// mode chooses the way of the next attempt. A verdict means that the class's way
// cannot be gone, an error that it is not known yet.
func (w *work) mode() (v1alpha1.UnpackMode, *verdict, error) {
	mode := v1alpha1.UnpackModeAuto
	if w.class.Unpack != nil && w.class.Unpack.Mode != "" {
		mode = w.class.Unpack.Mode
	}
	if mode == v1alpha1.UnpackModeAuto {
		auto, err := w.modes.auto(w.Kube, w.now)
		if err != nil {
			return "", nil, err
		}
		mode = auto
	}
	if policy := w.bundle.Spec.Source.Image.PullPolicy; !w.allows(policy) {
		return mode, &verdict{reason: v1alpha1.ReasonPullPolicyNotAllowed, message: fmt.Sprintf("spec.source.image.pullPolicy is %s, which the class does not allow", policy)}, nil
	}
	switch {
	case mode == v1alpha1.UnpackModeDirect && !w.AllowDirect:
		return mode, &verdict{reason: v1alpha1.ReasonModeNotAllowed, message: "this server does not allow mode Direct, which the class asks for"}, nil
	case mode != v1alpha1.UnpackModeDirect && w.Kube == nil:
		return mode, &verdict{reason: v1alpha1.ReasonModeNotAllowed, message: fmt.Sprintf("mode %s, which the class asks for, needs a cluster, and this server has none", mode)}, nil
	case mode == v1alpha1.UnpackModeImageCopy:
		if err := pod.CopyPath(w.bundle.Spec.Source.Image.Path); err != nil {
			return mode, &verdict{reason: v1alpha1.ReasonPathNotSupported, message: "mode ImageCopy: " + err.Error()}, nil
		}
	}
	return mode, nil, nil
}

// allows tells whether the class allows a pull policy. It was asked when the bundle was
// written, but the class may have changed since.
func (w *work) allows(policy corev1.PullPolicy) bool {
	if policy == "" || policy == corev1.PullAlways {
		return true
	}
	return w.class.Unpack != nil && slices.Contains(w.class.Unpack.AllowedPullPolicies, policy)
}

// modes knows what mode Auto means here.
type modes struct {
	mu      sync.Mutex
	known   v1alpha1.UnpackMode
	learned time.Time
}

func (m *modes) auto(kube kubernetes.Interface, now time.Time) (v1alpha1.UnpackMode, error) {
	if kube == nil {
		return v1alpha1.UnpackModeDirect, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known != "" && now.Sub(m.learned) < versionAge {
		return m.known, nil
	}
	version, err := kube.Discovery().ServerVersion()
	if err != nil {
		return "", fmt.Errorf("version of the cluster: %w", err)
	}
	// Some distributions add a "+".
	minor, err := strconv.Atoi(strings.TrimRight(version.Minor, "+"))
	if err != nil {
		return "", fmt.Errorf("version of the cluster: minor %q: %w", version.Minor, err)
	}
	m.known, m.learned = v1alpha1.UnpackModeImageCopy, now
	if version.Major != "1" || minor >= imageVolumesSince {
		m.known = v1alpha1.UnpackModeImageVolume
	}
	return m.known, nil
}
