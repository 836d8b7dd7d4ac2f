// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// defaultUser reads the files unless the class names another user.
const defaultUser = 65532

// What a container needs, and may take, unless the class says otherwise.
var (
	defaultCPU               = resource.MustParse("50m")
	defaultMemory            = resource.MustParse("32Mi")
	defaultMemoryLimit       = resource.MustParse("100Mi")
	heapPercent        int64 = 80
)

// Timeout is how long an attempt of a class may take.
func Timeout(class *v1alpha1.ProvisionerClass) time.Duration {
	seconds := int32(v1alpha1.DefaultTimeoutSeconds)
	if class.Unpack != nil && class.Unpack.TimeoutSeconds != nil {
		seconds = *class.Unpack.TimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}

// Limits returns the limits of a class as the archive's.
func Limits(class *v1alpha1.ProvisionerClass) tarball.Limits {
	limits := tarball.Limits{
		CompressedBytes: v1alpha1.DefaultCompressedBytes.Value(),
		Bytes:           v1alpha1.DefaultBytes.Value(),
		Files:           v1alpha1.DefaultFiles,
	}
	if l := class.Limits; l != nil {
		if l.CompressedBytes != nil {
			limits.CompressedBytes = l.CompressedBytes.Value()
		}
		if l.Bytes != nil {
			limits.Bytes = l.Bytes.Value()
		}
		if l.Files != nil {
			limits.Files = *l.Files
		}
	}
	return limits
}

func (b *builder) podSecurity() *corev1.PodSecurityContext {
	security := &corev1.PodSecurityContext{
		RunAsNonRoot:   ptr.To(true),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if b.template.UserFrom == v1alpha1.UserFromCluster {
		return security
	}
	user := ptr.Deref(b.template.RunAsUser, defaultUser)
	security.RunAsUser, security.RunAsGroup = ptr.To(user), ptr.To(user)
	return security
}

func containerSecurity() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false),
		ReadOnlyRootFilesystem:   ptr.To(true),
		RunAsNonRoot:             ptr.To(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// resources are the class's; the defaults fill in what it does not name.
func (b *builder) resources() corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	if t := b.template.Resources; t != nil {
		maps.Copy(r.Requests, corev1.ResourceList(t.Requests))
		maps.Copy(r.Limits, corev1.ResourceList(t.Limits))
	}
	if _, ok := r.Limits[corev1.ResourceMemory]; !ok {
		limit := defaultMemoryLimit.DeepCopy()
		if request, ok := r.Requests[corev1.ResourceMemory]; ok && request.Cmp(limit) > 0 {
			limit = request.DeepCopy()
		}
		r.Limits[corev1.ResourceMemory] = limit
	}
	fill := func(name corev1.ResourceName, request resource.Quantity) {
		if _, ok := r.Requests[name]; ok {
			return
		}
		if limit, ok := r.Limits[name]; ok && limit.Cmp(request) < 0 {
			request = limit
		}
		r.Requests[name] = request.DeepCopy()
	}
	fill(corev1.ResourceCPU, defaultCPU)
	fill(corev1.ResourceMemory, defaultMemory)
	return r
}

// tokenVolume projects a token that is good for this server alone.
func (b *builder) tokenVolume() corev1.Volume {
	// 600 s is the least that Kubernetes issues. The kubelet renews it in time.
	seconds := min(max(int64(Timeout(b.Class).Seconds()), 600), 3600)
	return corev1.Volume{Name: volumeToken, VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
			ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: v1alpha1.TokenAudience, ExpirationSeconds: &seconds, Path: "token",
			},
		}}},
	}}
}

// environment configures the program.
func (b *builder) environment(root, tokenFile string) []corev1.EnvVar {
	return slices.Concat(
		[]corev1.EnvVar{literal(contract.EnvURL, b.contentURL(b.Bundle))},
		b.server(tokenFile),
		[]corev1.EnvVar{literal(contract.EnvRoot, root), literal(contract.EnvPath, b.Bundle.Spec.Source.Image.Path)},
		b.bounds(),
	)
}

