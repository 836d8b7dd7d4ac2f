// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// TestClusterAway takes kube-apiserver away for a minute while images are unpacked: the server loses its lease after ten seconds.
// It goes on, and afterwards so does all that was begun.
func TestClusterAway(t *testing.T) {
	if os.Getenv(chaosVariable) == "" {
		t.Skip("takes long: `make chaos` runs it; TestChaos takes kube-apiserver away for moments")
	}
	s := begin(t)
	const away = time.Minute
	class := s.class("away", v1alpha1.ProvisionerRaw, nil)
	trees, references := make([]files, 6), make([]string, 6)
	for i := range trees {
		trees[i] = small(fmt.Sprint(s.ns, "-", i))
		digest, tagged := s.push(fmt.Sprint("v", i), trees[i])
		references[i] = digest
		if i%2 == 0 {
			references[i] = tagged
		}
	}
	s.bundle("b-0", class, references[0])
	before := s.unpacked("b-0")
	pid, err := s.process()
	s.must(err)
	for i := 1; i < len(trees); i++ {
		s.bundle(fmt.Sprint("b-", i), class, references[i])
	}
	s.must(killComponent("kube-apiserver"))
	select {
	case <-time.After(away):
	case <-s.ctx.Done():
	}
	s.startComponents()
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the server has ended while kube-apiserver was away: %v", err)
	}
	began := time.Now()
	for i := range trees {
		name := fmt.Sprint("b-", i)
		b := s.unpacked(name)
		s.holds(b, trees[i])
		if i == 0 && b.Status.Unpack.Attempt != before.Status.Unpack.Attempt {
			t.Errorf("what was unpacked before was unpacked again: %+v", b.Status.Unpack)
		}
	}
	s.Logf("all were unpacked %v after kube-apiserver was back", time.Since(began).Round(100*time.Millisecond))
	s.noPods()
}
