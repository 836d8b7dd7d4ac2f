// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// SharedUID is the value of the label rukpak.io/bundle-uid on a pod of several bundles.
const SharedUID = "shared"

// sharedPrefix begins the names of pods of several bundles.
const sharedPrefix = "bundles-"

// Member is one of the bundles of a shared pod.
type Member struct {
	// Bundle is a bundle with an image source, its status.unpack the attempt, whose podName is that of the pod.
	Bundle *v1alpha1.Bundle
	// Reference is the image to take the files from, by digest.
	Reference string
	// TraceParent is the span that the upload belongs to, empty for none.
	TraceParent string
}

// NewSharedName makes a random name for a shared pod.
func NewSharedName() string { return sharedPrefix + NewNonce() }

// IsShared tells whether an attempt is one of a shared pod: its pod's name is not its own.
func IsShared(bundle string, attempt *v1alpha1.UnpackStatus) bool {
	return attempt != nil && attempt.PodName != "" && attempt.PodName != Name(bundle, attempt.Nonce)
}

// ShareKind is what bundles of one namespace have in common that may be unpacked by one pod: all that makes their pods
// different but for the image and the path in it. It is empty when a bundle is to have a pod of its own, as when its
// image is not named by digest: a digest takes a container in the image to find out.
func ShareKind(class *v1alpha1.ProvisionerClass, bundle *v1alpha1.Bundle, mode v1alpha1.UnpackMode, reference string) string {
	if mode != v1alpha1.UnpackModeImageVolume || !v1alpha1.Digested(reference) {
		return ""
	}
	secrets := make([]string, 0, len(bundle.Spec.ImagePullSecrets))
	for _, s := range bundle.Spec.ImagePullSecrets {
		secrets = append(secrets, s.Name)
	}
	slices.Sort(secrets)
	// None of these can hold a line break.
	return strings.Join(append([]string{string(class.UID), strconv.FormatInt(class.Generation, 10), Account(bundle), bundle.Spec.Source.Image.Platform}, secrets...), "\n")
}

// MaxMembers is how many bundles a shared pod may have.
const MaxMembers = 100

// maxProof is longer than any proof.
const maxProof = 128

// Trim takes off a pod what is of no use here. Others may have our labels on theirs, with whatever they like in them.
func Trim(pod *corev1.Pod) {
	pod.ManagedFields = nil
	proofs := pod.Annotations[v1alpha1.AnnotationAttempt]
	pod.Annotations = nil
	if len(proofs) <= MaxMembers*maxProof {
		pod.Annotations = map[string]string{v1alpha1.AnnotationAttempt: proofs}
	}
}

// BuildShared makes the pod of the attempts of several bundles of one kind. Params.Bundle, Params.Reference and
// Params.TraceParent are of no matter.
//
// It is as Build makes it in mode ImageVolume, with one container for all of them: what is done for a bundle is done by our
// program alone, and reads a volume that only the program's own configuration ties to it. A container for each would cost
// most of what the shared pod saves. Bundles of one image have one volume, so that it is pulled once: they have the same
// credentials for it.
func BuildShared(p Params, members []Member) (*corev1.Pod, error) {
	p.Bundle, p.TraceParent = members[0].Bundle, ""
	b := newBuilder(p)
	pod := &corev1.Pod{ObjectMeta: b.metadata(), Spec: b.spec()}
	pod.Labels[v1alpha1.LabelBundleUID] = SharedUID
	pod.OwnerReferences = nil
	unpack := b.container(ContainerUnpack, b.Image, corev1.PullIfNotPresent, contract.Program, contract.CommandRunAll)
	var (
		proofs  []string
		jobs    []contract.Job
		volumes = map[corev1.ImageVolumeSource]int{}
	)
	for _, m := range members {
		source := &corev1.ImageVolumeSource{Reference: m.Reference, PullPolicy: m.Bundle.Spec.Source.Image.PullPolicy}
		n, known := volumes[*source]
		if !known {
			n = len(volumes)
			volumes[*source] = n
		}
		root := path.Join(contentRoot, strconv.Itoa(n))
		pod.OwnerReferences = append(pod.OwnerReferences, owner(m.Bundle))
		proofs = append(proofs, AttemptOf(m.Bundle).Proof(b.Key))
		jobs = append(jobs, contract.Job{URL: b.contentURL(m.Bundle), Root: root, Path: m.Bundle.Spec.Source.Image.Path, TraceParent: m.TraceParent})
		if !known {
			volume := volumeContent + "-" + strconv.Itoa(n)
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{Image: source}})
			unpack.VolumeMounts = append(unpack.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: root, ReadOnly: true})
		}
	}
	pod.Annotations[v1alpha1.AnnotationAttempt] = strings.Join(proofs, ",")
	text, err := json.Marshal(jobs)
	if err != nil {
		return nil, fmt.Errorf("jobs of pod %s: %w", pod.Name, err)
	}
	unpack.VolumeMounts = append(unpack.VolumeMounts, corev1.VolumeMount{Name: volumeToken, MountPath: tokenFolder, ReadOnly: true})
	unpack.Env = slices.Concat(unpack.Env, []corev1.EnvVar{literal(contract.EnvJobs, string(text))}, b.server(tokenFolder+"/token"), b.bounds())
	pod.Spec.Containers = []corev1.Container{unpack}
	return pod, nil
}