// contentURL is where the content of a bundle goes.
func (b *builder) contentURL(bundle *v1alpha1.Bundle) string {
	return fmt.Sprintf("%s/apis/%s/namespaces/%s/bundles/%s/content",
		strings.TrimSuffix(b.Endpoint.URL, "/"), v1alpha1.SchemeGroupVersion, bundle.Namespace, bundle.Name)
}

// server is how the program knows the server, and shows itself.
func (b *builder) server(tokenFile string) []corev1.EnvVar {
	return []corev1.EnvVar{
		literal(contract.EnvServerName, b.Endpoint.ServerName),
		literal(contract.EnvCA, string(b.Endpoint.CA)),
		literal(contract.EnvTokenFile, tokenFile),
	}
}

// bounds are what content may be, and how long it may take.
func (b *builder) bounds() []corev1.EnvVar {
	limits := Limits(b.Class)
	return []corev1.EnvVar{
		literal(contract.EnvCompressedBytes, strconv.FormatInt(limits.CompressedBytes, 10)),
		literal(contract.EnvBytes, strconv.FormatInt(limits.Bytes, 10)),
		literal(contract.EnvFiles, strconv.FormatInt(limits.Files, 10)),
		literal(contract.EnvTraceParent, b.TraceParent),
		literal(contract.EnvTimeout, Timeout(b.Class).String()),
	}
}

// literal makes a variable whose value is taken as it is: the kubelet expands
// $(NAME) and reads $$ as one $.
func literal(name, value string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, Value: strings.ReplaceAll(value, "$", "$$")}
}

// fixedEnvironment overrides what an image may set and the Go runtime or its
// libraries read, before main or behind the program's back.
func fixedEnvironment(resources corev1.ResourceRequirements) []corev1.EnvVar {
	memory := resources.Limits[corev1.ResourceMemory]
	env := []corev1.EnvVar{
		literal("GODEBUG", ""),
		literal("GOGC", "100"),
		literal("GOMEMLIMIT", strconv.FormatInt(memory.Value()*heapPercent/100, 10)+"B"),
		// More threads would make the program's memory depend on the node.
		literal("GOMAXPROCS", "4"),
		literal("GOTRACEBACK", "single"),
		literal("GOCOVERDIR", ""),
		literal("SSL_CERT_FILE", ""),
		literal("SSL_CERT_DIR", ""),
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"} {
		env = append(env, literal(name, ""), literal(strings.ToLower(name), ""))
	}
	return env
}

// noInjectionLabels keep sidecars out: they would hold the pod alive, get between
// the program and the server, and are of no use to it.
func noInjectionLabels() map[string]string {
	return map[string]string{
		"sidecar.istio.io/inject":   "false",
		"kuma.io/sidecar-injection": "disabled",
	}
}

func noInjectionAnnotations() map[string]string {
	return map[string]string{
		"sidecar.istio.io/inject":              "false",
		"linkerd.io/inject":                    "disabled",
		"kuma.io/sidecar-injection":            "disabled",
		"consul.hashicorp.com/connect-inject":  "false",
		"openservicemesh.io/sidecar-injection": "disabled",
	}
}

// pullSecrets joins the lists and names each secret once, those of the account last.
func pullSecrets(account []corev1.LocalObjectReference, lists ...[]v1alpha1.LocalObjectReference) []corev1.LocalObjectReference {
	var out []corev1.LocalObjectReference
	for _, list := range lists {
		for _, secret := range list {
			if ref := (corev1.LocalObjectReference{Name: secret.Name}); !slices.Contains(out, ref) {
				out = append(out, ref)
			}
		}
	}
	for _, ref := range account {
		if !slices.Contains(out, ref) {
			out = append(out, ref)
		}
	}
	return out
}

func tolerations(in []v1alpha1.Toleration) []corev1.Toleration {
	var out []corev1.Toleration
	for _, t := range in {
		out = append(out, corev1.Toleration{
			Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect, TolerationSeconds: t.TolerationSeconds,
		})
	}
	return out
}
