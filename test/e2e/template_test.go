// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"fmt"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/source/registrytest"
)

// TestPodTemplate uses everything that a class may choose about pods, in a way that the node, the
// scheduler or the registry has to do something about.
func TestPodTemplate(t *testing.T) {
	t.Parallel()
	s := begin(t)
	priority := s.clusterObjects()
	r := s.privateRegistry(registrytest.Options{})
	s.trust(r.Host, r.Authority)
	r.Allow("class", "right")
	s.pullSecret("of-class", r.Config("class", "right"))
	private := func(h *tar.Header) { h.Uid, h.Gid, h.Mode = 4321, 4321, 0o400 }
	image := s.layered(v1.Config{}, s.layer(zipped, s.tarOf(dir("content"), file("content/private", "p", private))))
	digest := r.Push(t, "app:v1", image)
	template := &v1alpha1.UnpackPodTemplate{
		Labels:            map[string]string{"team": "e2e", "app.kubernetes.io/managed-by": "somebody-else"},
		Annotations:       map[string]string{"example.com/note": "kept"},
		ImagePullSecrets:  []v1alpha1.LocalObjectReference{{Name: "of-class"}},
		NodeSelector:      map[string]string{corev1.LabelHostname: s.nodeName()},
		Tolerations:       []v1alpha1.Toleration{{Key: "example.com/dedicated", Operator: corev1.TolerationOpEqual, Value: "bundles", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](30)}},
		PriorityClassName: s.ns,
		RuntimeClassName:  ptr.To(s.ns),
		Resources: &v1alpha1.ResourceRequirements{
			Requests: map[corev1.ResourceName]resource.Quantity{corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("24Mi")},
			Limits:   map[corev1.ResourceName]resource.Quantity{corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
		RunAsUser: ptr.To[int64](4321),
	}
	pods := s.recordPods()
	for _, mode := range []v1alpha1.UnpackMode{v1alpha1.UnpackModeImageVolume, v1alpha1.UnpackModeImageCopy} {
		name := map[v1alpha1.UnpackMode]string{v1alpha1.UnpackModeImageVolume: "volume", v1alpha1.UnpackModeImageCopy: "copy"}[mode]
		class := s.class(name, v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
			c.Unpack = &v1alpha1.UnpackPolicy{Mode: mode, PodTemplate: template}
		})
		s.bundle(name, class, digest, func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/content" })
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			b := s.unpacked(name)
			s.holds(b, files{"private": "p"})
			s.eventually("the pod has run", func() error {
				for _, p := range pods.all() {
					if p.UID == b.Status.Unpack.PodUID && p.Spec.NodeName != "" {
						checkTemplate(t, p, template, priority)
						return nil
					}
				}
				return fmt.Errorf("it was not seen")
			})
		})
	}
}

// clusterObjects makes a priority class and a runtime class of the test's name, and returns the priority.
func (s *scope) clusterObjects() int32 {
	s.Helper()
	priority := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Value: 1234}
	_, err := s.kube.SchedulingV1().PriorityClasses().Create(s.ctx, priority, metav1.CreateOptions{})
	s.must(err)
	runtime := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Handler: "runc", Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}}}
	_, err = s.kube.NodeV1().RuntimeClasses().Create(s.ctx, runtime, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		s, cancel := s.afterwards()
		defer cancel()
		s.must(s.kube.SchedulingV1().PriorityClasses().Delete(s.ctx, s.ns, metav1.DeleteOptions{}))
		s.must(s.kube.NodeV1().RuntimeClasses().Delete(s.ctx, s.ns, metav1.DeleteOptions{}))
	})
	return priority.Value
}

func (s *scope) nodeName() string {
	s.Helper()
	nodes, err := s.kube.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	s.must(err)
	return nodes.Items[0].Labels[corev1.LabelHostname]
}

