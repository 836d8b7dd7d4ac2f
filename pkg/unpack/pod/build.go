// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// Params say which pod is wanted.
type Params struct {
	// Bundle is a bundle with an image source, its status.unpack the attempt.
	Bundle *v1alpha1.Bundle
	// Class is the class of the bundle, with its defaults.
	Class *v1alpha1.ProvisionerClass
	// Reference is the image to take the files from: that of the spec, or a digest of it.
	Reference string
	// Image is the server's own image.
	Image string
	// Endpoint is where the content goes.
	Endpoint Endpoint
	// Key makes the proof.
	Key []byte
	// TraceParent is the span that the upload belongs to, empty for none.
	TraceParent string
	// AccountSecrets are the pull secrets of the bundle's service account.
	AccountSecrets []corev1.LocalObjectReference
}

// contentRoot is where the image's files are in mode ImageVolume.
const contentRoot = "/content"

// tokenFolder is where the token is in mode ImageVolume.
const tokenFolder = "/token"

// builder holds what the parts of a pod share.
type builder struct {
	Params
	template v1alpha1.UnpackPodTemplate
	attempt  *v1alpha1.UnpackStatus
	// folder holds the program, and the token in mode ImageCopy, inside the
	// bundle's image. Its name is the attempt's, so that it hides nothing there.
	folder string
}

// Account is the service account of a bundle's pods.
func Account(bundle *v1alpha1.Bundle) string {
	return cmp.Or(bundle.Spec.ServiceAccountName, v1alpha1.DefaultServiceAccountName)
}

// NamesSecrets tells whether the class or the bundle names pull secrets, so that those of the service account
// have to be named, too.
func NamesSecrets(class *v1alpha1.ProvisionerClass, bundle *v1alpha1.Bundle) bool {
	return len(bundle.Spec.ImagePullSecrets) > 0 ||
		class.Unpack != nil && class.Unpack.PodTemplate != nil && len(class.Unpack.PodTemplate.ImagePullSecrets) > 0
}

// Build makes the pod of the attempt in status.unpack. Its mode there is
// ImageVolume or ImageCopy.
//
// The pod satisfies the restricted Pod Security Standard and has no credential
// but a token with the audience rukpak.io. It names the pull secrets of the class, those of
// the bundle and, if there are any, those of the service account: admission adds the latter only
// to pods that name none, and the kubelet looks no further than the pod.
func Build(p Params) *corev1.Pod {
	b := newBuilder(p)
	pod := &corev1.Pod{ObjectMeta: b.metadata(), Spec: b.spec()}
	if b.attempt.Mode == v1alpha1.UnpackModeImageCopy {
		b.imageCopy(&pod.Spec)
	} else {
		b.imageVolume(&pod.Spec)
	}
	return pod
}

func newBuilder(p Params) *builder {
	b := &builder{Params: p, attempt: p.Bundle.Status.Unpack}
	if p.Class.Unpack != nil && p.Class.Unpack.PodTemplate != nil {
		b.template = *p.Class.Unpack.PodTemplate
	}
	b.folder = "/.rukpak-" + b.attempt.Nonce
	return b
}

func (b *builder) metadata() metav1.ObjectMeta {
	labels := map[string]string{}
	maps.Copy(labels, b.template.Labels)
	maps.Copy(labels, map[string]string{
		LabelManagedBy:          ManagedBy,
		v1alpha1.LabelBundleUID: string(b.Bundle.UID),
	})
	maps.Copy(labels, noInjectionLabels())
	annotations := map[string]string{}
	maps.Copy(annotations, b.template.Annotations)
	maps.Copy(annotations, noInjectionAnnotations())
	annotations[v1alpha1.AnnotationAttempt] = AttemptOf(b.Bundle).Proof(b.Key)
	return metav1.ObjectMeta{
		Namespace:       b.Bundle.Namespace,
		Name:            b.attempt.PodName,
		Labels:          labels,
		Annotations:     annotations,
		OwnerReferences: []metav1.OwnerReference{owner(b.Bundle)},
	}
}

// spec makes what both modes share.
func (b *builder) spec() corev1.PodSpec {
	nodeSelector := maps.Clone(b.template.NodeSelector)
	if nodeSelector == nil {
		nodeSelector = map[string]string{}
	}
	nodeSelector[corev1.LabelOSStable] = platform.Linux
	// The node takes the image of its own architecture.
	if p, err := platform.Parse(b.attempt.Platform); err == nil {
		nodeSelector[corev1.LabelArchStable] = p.Architecture
	}
	return corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		ActiveDeadlineSeconds:         ptr.To(int64(Timeout(b.Class).Seconds())),
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		DNSPolicy:                     corev1.DNSDefault,
		ServiceAccountName:            Account(b.Bundle),
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		SecurityContext:               b.podSecurity(),
		ImagePullSecrets:              pullSecrets(b.AccountSecrets, b.template.ImagePullSecrets, b.Bundle.Spec.ImagePullSecrets),
		NodeSelector:                  nodeSelector,
		Tolerations:                   tolerations(b.template.Tolerations),
		PriorityClassName:             b.template.PriorityClassName,
		RuntimeClassName:              b.template.RuntimeClassName,
		Volumes:                       []corev1.Volume{b.tokenVolume()},
	}
}

