// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	testDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	byDigestIn = "registry.example/app@" + testDigest
	byTag      = "registry.example/app:v1"
)

func testParams(mode v1alpha1.UnpackMode, reference, path string) Params {
	b := &v1alpha1.Bundle{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "app", UID: "bundle-uid", Generation: 3},
		Spec: v1alpha1.BundleSpec{
			ProvisionerClassName: "plain",
			Source:               v1alpha1.BundleSource{Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ImageSource{Reference: reference, Path: path}},
		},
	}
	v1alpha1.SetDefaults_Bundle(b)
	nonce := "abcdefghijklmnop"
	b.Status.Unpack = &v1alpha1.UnpackStatus{Generation: 3, Attempt: 2, Nonce: nonce, Mode: mode, PodName: Name(b.Name, nonce)}
	class := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Provisioner: v1alpha1.ProvisionerPlain}
	v1alpha1.SetDefaults_ProvisionerClass(class)
	return Params{
		Bundle: b, Class: class, Reference: reference, Image: "registry.example/rukpak-apiserver@" + testDigest,
		Endpoint: Endpoint{URL: "https://10.96.0.7:443", ServerName: "rukpak-apiserver.rukpak-system.svc", CA: []byte("-----BEGIN CERTIFICATE-----\n")},
		Key:      []byte("0123456789abcdef0123456789abcdef"),
	}
}

// tuned uses everything that a class and a bundle may choose.
func tuned(p Params) Params {
	p.Bundle.Spec.ServiceAccountName = "puller"
	p.Bundle.Spec.ImagePullSecrets = []v1alpha1.LocalObjectReference{{Name: "regcred"}, {Name: "shared"}}
	p.Bundle.Spec.Source.Image.Path = "/manifests/$(GODEBUG)"
	p.Bundle.Status.Unpack.Platform = "linux/arm64"
	p.Class.Unpack.TimeoutSeconds = ptr.To[int32](7200)
	p.Class.Unpack.PodTemplate = &v1alpha1.UnpackPodTemplate{
		Labels:            map[string]string{"team": "a", LabelManagedBy: "somebody-else"},
		Annotations:       map[string]string{"note": "n", "linkerd.io/inject": "enabled"},
		ImagePullSecrets:  []v1alpha1.LocalObjectReference{{Name: "shared"}},
		NodeSelector:      map[string]string{"disk": "ssd", corev1.LabelOSStable: "windows"},
		Tolerations:       []v1alpha1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
		PriorityClassName: "low",
		RuntimeClassName:  ptr.To("gvisor"),
		Resources: &v1alpha1.ResourceRequirements{
			Limits: map[corev1.ResourceName]resource.Quantity{corev1.ResourceMemory: resource.MustParse("200Mi"), corev1.ResourceCPU: resource.MustParse("20m")},
		},
		RunAsUser: ptr.To[int64](1000),
	}
	return p
}

func TestBuildGolden(t *testing.T) {
	for name, p := range map[string]Params{
		"imagevolume-digest": testParams(v1alpha1.UnpackModeImageVolume, byDigestIn, "/"),
		"imagevolume-tag":    testParams(v1alpha1.UnpackModeImageVolume, byTag, "/manifests"),
		"imagecopy-tag":      testParams(v1alpha1.UnpackModeImageCopy, byTag, "/manifests"),
		"imagevolume-tuned":  tuned(testParams(v1alpha1.UnpackModeImageVolume, byTag, "/")),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := yaml.Marshal(Build(p))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				header := "# Copyright The rukpak-apiserver Authors.\n# SPDX-License-Identifier: Apache-2.0\n\n"
				if err := os.WriteFile(file, append([]byte(header), got...), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if _, body, _ := strings.Cut(string(want), "\n\n"); body != string(got) {
				t.Errorf("%s differs from what Build makes (go test -update writes it anew):\n%s", file, got)
			}
		})
	}
}

