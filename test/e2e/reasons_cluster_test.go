// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// clusterCauses are those that keep a pod from being made, or from getting a node.
func clusterCauses() []cause {
	return []cause{
		{name: "unschedulable", reason: v1alpha1.ReasonUnschedulable, words: []string{"no node takes the pod", "node affinity/selector"}, arrange: unschedulable},
		{name: "quota", reason: v1alpha1.ReasonQuotaExceeded, words: []string{"exceeded quota: none", "pods=0"}, arrange: quota},
		{name: "policy", reason: v1alpha1.ReasonPodRefused, words: []string{"ValidatingAdmissionPolicy", "no pods on Mondays"}, arrange: policy},
		{name: "limit range", reason: v1alpha1.ReasonPodRefused, words: []string{"maximum memory usage per Container is 10Mi"}, arrange: limitRange},
		{name: "pod security", reason: v1alpha1.ReasonPodSecurityViolated, words: []string{`violates PodSecurity "restricted:latest"`, "unconfined"}, arrange: podSecurity},
		{name: "service account missing", reason: v1alpha1.ReasonServiceAccountMissing, words: []string{`"later" not found`}, arrange: serviceAccount},
	}
}

func unschedulable(p *plight) func() {
	digest, _ := p.push("v1", p.tree)
	class, open := p.door("door")
	p.bundle("app", class, digest)
	return func() { open(true) }
}

func quota(p *plight) func() {
	digest, _ := p.push("v1", p.tree)
	quotas := p.kube.CoreV1().ResourceQuotas(p.ns)
	_, err := quotas.Create(p.ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}, metav1.CreateOptions{})
	p.must(err)
	p.eventually("the quota holds", func() error {
		q, err := quotas.Get(p.ctx, "none", metav1.GetOptions{})
		if err == nil && len(q.Status.Hard) == 0 {
			return fmt.Errorf("it has not been counted")
		}
		return err
	})
	p.bundle("app", p.patient(nil), digest)
	return func() { p.must(quotas.Delete(p.ctx, "none", metav1.DeleteOptions{})) }
}

// policy lets an admission policy refuse all pods of the namespace.
func policy(p *plight) func() {
	digest, _ := p.push("v1", p.tree)
	policies := p.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	bindings := p.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	_, err := policies.Create(p.ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: p.ns},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionv1.Fail),
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: "false", Message: "no pods on Mondays, whatever their spec.volumes are"}},
		},
	}, metav1.CreateOptions{})
	p.must(err)
	_, err = bindings.Create(p.ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: p.ns},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: p.ns, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: p.ns}}},
		},
	}, metav1.CreateOptions{})
	p.must(err)
	lift := func(p *scope) {
		p.must(ignoreNotFound(bindings.Delete(p.ctx, p.ns, metav1.DeleteOptions{})))
		p.must(ignoreNotFound(policies.Delete(p.ctx, p.ns, metav1.DeleteOptions{})))
	}
	p.Cleanup(func() {
		after, cancel := p.afterwards()
		defer cancel()
		lift(after)
	})
	p.eventually("the policy holds", func() error {
		_, err := p.kube.CoreV1().Pods(p.ns).Create(p.ctx, idlePod("probe"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("a pod is admitted")
		}
		if !strings.Contains(err.Error(), "no pods on Mondays") {
			return err
		}
		return nil
	})
	p.bundle("app", p.patient(nil), digest)
	return func() { lift(p.scope) }
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// idlePod is a pod that keeps the rules of the namespace and does nothing.
func idlePod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			DNSPolicy:                     corev1.DNSDefault,
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			AutomountServiceAccountToken:  ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "idle", Image: nodeRegistry + "/pause:1",
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

func limitRange(p *plight) func() {
	digest, _ := p.push("v1", p.tree)
	ranges := p.kube.CoreV1().LimitRanges(p.ns)
	_, err := ranges.Create(p.ctx, &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "little"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("10Mi")},
		}}},
	}, metav1.CreateOptions{})
	p.must(err)
	p.eventually("the limits hold", func() error {
		pod := idlePod("probe")
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("11Mi")}
		if _, err := p.kube.CoreV1().Pods(p.ns).Create(p.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a pod is answered: %w", err)
		}
		return nil
	})
	p.bundle("app", p.patient(nil), digest)
	return func() { p.must(ranges.Delete(p.ctx, "little", metav1.DeleteOptions{})) }
}

// podSecurity lets a class ask for what the namespace does not allow.
func podSecurity(p *plight) func() {
	digest, _ := p.push("v1", p.tree)
	class := p.patient(func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{PodTemplate: &v1alpha1.UnpackPodTemplate{
			Annotations: map[string]string{corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + pod.ContainerUnpack: "unconfined"},
		}}
	})
	p.bundle("app", class, digest)
	return func() { p.updateClass(class, func(c *v1alpha1.ProvisionerClass) { c.Unpack = nil }) }
}

func serviceAccount(p *plight) func() {
	digest, _ := p.push("v1", p.tree)
	p.bundle("app", p.patient(nil), digest, func(b *v1alpha1.Bundle) { b.Spec.ServiceAccountName = "later" })
	return func() {
		_, err := p.kube.CoreV1().ServiceAccounts(p.ns).Create(p.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{})
		p.must(err)
	}
}