// imageVolume mounts the bundle's image read-only into a container of the server's
// own image, so that nothing of it is executed. Only for a reference that is no
// digest a program runs in it too, the server's own, so that the node tells its digest.
func (b *builder) imageVolume(spec *corev1.PodSpec) {
	image := b.Bundle.Spec.Source.Image
	spec.Volumes = append(spec.Volumes, corev1.Volume{
		Name: volumeContent,
		VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{
			Reference: b.Reference, PullPolicy: image.PullPolicy,
		}},
	})
	unpack := b.container(ContainerUnpack, b.Image, corev1.PullIfNotPresent, contract.Program, contract.CommandRun)
	unpack.Env = append(unpack.Env, b.environment(contentRoot, tokenFolder+"/token")...)
	unpack.VolumeMounts = []corev1.VolumeMount{
		{Name: volumeContent, MountPath: contentRoot, ReadOnly: true},
		{Name: volumeToken, MountPath: tokenFolder, ReadOnly: true},
	}
	spec.Containers = []corev1.Container{unpack}
	if v1alpha1.Digested(b.Reference) {
		return
	}
	// The node pulls the images of the volumes, under the policy of the bundle, and starts the containers
	// in the same go. Not asking the registry again keeps both the same if the tag moves in between; an init
	// container would have the volume's image pulled once more after it.
	policy := corev1.PullIfNotPresent
	if image.PullPolicy == corev1.PullNever {
		policy = corev1.PullNever
	}
	resolve := b.container(ContainerResolve, b.Reference, policy, b.folder+contract.Program, contract.CommandExit)
	resolve.VolumeMounts = []corev1.VolumeMount{b.programMount(true)}
	spec.Volumes = append(spec.Volumes, b.programImage())
	spec.Containers = []corev1.Container{resolve, unpack}
}

// programImage is the server's own image, for its program.
func (b *builder) programImage() corev1.Volume {
	return corev1.Volume{
		Name: volumeProgram,
		VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{
			Reference: b.Image, PullPolicy: corev1.PullIfNotPresent,
		}},
	}
}

// imageCopy runs the server's own static program inside the bundle's image.
func (b *builder) imageCopy(spec *corev1.PodSpec) {
	image := b.Bundle.Spec.Source.Image
	unpack := b.container(ContainerUnpack, b.Reference, image.PullPolicy, b.program(), contract.CommandRun)
	unpack.Env = append(unpack.Env, b.environment("/", b.folder+"-token/token")...)
	unpack.VolumeMounts = []corev1.VolumeMount{
		b.programMount(true),
		{Name: volumeToken, MountPath: b.folder + "-token", ReadOnly: true},
	}
	spec.Volumes = append(spec.Volumes, programVolume())
	spec.InitContainers = []corev1.Container{b.install()}
	spec.Containers = []corev1.Container{unpack}
}

func (b *builder) program() string { return b.folder + "/unpack" }

func (b *builder) programMount(readOnly bool) corev1.VolumeMount {
	return corev1.VolumeMount{Name: volumeProgram, MountPath: b.folder, ReadOnly: readOnly}
}

func (b *builder) install() corev1.Container {
	c := b.container(ContainerInstall, b.Image, corev1.PullIfNotPresent, contract.Program, contract.CommandInstall, b.program())
	c.VolumeMounts = []corev1.VolumeMount{b.programMount(false)}
	return c
}

// container makes a container whose command, folder and sensitive environment do not
// depend on what its image says about them.
func (b *builder) container(name, image string, policy corev1.PullPolicy, command ...string) corev1.Container {
	resources := b.resources()
	return corev1.Container{
		Name:            name,
		Image:           image,
		ImagePullPolicy: policy,
		Command:         command,
		WorkingDir:      "/",
		Env:             fixedEnvironment(resources),
		Resources:       resources,
		SecurityContext: containerSecurity(),
		// A program that dies without a report, as of a panic, has its last words in the log. Nothing of
		// the bundle's image runs, so they are none of the image's.
		TerminationMessagePath:   contract.TerminationLog,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

// CopyPath says why the files at a path cannot be read in mode ImageCopy: container
// runtimes mount folders and files of their own over those of the image. It returns
// nil when they can.
func CopyPath(p string) error {
	p = path.Clean("/" + p)
	for _, mounted := range []string{"/proc", "/sys", "/dev"} {
		if p == mounted || strings.HasPrefix(p, mounted+"/") {
			return fmt.Errorf("path %q: the container runtime hides %s of the image", p, mounted)
		}
	}
	if slices.Contains([]string{"/", "/etc", "/run", "/var", "/var/run"}, p) {
		return fmt.Errorf("path %q: the container runtime adds files of its own there; choose a folder below it, or mode ImageVolume", p)
	}
	return nil
}

func programVolume() corev1.Volume {
	return corev1.Volume{Name: volumeProgram, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("64Mi"))},
	}}
}