// TestNothingOfTheBundlesImageRuns holds for a digest in mode ImageVolume, and for
// everything but the server's own program elsewhere.
func TestNothingOfTheBundlesImageRuns(t *testing.T) {
	for name, p := range map[string]Params{
		"digest":     testParams(v1alpha1.UnpackModeImageVolume, byDigestIn, "/"),
		"tag":        testParams(v1alpha1.UnpackModeImageVolume, byTag, "/"),
		"image copy": testParams(v1alpha1.UnpackModeImageCopy, byDigestIn, "/manifests"),
	} {
		t.Run(name, func(t *testing.T) {
			pod := Build(p)
			for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
				if len(c.Command) == 0 {
					t.Errorf("container %s leaves the command to its image", c.Name)
				}
				if c.Image == p.Image {
					continue
				}
				if name == "digest" {
					t.Errorf("container %s runs in the bundle's image", c.Name)
				}
				mounted := ""
				for _, m := range c.VolumeMounts {
					if m.Name == volumeProgram && m.ReadOnly {
						mounted = m.MountPath
					}
				}
				if mounted == "" || !strings.HasPrefix(c.Command[0], mounted+"/") {
					t.Errorf("container %s runs %s, which is not on the read-only mount of the server's program (%q)", c.Name, c.Command[0], mounted)
				}
			}
		})
	}
}

// TestRestricted checks what the restricted Pod Security Standard asks for.
func TestRestricted(t *testing.T) {
	for _, p := range []Params{
		testParams(v1alpha1.UnpackModeImageVolume, byTag, "/"),
		tuned(testParams(v1alpha1.UnpackModeImageCopy, byTag, "/manifests")),
	} {
		pod := Build(p)
		for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			s := c.SecurityContext
			if *s.AllowPrivilegeEscalation || !*s.RunAsNonRoot || !*s.ReadOnlyRootFilesystem ||
				s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
				len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" || len(s.Capabilities.Add) != 0 {
				t.Errorf("container %s: %+v", c.Name, s)
			}
		}
		if *pod.Spec.SecurityContext.RunAsUser == 0 || *pod.Spec.AutomountServiceAccountToken {
			t.Errorf("pod runs as root or has a token")
		}
		for _, v := range pod.Spec.Volumes {
			if v.Image == nil && v.Projected == nil && v.EmptyDir == nil {
				t.Errorf("volume %s is of a kind that restricted refuses", v.Name)
			}
		}
	}
}

// TestUserFromCluster names no user, so that admission may.
func TestUserFromCluster(t *testing.T) {
	p := testParams(v1alpha1.UnpackModeImageVolume, byTag, "/")
	p.Class.Unpack.PodTemplate = &v1alpha1.UnpackPodTemplate{UserFrom: v1alpha1.UserFromCluster}
	pod := Build(p)
	if s := pod.Spec.SecurityContext; s.RunAsUser != nil || s.RunAsGroup != nil || !*s.RunAsNonRoot {
		t.Errorf("the pod has %+v", s)
	}
	for _, c := range pod.Spec.Containers {
		if c.SecurityContext.RunAsUser != nil {
			t.Errorf("container %s names a user", c.Name)
		}
	}
	p.Class.Unpack.PodTemplate.UserFrom = v1alpha1.UserFromClass
	if user := Build(p).Spec.SecurityContext.RunAsUser; user == nil || *user != defaultUser {
		t.Errorf("the class names the user %v", user)
	}
}

func TestCopyPath(t *testing.T) {
	for path, ok := range map[string]bool{
		"/": false, "": false, "/etc": false, "/etc/": false, "/etc/app": true, "/proc/self": false, "/sys": false,
		"/dev/shm": false, "/device": true, "/manifests": true, "/var/run": false, "/var/lib/app": true, "/manifests/../etc": false,
	} {
		if err := CopyPath(path); (err == nil) != ok {
			t.Errorf("CopyPath(%q) = %v", path, err)
		}
	}
}
