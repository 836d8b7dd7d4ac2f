// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
	"rukpak.io/apiserver/test/integration/harness"
)

// asServer is the cluster as the server's own service account sees it.
func asServer(t *testing.T) kubernetes.Interface {
	t.Helper()
	return must(shared.As(t.Context(), harness.SystemNamespace, harness.ServiceName))(t)
}

var dryRun = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// unpackPod is a pod as the server makes it.
func unpackPod(namespace string, mode v1alpha1.UnpackMode, reference string) *corev1.Pod {
	b := imageBundle("app", "plain")
	b.Namespace, b.UID, b.Generation = namespace, "0b2c1d5e-0000-4000-8000-000000000000", 1
	nonce := pod.NewNonce()
	b.Status.Unpack = &v1alpha1.UnpackStatus{Generation: 1, Attempt: 1, Nonce: nonce, Mode: mode, PodName: pod.Name(b.Name, nonce)}
	class := &v1alpha1.ProvisionerClass{Unpack: &v1alpha1.UnpackPolicy{PodTemplate: &v1alpha1.UnpackPodTemplate{
		Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"note": "b"}, NodeSelector: map[string]string{"disk": "ssd"},
		Tolerations: []v1alpha1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}, ImagePullSecrets: []v1alpha1.LocalObjectReference{{Name: "regcred"}},
		Resources: &v1alpha1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("200Mi")}}, RunAsUser: ptr.To[int64](1000),
	}}}
	return pod.Build(pod.Params{
		Bundle: b, Class: class, Reference: reference, Image: harness.UnpackImage, Key: make([]byte, 32),
		Endpoint: pod.Endpoint{URL: "https://10.96.0.7:443", ServerName: "s", CA: []byte("ca")},
	})
}

// sharedPod is a pod for two bundles as the server makes it.
func sharedPod(t *testing.T, namespace string) *corev1.Pod {
	t.Helper()
	var members []pod.Member
	for _, name := range []string{"app", "other"} {
		b := imageBundle(name, "plain")
		b.Namespace, b.UID, b.Generation = namespace, types.UID("0b2c1d5e-0000-4000-8000-00000000"+name), 1
		b.Status.Unpack = &v1alpha1.UnpackStatus{Generation: 1, Attempt: 1, Nonce: pod.NewNonce(), Mode: v1alpha1.UnpackModeImageVolume, PodName: "bundles-x"}
		members = append(members, pod.Member{Bundle: b, Reference: strings.Replace(imageReference, "/", "/"+name+"/", 1)})
	}
	return must(pod.BuildShared(pod.Params{
		Class: &v1alpha1.ProvisionerClass{}, Image: harness.UnpackImage, Key: make([]byte, 32), Endpoint: pod.Endpoint{URL: "https://10.96.0.7:443", ServerName: "s", CA: []byte("ca")},
	}, members))(t)
}

const taggedReference = "registry.invalid/app:v1"

