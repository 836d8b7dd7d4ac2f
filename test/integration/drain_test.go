// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"io"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/test/integration/harness"
)

// A reader that takes nothing does not hold up the end of the server, and goes on at the next one.
func TestAReadGoesOnAtTheNextServer(t *testing.T) {
	s := must(harness.StartStandalone(t.Context(), shared.Programs, t.TempDir(), "--content-drain=100ms"))(t)
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	})
	client := must(s.Client())(t).RukpakV1alpha1().Bundles("default")
	archive := canonical(t, noise("data", 51, 32<<20))
	must(client.Create(t.Context(), uploadBundle("app", "raw"), metav1.CreateOptions{}))(t)
	must(client.PutContent(t.Context(), "app", bytes.NewReader(archive), typed.PutContentOptions{}))(t)

	content := must(client.GetContent(t.Context(), "app", typed.GetContentOptions{}))(t)
	defer content.Close()
	var got bytes.Buffer
	must(io.CopyN(&got, content, 1<<20))(t)
	if err := syscall.Kill(s.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server has ended", func() string {
		if s.Running() {
			return "it runs"
		}
		return ""
	})
	// Meanwhile the bundle gets other content.
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(client.PutContent(t.Context(), "app", bytes.NewReader(canonical(t, noise("data", 52, 1000))), typed.PutContentOptions{}))(t)
	if _, err := io.Copy(&got, content); err != nil || !bytes.Equal(got.Bytes(), archive) {
		t.Errorf("%d of %d bytes: %v", got.Len(), len(archive), err)
	}
}
