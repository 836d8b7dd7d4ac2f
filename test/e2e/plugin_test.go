// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// plugin runs kubectl bundle as users do, and returns what it wrote and how it ended.
func (s *scope) plugin(args ...string) (text string, code int) {
	s.Helper()
	cmd := exec.CommandContext(s.ctx, "kubectl", append(append([]string{"bundle"}, args...), "-n", s.ns)...)
	cmd.Dir = s.TempDir()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.must(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// expectPlugin is the same, with what is expected.
func (s *scope) expectPlugin(code int, texts []string, args ...string) {
	s.Helper()
	out, got := s.plugin(args...)
	if got != code {
		s.Errorf("kubectl bundle %s ended with %d:\n%s", strings.Join(args, " "), got, out)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			s.Errorf("kubectl bundle %s does not say %q:\n%s", strings.Join(args, " "), text, out)
		}
	}
}

// eventuallyPlugin waits for what the plugin says, where other tests, or the node, have a say in it.
func (s *scope) eventuallyPlugin(texts []string, args ...string) {
	s.Helper()
	s.eventually("kubectl bundle "+strings.Join(args, " "), func() error {
		out, code := s.plugin(args...)
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("it ended with %d and does not say %q:\n%s", code, text, out)
			}
		}
		return nil
	})
}

// TestKubectlBundle follows an image to its content with the plugin alone, and one that does not exist to what it says.
func TestKubectlBundle(t *testing.T) {
	t.Parallel()
	s := begin(t)
	tree := files{"manifests/a.yaml": manifest("a", "1"), "readme": "text\n"}
	digest, _ := s.pushImage(nodeRegistry, "v1", s.image(tree.archive(), v1.Config{}))

	s.expectPlugin(0, []string{"bundle.rukpak.io/app created", "attempt 1", "bundle/app: ready: sha256:", "2 files"}, "create", "app", "--image", digest, "--wait")
	s.expectPlugin(0, []string{manifest("a", "1")}, "cat", "app", "manifests/a.yaml")
	s.expectPlugin(0, []string{"Unpacked. Its content is there and served.", "Unpacked from:  " + digest, "Events:"}, "describe", "app")
	s.expectPlugin(0, []string{"whole: sha256:"}, "verify", "app")
	s.eventuallyPlugin([]string{"the APIService v1alpha1.rukpak.io is available", "is ready, image ", "the authority is valid until"}, "doctor")
	s.eventuallyPlugin([]string{"has no unpack pod now: ready"}, "logs", "app")

	missing := s.reference(nodeRegistry, "none")
	s.expectPlugin(0, nil, "create", "gone", "--image", missing)
	s.eventuallyPlugin([]string{"pod/gone-", "waiting to start"}, "logs", "gone")
	s.expectPlugin(8, []string{"is not ready after", "attempt "}, "wait", "gone", "--patient", "--timeout", "2s")
	s.expectPlugin(0, []string{"a new attempt was asked for"}, "retry", "gone")
	s.eventuallyPlugin([]string{"ImageNotFound: push it"}, "describe", "gone")
}