// TestServerMakesNoOtherPods asks for pods as whoever has the server's token could.
func TestServerMakesNoOtherPods(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	pods := asServer(t).CoreV1().Pods(namespace)
	// A policy is in force a moment after it was made.
	eventually(t, "policy is in force", func() string {
		p := unpackPod(namespace, v1alpha1.UnpackModeImageVolume, imageReference)
		p.Labels = nil
		if _, err := pods.Create(t.Context(), p, dryRun); err == nil {
			return "a pod without labels is let through"
		}
		return ""
	})
	for name, p := range map[string]*corev1.Pod{
		"ImageVolume, digest": unpackPod(namespace, v1alpha1.UnpackModeImageVolume, imageReference),
		"ImageVolume, tag":    unpackPod(namespace, v1alpha1.UnpackModeImageVolume, taggedReference),
		"ImageCopy":           unpackPod(namespace, v1alpha1.UnpackModeImageCopy, taggedReference),
		"shared":              sharedPod(t, namespace),
	} {
		if _, err := pods.Create(t.Context(), p, dryRun); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	secret := corev1.Volume{Name: "x", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x"}}}
	host := corev1.Volume{Name: "x", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}
	configMap := corev1.Volume{Name: "x", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "x"}}}}
	token := corev1.Volume{Name: "x", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "x"}}}}}}
	foreign := func(p *corev1.Pod) *corev1.Container {
		return &p.Spec.Containers[0] // of a pod of mode ImageCopy
	}
	for name, test := range map[string]struct {
		mode   v1alpha1.UnpackMode
		change func(p *corev1.Pod)
		says   string
	}{
		"no label":             {"", func(p *corev1.Pod) { delete(p.Labels, pod.LabelManagedBy) }, "label"},
		"no proof":             {"", func(p *corev1.Pod) { delete(p.Annotations, v1alpha1.AnnotationAttempt) }, "proof"},
		"something as a proof": {"", func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationAttempt] = "x" }, "proof"},
		"no owner":             {"", func(p *corev1.Pod) { p.OwnerReferences = nil }, "owned by Bundles"},
		"another owner as well": {"", func(p *corev1.Pod) {
			p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"})
		}, "owned by Bundles"},
		"a finalizer":          {"", func(p *corev1.Pod) { p.Finalizers = []string{finalizer} }, "owned by Bundles"},
		"host network":         {"", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "its node"},
		"host PID":             {"", func(p *corev1.Pod) { p.Spec.HostPID = true }, "its node"},
		"a node by name":       {"", func(p *corev1.Pod) { p.Spec.NodeName = "x" }, "its node"},
		"token of the account": {"", func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = ptr.To(true) }, "no token"},
		"a projected token":    {"", func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, token) }, "no token"},
		"a secret":             {"", func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, secret) }, "no volumes but"},
		"a config map":         {"", func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, configMap) }, "no volumes but"},
		"a folder of the node": {"", func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, host) }, "no volumes but"},
		"a secret as variable": {"", func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "X", ValueFrom: &corev1.EnvVarSource{
				SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "x"}, Key: "x"}}})
		}, "literal values"},
		"root":            {"", func(p *corev1.Pod) { p.Spec.SecurityContext.RunAsNonRoot = nil }, "other than root"},
		"no seccomp":      {"", func(p *corev1.Pod) { p.Spec.SecurityContext.SeccompProfile = nil }, "seccomp"},
		"more privileges": {"", func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = ptr.To(true) }, "restricted"},
		"a type of SELinux": {"", func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"}
		}, "restricted"},
		"a type of SELinux of all": {"", func(p *corev1.Pod) { p.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} }, "SELinux"},
		"no AppArmor": {"", func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
		}, "restricted"},
		"no AppArmor for all": {"", func(p *corev1.Pod) {
			p.Spec.SecurityContext.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
		}, "AppArmor"},
		"no AppArmor by annotation": {"", func(p *corev1.Pod) {
			p.Annotations["container.apparmor.security.beta.kubernetes.io/"+p.Spec.Containers[0].Name] = "unconfined"
		}, "AppArmor"},
		"a capability": {"", func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
		}, "restricted"},
		"an init container":              {v1alpha1.UnpackModeImageCopy, func(p *corev1.Pod) { p.Spec.InitContainers[0].SecurityContext.ReadOnlyRootFilesystem = nil }, "restricted"},
		"another program":                {"", func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/bin/sh"} }, "own program"},
		"no program":                     {"", func(p *corev1.Pod) { p.Spec.Containers[0].Command = nil }, "own program"},
		"another image":                  {"", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.invalid/rukpak-apiserver:latest" }, "own program"},
		"an image of a host named alike": {"", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "rukpak-apiserver:5000/x:latest" }, "own program"},
		"an image named alike":           {"", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "rukpak-apiserver-x:latest" }, "own program"},
		"another container": {"", func(p *corev1.Pod) {
			c := p.Spec.Containers[0].DeepCopy()
			c.Name, c.Image = "x", "x"
			p.Spec.Containers = append(p.Spec.Containers, *c)
		}, "own program"},
		"a lifecycle hook": {"", func(p *corev1.Pod) {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}}
		}, "nothing but that program"},
		"no end":      {"", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = nil }, "has to end"},
		"always anew": {"", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }, "has to end"},
		"the image's own program": {v1alpha1.UnpackModeImageCopy, func(p *corev1.Pod) {
			foreign(p).VolumeMounts = foreign(p).VolumeMounts[1:]
		}, "own program"},
		"a program that it may write": {v1alpha1.UnpackModeImageCopy, func(p *corev1.Pod) { foreign(p).VolumeMounts[0].ReadOnly = false }, "own program"},
		"a program of another's image": {v1alpha1.UnpackModeImageCopy, func(p *corev1.Pod) {
			for i := range p.Spec.Volumes {
				if p.Spec.Volumes[i].Name == foreign(p).VolumeMounts[0].Name {
					p.Spec.Volumes[i].VolumeSource = corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: taggedReference}}
				}
			}
			p.Spec.InitContainers = nil
		}, "own program"},
		"a program over the program": {"", func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts[0].MountPath = "/rukpak-unpack"
		}, "own program"},
		"another image at the side of the program": {v1alpha1.UnpackModeImageCopy, func(p *corev1.Pod) {
			mountForeign(p, "/link-to-the-program", "")
		}, "own program"},
		"a part of a volume": {"", func(p *corev1.Pod) { mountForeign(p, "/x", "sh") }, "whole volume"},
		"the priority of the cluster": {"", func(p *corev1.Pod) {
			p.Spec.PriorityClassName = "system-node-critical"
		}, "the cluster itself"},
	} {
		t.Run(name, func(t *testing.T) {
			mode := test.mode
			if mode == "" {
				mode = v1alpha1.UnpackModeImageVolume
			}
			p := unpackPod(namespace, mode, imageReference)
			test.change(p)
			isRefused(t, pods, p, test.says)
		})
	}
	// Nobody else is meant.
	other := unpackPod(namespace, v1alpha1.UnpackModeImageVolume, imageReference)
	other.Spec.Containers[0].Command = []string{"/bin/sh"}
	if _, err := shared.Kube.CoreV1().Pods(namespace).Create(t.Context(), other, dryRun); err != nil {
		t.Errorf("an administrator is refused: %v", err)
	}
}

