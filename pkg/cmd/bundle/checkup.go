// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// grants are what the commands need, by what it is for.
var grants = []struct {
	what     string
	resource string
	verbs    []string
	// few means that it is for some: who has it not is no worse off.
	few bool
}{
	{"see bundles", "bundles", []string{"get", "list", "watch"}, false},
	{"read content", "bundles/content", []string{"get"}, false},
	{"make and change bundles", "bundles", []string{"create", "patch", "delete"}, true},
	{"write content", "bundles/content", []string{"update"}, true},
	{"write content in parts", "bundles/uploads", []string{"create", "get", "patch", "delete"}, true},
}

// access asks what the user may do in the namespace.
func (d *examination) access(ctx context.Context) []finding {
	var findings []finding
	var lacking grant
	for _, g := range grants {
		resource, subresource, _ := strings.Cut(g.resource, "/")
		var missing []string
		for _, verb := range g.verbs {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: d.in, Group: v1alpha1.GroupName, Resource: resource, Subresource: subresource, Verb: verb,
				},
			}}
			answer, err := d.kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if apierrors.IsNotFound(err) && d.alone {
				return []finding{ok("a standalone server: whoever has its kubeconfig may do all")}
			}
			if err != nil {
				return append(findings, unknown("what you may do cannot be asked: %v", err))
			}
			if !answer.Status.Allowed {
				missing = append(missing, verb)
			}
		}
		switch text := fmt.Sprintf("%s %s", strings.Join(missing, ", "), g.resource); {
		case len(missing) == 0:
			findings = append(findings, ok("you may %s in namespace %s", g.what, d.in))
		case g.few:
			findings = append(findings, unknown("you may not %s in namespace %s: %s", g.what, d.in, text))
		default:
			lacking.add(g.what, g.resource, text, missing)
		}
	}
	if len(lacking.what) > 0 {
		findings = append(findings, lacking.finding(d.in, d.elsewho(d.in), d.me(ctx)))
	}
	return findings
}

// me is who asks, as the subject of a role binding.
func (d *examination) me(ctx context.Context) string {
	review, err := d.kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username == "" {
		return "NAME"
	}
	return review.Status.UserInfo.Username
}

// grant is what is lacking, for which one role will do.
type grant struct {
	what, texts, verbs, resources []string
}

func (g *grant) add(what, resource, text string, verbs []string) {
	g.what, g.texts = append(g.what, what), append(g.texts, text)
	g.resources = append(g.resources, "bundles."+v1alpha1.GroupName+strings.TrimPrefix(resource, "bundles"))
	for _, verb := range verbs {
		if !slices.Contains(g.verbs, verb) {
			g.verbs = append(g.verbs, verb)
		}
	}
}

func (g *grant) finding(namespace, where, user string) finding {
	return warning(fmt.Sprintf("have it granted: kubectl create role bundle-reader%[1]s --verb=%[2]s --resource=%[3]s"+
		" && kubectl create rolebinding bundle-reader%[1]s --role=bundle-reader --user=%[4]s",
		where, strings.Join(g.verbs, ","), strings.Join(g.resources, ","), quoted(user)),
		"you may not %s in namespace %s: %s", strings.Join(g.what, " nor "), namespace, strings.Join(g.texts, "; "))
}

// classes looks at the ProvisionerClasses.
func (d *examination) classes(ctx context.Context) []finding {
	list, err := d.rukpak.RukpakV1alpha1().ProvisionerClasses().List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		return []finding{unknown("the ProvisionerClasses: you may not look at them")}
	}
	if err != nil {
		return []finding{bad("see the server's log", "the ProvisionerClasses cannot be listed: %v", err)}
	}
	var all, defaults []string
	for _, c := range list.Items {
		all = append(all, c.Name)
		if c.Annotations[v1alpha1.AnnotationIsDefaultClass] == "true" {
			defaults = append(defaults, c.Name)
		}
	}
	switch {
	case len(all) == 0:
		return []finding{bad("make one, or let the server make plain and raw when it starts", "there is no ProvisionerClass: no bundle can be unpacked")}
	case len(defaults) == 0:
		return []finding{warning(`name a class in each bundle, or annotate one with rukpak.io/is-default-class: "true"`, "none of the classes %s is the default", names(all))}
	case len(defaults) > 1:
		return []finding{warning("take the annotation from all but one: the newest wins", "the default is ambiguous: %s", names(defaults))}
	}
	return []finding{ok("the classes %s; the default is %s", names(all), defaults[0])}
}

// pods looks at the server's own pods.
func (d *examination) pods(ctx context.Context) []finding {
	if d.alone {
		return nil
	}
	list, err := d.kube.CoreV1().Pods(d.system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=rukpak-apiserver"})
	if apierrors.IsForbidden(err) {
		return []finding{unknown("the server's pods in namespace %s: you may not look at them", d.system)}
	}
	if err != nil {
		return []finding{unknown("the server's pods in namespace %s cannot be listed: %v", d.system, err)}
	}
	if len(list.Items) == 0 {
		return []finding{unknown("there are no pods of the server in namespace %s: --system-namespace names another", d.system)}
	}
	var findings []finding
	for i := range list.Items {
		findings = append(findings, d.pod(&list.Items[i]))
	}
	return findings
}

// pod looks at one. While others serve, one that is not ready is no more than a warning.
func (d *examination) pod(p *corev1.Pod) finding {
	restarts := int32(0)
	why := ""
	for _, c := range p.Status.ContainerStatuses {
		restarts += c.RestartCount
		if c.State.Waiting != nil {
			why = ": " + c.State.Waiting.Reason + ": " + c.State.Waiting.Message
		}
	}
	ready := false
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			ready = true
		}
	}
	image := ""
	if len(p.Spec.Containers) > 0 {
		image = p.Spec.Containers[0].Image
	}
	if !ready {
		f := bad(fmt.Sprintf("kubectl describe pod %s%s, and kubectl logs of it", p.Name, d.where(p.Namespace)), "the server's pod %s is not ready%s", p.Name, why)
		if d.served {
			f.level = levelWarning
		}
		return f
	}
	return ok("the server's pod %s is ready, image %s, %d restarts", p.Name, image, restarts)
}