func owner(b *v1alpha1.Bundle) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Bundle", Name: b.Name, UID: b.UID}
}

// Owners returns the references to the Bundles that own a pod.
func Owners(pod *corev1.Pod) []metav1.OwnerReference {
	var owners []metav1.OwnerReference
	for _, ref := range pod.OwnerReferences {
		if ref.APIVersion == v1alpha1.SchemeGroupVersion.String() && ref.Kind == "Bundle" {
			owners = append(owners, ref)
		}
	}
	return owners
}

// BlamesOthers tells whether a shared pod that does not start says that this is for other images than the given one. What
// the node says about an image names it.
func BlamesOthers(pod *corev1.Pod, reference string) bool {
	s := statusOf(pod.Status.ContainerStatuses, ContainerUnpack)
	if s == nil || s.State.Waiting == nil {
		return false
	}
	return Blames(pod, s.State.Waiting.Message, reference)
}

// Blames tells whether what a node says of a shared pod is about other images than the given one.
func Blames(pod *corev1.Pod, message, reference string) bool {
	return !strings.Contains(message, reference) && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Image != nil && strings.Contains(message, v.Image.Reference)
	})
}

// After tells whether an attempt of the same bundle came after another one.
func (a Attempt) After(b Attempt) bool {
	return a.BundleUID == b.BundleUID && (a.Generation > b.Generation || a.Generation == b.Generation && a.Number > b.Number)
}

// Owned is an attempt with the name of its bundle.
type Owned struct {
	Attempt
	Name string
}

// MadeFor returns the attempts that a pod was made for, one for each Bundle that owns it. The error wraps ErrNotOurs
// unless each of these has its proof. Proofs of Bundles that own it no more are left: the garbage collector takes owners that
// are gone off an object that has others.
func MadeFor(key []byte, pod *corev1.Pod) ([]Owned, error) {
	owners, proofs := Owners(pod), strings.Split(pod.Annotations[v1alpha1.AnnotationAttempt], ",")
	if len(owners) == 0 || len(owners) > len(proofs) || len(proofs) > MaxMembers {
		return nil, fmt.Errorf("pod %s/%s: %d Bundles own it, and it has %d proofs: %w", pod.Namespace, pod.Name, len(owners), len(proofs), ErrNotOurs)
	}
	made := make([]Owned, 0, len(owners))
	for _, proof := range proofs {
		if len(made) == len(owners) {
			break
		}
		owner := owners[len(made)]
		if attempt, err := check(key, owner.UID, proof); err == nil {
			made = append(made, Owned{attempt, owner.Name})
		}
	}
	if len(made) < len(owners) {
		return nil, fmt.Errorf("pod %s/%s has no proof for Bundle %s: %w", pod.Namespace, pod.Name, owners[len(made)].Name, ErrNotOurs)
	}
	return made, nil
}