// isRefused asks for a pod that the policy does not let through.
func isRefused(t *testing.T, pods typedcorev1.PodInterface, p *corev1.Pod, says string) {
	t.Helper()
	_, err := pods.Create(t.Context(), p, dryRun)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "rukpak-apiserver-creates-pods") || !strings.Contains(err.Error(), says) {
		t.Errorf("the answer is %v, want a refusal that says %q", err, says)
	}
}

// mountForeign mounts an image of somebody else, or what is at a path in it.
func mountForeign(p *corev1.Pod, path, subPath string) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "foreign", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: taggedReference}}})
	c := &p.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "foreign", MountPath: path, SubPath: subPath, ReadOnly: true})
}

// TestServerMountsNothingOverItsProgram asks for mounts at paths that lead to the program, however they are spelled.
func TestServerMountsNothingOverItsProgram(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	pods := asServer(t).CoreV1().Pods(namespace)
	// A policy is in force a moment after it was made.
	eventually(t, "policy is in force", func() string {
		p := unpackPod(namespace, v1alpha1.UnpackModeImageVolume, imageReference)
		mountForeign(p, "/rukpak-unpack", "")
		if _, err := pods.Create(t.Context(), p, dryRun); err == nil {
			return "a mount over the program is let through"
		}
		return ""
	})
	for mode, paths := range map[v1alpha1.UnpackMode][]string{
		v1alpha1.UnpackModeImageVolume: {
			"/rukpak-unpack", "rukpak-unpack", "//rukpak-unpack", "/./rukpak-unpack", "/tmp/../rukpak-unpack", "/rukpak-unpack/", "/rukpak-unpack/.", "/", "//", "/.", "/..", "/tmp/..",
		},
		// Below, at and above the folder of the program, FOLDER.
		v1alpha1.UnpackModeImageCopy: {
			"FOLDER/", "FOLDER/.", "FOLDER//", "/FOLDER", "/./FOLDER", "FOLDER/x/..", "FOLDER/unpack", "FOLDER//unpack", "FOLDER/./unpack", "FOLDER/./rukpak-unpack", "/", "//", "/.", "/x/..",
		},
	} {
		for _, path := range paths {
			t.Run(string(mode)+" "+path, func(t *testing.T) {
				p := unpackPod(namespace, mode, taggedReference)
				if mode == v1alpha1.UnpackModeImageVolume {
					p = unpackPod(namespace, mode, imageReference)
				}
				folder := filepath.Dir(p.Spec.Containers[0].Command[0])
				for _, subPath := range []string{"", "sh"} {
					changed := p.DeepCopy()
					mountForeign(changed, strings.ReplaceAll(path, "FOLDER", folder), subPath)
					isRefused(t, pods, changed, "creates-pods")
				}
			})
		}
	}
}

