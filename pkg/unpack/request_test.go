// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"strings"
	"testing"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// A value that is too long was let in by an earlier version. It is acted upon once, and status does not say it again.
func TestTooLongAValueIsHandledOnceAndNotRepeated(t *testing.T) {
	long := strings.Repeat("x", 250000)
	for name, before := range map[string]string{"never handled": "", "handled by an earlier version": long} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, started(testClass(), testBundle()), func(w *world) {
				w.start()
				w.commit()
				w.pass(0)
				w.edit(func(b *v1alpha1.Bundle) {
					b.Status.LastHandledRetry = before
					b.Annotations = map[string]string{v1alpha1.AnnotationRetry: long}
				})
				writes := w.writes()
				w.pass(0)
				got := w.bundle().Status.LastHandledRetry
				if before == "" && (!strings.HasPrefix(got, "sha256:") || len(got) != 71) || before != "" && (got != before || w.writes() != writes) {
					t.Errorf("%d bytes: %.80q, %d writes", len(got), got, w.writes()-writes)
				}
				writes = w.writes()
				w.edit(func(b *v1alpha1.Bundle) { b.Labels = map[string]string{"a": "b"} })
				w.pass(0)
				if n := w.writes() - writes; n != 0 {
					t.Errorf("%d writes about what is handled", n)
				}
			})
		})
	}
}
