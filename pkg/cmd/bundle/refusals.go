// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// fieldClass is the field of the cause that the server gives where content is not what the provisioner of the class asks for.
const fieldClass = "spec.provisionerClassName"

// makeClass is what to do where the class of a bundle does not exist.
const makeClass = "make that class, or a default one; the class of a bundle is set once: with a misspelt one it is made anew"

// hasClass fails where the class of a bundle is known not to exist. Who may not look need not know.
func (s *session) hasClass(ctx context.Context, class string) error {
	if class == "" {
		return nil
	}
	client, err := s.clientset()
	if err != nil {
		return err
	}
	if _, err = client.RukpakV1alpha1().ProvisionerClasses().Get(ctx, class, metav1.GetOptions{}); !apierrors.IsNotFound(err) || isUnknownResource(err) {
		return nil
	}
	hint := "\"kubectl get provisionerclasses" + s.where("") + "\" shows which there are"
	if list, err := client.RukpakV1alpha1().ProvisionerClasses().List(ctx, metav1.ListOptions{Limit: pageSize}); err == nil && len(list.Items) > 0 {
		var all []string
		for _, c := range list.Items {
			all = append(all, c.Name)
		}
		hint = "--class is one of: " + names(all)
	}
	return fail(ExitNotFound, fmt.Errorf("there is no ProvisionerClass %q: no bundle was made", class), "%s", hint)
}

// taken explains that a bundle cannot be made since there is one of that name.
func (s *session) taken(ctx context.Context, bundles typed.BundleInterface, name string, err error) error {
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	b, getErr := bundles.Get(ctx, name, metav1.GetOptions{})
	if getErr != nil || b.Spec.Source.Type != v1alpha1.SourceTypeImage {
		return err
	}
	return fail(ExitFailed, err, "choose another name; the content of the one that is there comes from its image, %s: kubectl edit bundle %s%s names another",
		clean(b.Spec.Source.Image.Reference), name, s.where(""))
}

// wayOut is what to do about content that a bundle cannot take, whatever is sent again, and empty if that is not so.
func (s *session) wayOut(err error, name, from string) string {
	again := fmt.Sprintf("kubectl delete bundle %s%s, and %s create %[1]s --from %[4]s --class CLASS%[2]s", name, s.where(""), program, from)
	switch {
	case apierrors.HasStatusCause(err, v1alpha1.ReasonClassMissing):
		return makeClass + ": " + again
	case refusedByClass(err):
		return "the folder has to contain manifests/ with Kubernetes manifests, as the class of the bundle wants: mend the files; " +
			"for any other files the bundle is made anew with a class that takes them, such as raw: " + strings.Replace(again, "CLASS", "raw", 1)
	}
	return ""
}

// refusedByClass reports whether content was refused by the rule of the class's provisioner.
func refusedByClass(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == v1alpha1.ReasonContentRefused && cause.Field == fieldClass {
			return true
		}
	}
	return false
}

// notPushed explains why content was not taken.
func (s *session) notPushed(ctx context.Context, name, from string, err error) error {
	if from == "-" {
		from = "FOLDER"
	} else {
		from = quoted(from)
	}
	if hint := s.wayOut(err, name, from); hint != "" {
		p := s.explain(ctx, err)
		return fail(cmp.Or(p.code, ExitFailed), err, "%s", hint)
	}
	return err
}