func TestServerDeletesNoOtherPods(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	create := func(change func(*corev1.Pod)) *corev1.Pod {
		p := unpackPod(namespace, v1alpha1.UnpackModeImageVolume, imageReference)
		change(p)
		return must(shared.Kube.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{}))(t)
	}
	others := map[string]*corev1.Pod{
		// Without an owner, since the Bundle is not there: another test runs a garbage collector.
		"without the label": create(func(p *corev1.Pod) { p.Labels, p.OwnerReferences = nil, nil }),
		"without a proof":   create(func(p *corev1.Pod) { p.Annotations, p.OwnerReferences = nil, nil }),
	}
	pods := asServer(t).CoreV1().Pods(namespace)
	for name, p := range others {
		eventually(t, "a pod "+name+" is not deleted", func() string {
			err := pods.Delete(t.Context(), p.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "unpack pods alone") {
				return fmt.Sprint("the answer is ", err)
			}
			return ""
		})
	}
	ours := create(func(*corev1.Pod) {})
	if err := pods.Delete(t.Context(), ours.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// TestServerWritesNothingElse tries what the rights to create, and to count quota, would allow by themselves.
func TestServerWritesNothingElse(t *testing.T) {
	t.Parallel()
	client := asServer(t)
	own := client.CoreV1().Secrets(harness.SystemNamespace)
	forAccount := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: corev1.SecretTypeServiceAccountToken,
	}
	namespace := newNamespace(t)
	quotas := shared.Kube.CoreV1().ResourceQuotas(namespace)
	must(quotas.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2"), "count/bundles.rukpak.io": resource.MustParse("9")}},
	}, metav1.CreateOptions{}))(t)
	eventually(t, "quota is counted", func() string {
		if q := must(quotas.Get(t.Context(), "q", metav1.GetOptions{}))(t); len(q.Status.Used) != 2 {
			return encode(t, q.Status)
		}
		return ""
	})
	count := func(change func(*corev1.ResourceQuotaStatus)) error {
		q := must(quotas.Get(t.Context(), "q", metav1.GetOptions{}))(t)
		change(&q.Status)
		_, err := client.CoreV1().ResourceQuotas(namespace).UpdateStatus(t.Context(), q, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for name, try := range map[string]func() error{
		"a token of another service account": func() error {
			_, err := own.Create(t.Context(), forAccount, dryRun)
			return err
		},
		"another ConfigMap": func() error {
			_, err := client.CoreV1().ConfigMaps(harness.SystemNamespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, dryRun)
			return err
		},
		"quota of pods": func() error {
			return count(func(s *corev1.ResourceQuotaStatus) { s.Used[corev1.ResourcePods] = resource.MustParse("7") })
		},
		"a greater quota": func() error {
			return count(func(s *corev1.ResourceQuotaStatus) { s.Hard[corev1.ResourcePods] = resource.MustParse("9") })
		},
		"a count that is gone": func() error {
			return count(func(s *corev1.ResourceQuotaStatus) { delete(s.Used, corev1.ResourcePods) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := try(); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'rukpak-apiserver-") {
				t.Errorf("the answer is %v", err)
			}
		})
	}
	if err := count(func(s *corev1.ResourceQuotaStatus) { s.Used["count/bundles.rukpak.io"] = resource.MustParse("3") }); err != nil {
		t.Errorf("bundles cannot be counted: %v", err)
	}
}
