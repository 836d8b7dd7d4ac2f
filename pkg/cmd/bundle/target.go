// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// target is a content of a bundle.
type target struct {
	name string
	// revision is what follows the @, and empty for the current content.
	revision string
}

// String is the target as it is given.
func (t target) String() string {
	if t.revision == "" {
		return t.name
	}
	return t.name + "@" + t.revision
}

// kinds may stand in front of a name, as kubectl prints it.
var kinds = []string{"bundle.rukpak.io/", "bundles.rukpak.io/", "bundles/", "bundle/", "bun/"}

func parseName(arg string) (string, error) {
	for _, kind := range kinds {
		if rest, ok := strings.CutPrefix(arg, kind); ok {
			arg = rest
			break
		}
	}
	switch {
	case strings.Contains(arg, "@"):
		return "", usage("%q names a revision, and this command takes a bundle alone", arg)
	case arg == "" || strings.ContainsAny(arg, "/ "):
		return "", usage("%q is no name of a bundle", arg)
	}
	return arg, nil
}

// named is the name of the bundle that an argument names, and the client of those in the namespace.
func (s *session) named(arg string) (bundles typed.BundleInterface, name string, err error) {
	if name, err = parseName(arg); err != nil {
		return nil, "", err
	}
	bundles, err = s.bundles()
	return bundles, name, err
}

// bundle gets the bundle that an argument names.
func (s *session) bundle(ctx context.Context, arg string) (*v1alpha1.Bundle, error) {
	bundles, name, err := s.named(arg)
	if err != nil {
		return nil, err
	}
	return bundles.Get(ctx, name, metav1.GetOptions{})
}

func parseTarget(arg string) (target, error) {
	name, revision, named := strings.Cut(arg, "@")
	if named && revision == "" {
		// As where a variable of a script is empty: the current content is not what was meant.
		return target{}, usage("%q names no revision: leave the @ out for the current content", arg)
	}
	name, err := parseName(name)
	return target{name, revision}, err
}

var (
	wholeDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	someDigest  = regexp.MustCompile(`^(sha256:)?[0-9a-f]{4,64}$`)
)

// digest looks up which content is meant; empty is the current one, whichever that is by then.
func (s *session) digest(ctx context.Context, t target, bundles typed.BundleInterface) (string, error) {
	back, err := strconv.Atoi(t.revision)
	counted := err == nil && len(t.revision) < 4 && back <= 0
	switch {
	case t.revision == "", wholeDigest.MatchString(t.revision):
		return t.revision, nil
	case !counted && !someDigest.MatchString(t.revision):
		return "", usage("%q is no revision: give a digest, four or more of its first digits, or -1 for the content before the current one", t.revision)
	}
	b, err := bundles.Get(ctx, t.name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	contents := revisions(b)
	if counted {
		if -back >= len(contents) {
			return "", s.none(b, "has only "+plural(int64(len(contents)), "content"))
		}
		return contents[-back].Digest, nil
	}
	found := ""
	for _, c := range contents {
		if strings.HasPrefix(strings.TrimPrefix(c.Digest, "sha256:"), strings.TrimPrefix(t.revision, "sha256:")) {
			if found != "" {
				return "", usage("%s is the beginning of more than one digest", t.revision)
			}
			found = c.Digest
		}
	}
	if found == "" {
		return "", s.none(b, "has no content whose digest begins with "+t.revision)
	}
	return found, nil
}

func (s *session) none(b *v1alpha1.Bundle, why string) error {
	return fail(ExitNotFound, fmt.Errorf("bundle %q in namespace %q %s", b.Name, b.Namespace, why),
		"\"kubectl bundle history %s%s\" lists what is kept; the ProvisionerClass says how much (revisionHistoryLimit)", b.Name, s.where(b.Namespace))
}

// revisions are the contents that a bundle serves, the current one first. They are never nil, which JSON has another word for.
func revisions(b *v1alpha1.Bundle) []v1alpha1.ContentStatus {
	contents := []v1alpha1.ContentStatus{}
	if b.Status.Content != nil {
		contents = append(contents, *b.Status.Content)
	}
	return append(contents, b.Status.History...)
}

// shortDigest is how tables show a digest.
func shortDigest(digest string) string {
	digest = strings.TrimPrefix(digest, "sha256:")
	return digest[:min(12, len(digest))]
}

// opened is what most commands that read begin with: the client, and which content is meant.
func (s *session) opened(ctx context.Context, arg string) (typed.BundleInterface, target, string, error) {
	t, err := parseTarget(arg)
	if err != nil {
		return nil, t, "", err
	}
	s.inside = arg
	bundles, err := s.bundles()
	if err != nil {
		return nil, t, "", err
	}
	digest, err := s.digest(ctx, t, bundles)
	return bundles, t, digest, err
}
