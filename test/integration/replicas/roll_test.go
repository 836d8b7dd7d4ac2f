// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package replicas

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// ending is how long a replica may take to end: its delay, and what runs then.
const ending = 90 * time.Second

// TestRollingUpdate ends one replica after the other as a kubelet does, while clients read and write content. Others that
// make short requests notice nothing. They repeat none but the one that is not idempotent, which kube-apiserver does not repeat
// either when the connection that it chose has been closed in that moment.
func TestRollingUpdate(t *testing.T) {
	stop, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := startLoad(t, stop, "raw")
	var requests atomic.Int64
	for _, request := range []func() error{
		func() error { _, err := bundles().Get(t.Context(), "read-0", metav1.GetOptions{}); return err },
		func() error { _, err := bundles().List(t.Context(), metav1.ListOptions{}); return err },
		func() error {
			_, err := bundles().Create(t.Context(), &v1alpha1.Bundle{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "dry-"},
				Spec:       v1alpha1.BundleSpec{ProvisionerClassName: "raw", Source: v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}},
			}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		},
	} {
		l.working.Go(func() {
			for stop.Err() == nil {
				err := request()
				// kube-apiserver does not send anew what a connection that ends may have taken, and there may be two of them.
				for tries := 0; tries < 2 && apierrors.IsServiceUnavailable(err); tries++ {
					err = request()
				}
				if err != nil {
					t.Error(err)
					return
				}
				requests.Add(1)
			}
		})
	}
	for i, s := range shared.Servers {
		ctx, cancel := context.WithTimeout(t.Context(), ending)
		defer cancel()
		if err := s.Terminate(ctx); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := shared.Balancer.Ready(t.Context(), i, true); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	l.working.Wait()
	t.Logf("%d short requests; %d downloads, %d uploads", requests.Load(), l.reads.Load(), l.writes.Load())
	everythingIsThere(t, l.digest)
}