func checkTemplate(t *testing.T, p *corev1.Pod, want *v1alpha1.UnpackPodTemplate, priority int32) {
	t.Helper()
	if p.Labels["team"] != "e2e" || p.Labels["app.kubernetes.io/managed-by"] == "somebody-else" || p.Annotations["example.com/note"] != "kept" {
		t.Errorf("labels %v, annotations %v", p.Labels, p.Annotations)
	}
	if p.Spec.Priority == nil || *p.Spec.Priority != priority {
		t.Errorf("the priority is %v", ptr.Deref(p.Spec.Priority, 0))
	}
	// What the runtime class adds says that admission has followed it.
	if memory := p.Spec.Overhead[corev1.ResourceMemory]; p.Spec.RuntimeClassName == nil || *p.Spec.RuntimeClassName != *want.RuntimeClassName || memory.String() != "1Mi" {
		t.Errorf("the runtime class is %v, the overhead %v", p.Spec.RuntimeClassName, p.Spec.Overhead)
	}
	tolerated := false
	for _, toleration := range p.Spec.Tolerations {
		tolerated = tolerated || toleration.Key == "example.com/dedicated" && toleration.Value == "bundles" && *toleration.TolerationSeconds == 30
	}
	if !tolerated {
		t.Errorf("the tolerations are %+v", p.Spec.Tolerations)
	}
	for _, c := range p.Spec.Containers {
		wanted := corev1.ResourceRequirements{Requests: want.Resources.Requests, Limits: want.Resources.Limits}
		if !equality.Semantic.DeepEqual(c.Resources, wanted) {
			t.Errorf("container %s has the resources %+v", c.Name, c.Resources)
		}
	}
}

// TestHostileImage unpacks an image whose configuration does all that one can to be heeded: by its
// entrypoint, its user, its folder, its volumes and its environment.
func TestHostileImage(t *testing.T) {
	t.Parallel()
	s := begin(t)
	program, address, runs := s.tracer()
	tree := files{"bin/tracer": string(program), "content/sub/file": s.ns, "content/file": "f", "rukpak-unpack": string(program), "etc/ld.so.preload": "/bin/tracer\n", "etc/ssl/certs/ca.crt": "none"}
	config := v1.Config{
		Entrypoint: []string{"/bin/tracer"}, Cmd: []string{address}, User: "root", WorkingDir: "/nowhere/to/be", StopSignal: "SIGKILL", Shell: []string{"/bin/tracer"},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/bin/tracer", address}},
		Volumes:     map[string]struct{}{"/content": {}, "/content/sub": {}, "/token": {}, "/rukpak": {}},
		Env: []string{
			"PATH=/bin", "LD_PRELOAD=/bin/tracer", "GODEBUG=nonsense=1,http2client=0", "GOMEMLIMIT=1B", "GOGC=1", "GOMAXPROCS=1000", "GOTRACEBACK=crash", "GOCOVERDIR=/content",
			"HTTPS_PROXY=http://127.0.0.1:1", "https_proxy=http://127.0.0.1:1", "ALL_PROXY=http://127.0.0.1:1", "SSL_CERT_FILE=/etc/ssl/certs/ca.crt", "SSL_CERT_DIR=/etc/ssl",
			"RUKPAK_URL=https://127.0.0.1:1", "RUKPAK_CA=none", "RUKPAK_TOKEN_FILE=/etc/passwd", "RUKPAK_ROOT=/etc", "RUKPAK_PATH=/etc", "RUKPAK_LIMIT_FILES=0", "RUKPAK_TIMEOUT=1ns",
			"HOME=/nowhere", "TMPDIR=/nowhere", "KUBERNETES_SERVICE_HOST=127.0.0.1", "RES_OPTIONS=attempts:0", "LOCALDOMAIN=nowhere", "TZ=:/bin/tracer",
		},
	}
	digest, tagged := s.pushImage(nodeRegistry, "v1", s.image(tree.archive(), config))
	for _, mode := range []v1alpha1.UnpackMode{v1alpha1.UnpackModeImageVolume, v1alpha1.UnpackModeImageCopy} {
		short := map[v1alpha1.UnpackMode]string{v1alpha1.UnpackModeImageVolume: "volume", v1alpha1.UnpackModeImageCopy: "copy"}[mode]
		class := s.class(short, v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) { c.Unpack = &v1alpha1.UnpackPolicy{Mode: mode} })
		for by, reference := range map[string]string{"digest": digest, "tag": tagged} {
			name := short + "-" + by
			s.bundle(name, class, reference, func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/content" })
			t.Run(name, func(t *testing.T) {
				s := s.in(t)
				s.holds(s.unpacked(name), tree.below("content"))
			})
		}
	}
	if n := runs(); n > 0 {
		t.Errorf("the image's own program was run %d times", n)
	}
}

