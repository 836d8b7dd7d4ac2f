// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// census is what is wrong with bundles, by their names.
type census struct {
	all   int64
	where string

	full, lost, classless, failing, unrefreshed []string
}

// add looks at one bundle.
func (c *census) add(b *v1alpha1.Bundle) {
	c.all++
	st := stateOf(b)
	name := st.Namespace + "/" + st.Name
	if st.full.Status == metav1.ConditionTrue {
		c.full = append(c.full, name)
	}
	if st.available.Reason == v1alpha1.ReasonContentLost && st.available.Status != metav1.ConditionTrue {
		c.lost = append(c.lost, name)
	}
	switch {
	case st.current() && st.ready.Reason == v1alpha1.ReasonClassMissing:
		c.classless = append(c.classless, fmt.Sprintf("%s (%q)", name, b.Spec.ProvisionerClassName))
	case st.failing():
		c.failing = append(c.failing, name+" ("+st.ready.Reason+")")
	case st.failed() > 0:
		c.failing = append(c.failing, fmt.Sprintf("%s (%s, %s failed so far)", name, cmp.Or(st.Status.Unpack.Reason, st.ready.Reason), plural(int64(st.failed()), "attempt")))
	default:
		// The first attempt waits for what does not come.
		if reason := st.cause(); reason != "" && !slices.Contains(held, reason) {
			c.failing = append(c.failing, name+" ("+reason+")")
		}
	}
	if st.unrefreshed() {
		c.unrefreshed = append(c.unrefreshed, name+" ("+st.refreshed.Reason+")")
	}
}

// findings are what there is to say.
func (c *census) findings(where string) []finding {
	var findings []finding
	if len(c.full) > 0 {
		findings = append(findings, bad("delete bundles, or enlarge the volume or bucket of the store; it goes on by itself then", "a content store is full: %s wait for room", names(c.full)))
	}
	if len(c.lost) > 0 {
		findings = append(findings, bad("images are unpacked again by themselves, uploads have to be pushed again; if you did not remove it, see docs/integrity.md", "stored content is lost: %s", names(c.lost)))
	}
	of := func(some []string) string {
		return fmt.Sprintf("%d of %s %s: %s", len(some), plural(c.all, "bundle"), c.where, names(some))
	}
	if len(c.classless) > 0 {
		findings = append(findings, warning(makeClass, "the class does not exist, of %s", of(c.classless)))
	}
	if len(c.failing) > 0 {
		findings = append(findings, warning(program+" describe NAME"+where+" says what to do about each", "not unpacked, %s", of(c.failing)))
	}
	if len(c.unrefreshed) > 0 {
		findings = append(findings, warning(program+" describe NAME"+where+" says what to do about each, and then: "+program+" refresh NAME"+where+" --wait",
			"not refreshed, and served as before, %s", of(c.unrefreshed)))
	}
	if len(findings) == 0 {
		findings = append(findings, ok("%s %s, none fails, and the stores have room for them", plural(c.all, "bundle"), c.where))
	}
	return findings
}

// bundlesState looks at all bundles, or at those of the namespace if no more may be seen.
func (d *examination) bundlesState(ctx context.Context) []finding {
	c := &census{where: "in all namespaces"}
	err := c.take(ctx, d.rukpak.RukpakV1alpha1().Bundles(metav1.NamespaceAll))
	if apierrors.IsForbidden(err) {
		c = &census{where: "in namespace " + d.in}
		err = c.take(ctx, d.rukpak.RukpakV1alpha1().Bundles(d.in))
	}
	if err != nil {
		return []finding{unknown("the bundles cannot be listed: %v", err)}
	}
	return c.findings(d.where("NAMESPACE"))
}

// take looks at bundles page by page.
func (c *census) take(ctx context.Context, bundles typed.BundleInterface) error {
	opts := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := bundles.List(ctx, opts)
		if err != nil {
			return err
		}
		for i := range page.Items {
			c.add(&page.Items[i])
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return nil
		}
	}
}