// TestClusterChoosesTheUser plays a cluster that gives each namespace a user of its own and refuses every
// other, as OpenShift does.
func TestClusterChoosesTheUser(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.givesUsers(1000680000)
	tree := small(s.ns)
	digest, tagged := s.push("v1", tree)
	fixed := s.impatient("fixed", nil)
	free := s.class("free", v1alpha1.ProvisionerPlain, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{PodTemplate: &v1alpha1.UnpackPodTemplate{UserFrom: v1alpha1.UserFromCluster}}
	})
	pods := s.recordPods()
	for name, reference := range map[string]string{"by-digest": digest, "by-tag": tagged} {
		s.bundle(name, free, reference)
	}
	s.bundle("fixed", fixed, digest)
	for _, name := range []string{"by-digest", "by-tag"} {
		s.holds(s.unpacked(name), tree)
	}
	for _, p := range pods.all() {
		if user := p.Spec.SecurityContext.RunAsUser; user == nil || *user != 1000680000 {
			t.Errorf("pod %s runs as %v", p.Name, user)
		}
	}
	s.says("fixed", metav1.ConditionFalse, "PodRefused", "not a user of this namespace")
}

// givesUsers has admission give the pods of the namespace a user ID, and refuse those that ask for another.
func (s *scope) givesUsers(user int64) {
	s.Helper()
	match := &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.ns}},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}},
	}
	mutating := s.kube.AdmissionregistrationV1().MutatingAdmissionPolicies()
	_, err := mutating.Create(s.ctx, &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: s.ns},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			MatchConstraints: match, ReinvocationPolicy: admissionv1.NeverReinvocationPolicy, FailurePolicy: ptr.To(admissionv1.Fail),
			MatchConditions: []admissionv1.MatchCondition{{Name: "names-none", Expression: "!has(object.spec.securityContext.runAsUser)"}},
			Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionv1.ApplyConfiguration{
				Expression: fmt.Sprintf("Object{spec: Object.spec{securityContext: Object.spec.securityContext{runAsUser: %d, fsGroup: %d}}}", user, user),
			}}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	validating := s.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	_, err = validating.Create(s.ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: s.ns},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: match, FailurePolicy: ptr.To(admissionv1.Fail),
			Validations: []admissionv1.Validation{{
				Expression: fmt.Sprintf("has(object.spec.securityContext.runAsUser) && object.spec.securityContext.runAsUser == %d", user), Message: "not a user of this namespace",
			}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	bindings, deny := s.kube.AdmissionregistrationV1().MutatingAdmissionPolicyBindings(), s.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	_, err = bindings.Create(s.ctx, &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: s.ns}}, metav1.CreateOptions{})
	s.must(err)
	_, err = deny.Create(s.ctx, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: s.ns, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		s, cancel := s.afterwards()
		defer cancel()
		s.must(bindings.Delete(s.ctx, s.ns, metav1.DeleteOptions{}))
		s.must(deny.Delete(s.ctx, s.ns, metav1.DeleteOptions{}))
		s.must(mutating.Delete(s.ctx, s.ns, metav1.DeleteOptions{}))
		s.must(validating.Delete(s.ctx, s.ns, metav1.DeleteOptions{}))
	})
	s.eventually("admission gives users", func() error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none", SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}}}, SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}}}
		given, err := s.kube.CoreV1().Pods(s.ns).Create(s.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && given.Spec.SecurityContext.RunAsUser == nil {
			return fmt.Errorf("a pod got none")
		}
		pod.Spec.SecurityContext.RunAsUser = ptr.To[int64](1)
		if _, other := s.kube.CoreV1().Pods(s.ns).Create(s.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil && other == nil {
			return fmt.Errorf("a pod kept another")
		}
		return err
	})
}
