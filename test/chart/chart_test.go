// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/pki"
)

const (
	validity = 24 * time.Hour
)

var errWrong = errors.New("wrong bytes")

// reader reads a bundle again and again.
type reader struct {
	read, failed int
	away         time.Duration // from each first read that failed to the next that did not, or to the end
	err          error         // the last
	wrong        error
}

// during reads a bundle as long as work goes on.
func during(t *testing.T, b bundle, work func()) reader {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan reader, 1)
	go func() {
		var r reader
		var since time.Time
		for ctx.Err() == nil {
			begin := time.Now()
			err := b.read(ctx)
			switch {
			case ctx.Err() != nil:
			case err == nil:
				r.read++
				if !since.IsZero() {
					r.away, since = r.away+time.Since(since), time.Time{}
				}
			default:
				r.failed, r.err = r.failed+1, err
				if errors.Is(err, errWrong) {
					r.wrong = err
				}
				if since.IsZero() {
					since = begin
				}
			}
		}
		if !since.IsZero() {
			r.away += time.Since(since)
		}
		done <- r
	}()
	defer cancel()
	work()
	cancel()
	r := <-done
	t.Logf("%d reads, %d failed, the API was away for %s (%v)", r.read, r.failed, r.away.Round(pollEvery), r.err)
	if r.wrong != nil {
		t.Error(r.wrong)
	}
	return r
}

// TestSingle is the life of a release with one replica.
func TestSingle(t *testing.T) {
	const namespace = "chart-single"
	newVolume(t, "chart-single", "10Gi", namespace, "data-rukpak-apiserver-0") // before the namespace, whose claim keeps it
	newNamespace(t, namespace)
	install(t, namespace)
	b := newBundle(t, "chart-single", newImage(t, "chart-single"))
	if err := b.read(t.Context()); err != nil {
		t.Fatal(err)
	}

	r := during(t, b, func() { install(t, namespace, "--set=memory.limit=640Mi,extraArgs[0]=--v=2") })
	t.Logf("%d of %d reads failed while the one replica was replaced, which was away for %s", r.failed, r.read+r.failed, r.away)
	if r.read == 0 {
		t.Errorf("no read succeeded: %v", r.err)
	}
	pod := kubectl(t, "get", "pod", "rukpak-apiserver-0", "-n", namespace, "-o", "jsonpath={.spec.containers[0].resources.limits.memory} {.spec.containers[0].args}")
	if !strings.HasPrefix(pod, "640Mi ") || !strings.Contains(pod, `"--v=2"`) {
		t.Errorf("after the upgrade the pod has %s", pod)
	}
	if err := b.read(t.Context()); err != nil {
		t.Errorf("after the upgrade: %v", err)
	}

	values, ca := ownCertificate(t, namespace)
	install(t, namespace, values...)
	until(t, func() error { return trusts(t, ca) })
	// kube-apiserver takes nothing but a certificate of that authority from now on.
	until(t, func() error { return b.read(t.Context()) })

	// The deletion of a namespace asks every API of the cluster.
	kubectl(t, "create", "namespace", "chart-other")
	uninstall(t, namespace)
	remove(t, "namespace", "chart-other")
	left := strings.Fields(kubectl(t, "get", "pvc,configmap,secret,lease,serviceaccount,role,service,statefulset", "-n", namespace, "-o", "name"))
	want := []string{
		"configmap/kube-root-ca.crt", "configmap/rukpak-apiserver-instance", "lease.coordination.k8s.io/rukpak-apiserver",
		"persistentvolumeclaim/data-rukpak-apiserver-0", "secret/own-certificate", "secret/rukpak-apiserver-pki", "serviceaccount/default",
	}
	if slices.Sort(left); !slices.Equal(left, want) {
		t.Errorf("left in the namespace: %v, not %v", left, want)
	}
	for _, resource := range []string{"apiservice", "clusterrole", "clusterrolebinding", "validatingadmissionpolicy", "validatingadmissionpolicybinding", "flowschema", "prioritylevelconfiguration"} {
		if all := kubectl(t, "get", resource, "-o", "name"); strings.Contains(strings.ReplaceAll(all, "rukpak-node", ""), "rukpak") {
			t.Errorf("left in the cluster: %s", all)
		}
	}

	install(t, namespace)
	if again := getBundle(t, b.name); again != b {
		t.Errorf("the bundle was %v and is %v", b, again)
	}
	until(t, func() error { return b.read(t.Context()) })
	kubectl(t, "delete", "bundle", b.name, "-n", "default")
	uninstall(t, namespace)
}

// ownCertificate returns the values by which the server has one that the user brings, and its authority, PEM.
func ownCertificate(t *testing.T, namespace string) (values []string, ca []byte) {
	t.Helper()
	authority, err := pki.NewAuthority("chart", validity)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.Serving([]string{"rukpak-apiserver." + namespace + ".svc"}, nil, validity)
	if err != nil {
		t.Fatal(err)
	}
	newSecret(t, namespace, "own-certificate", map[string][]byte{"ca.crt": authority.CertPEM, "tls.crt": cert, "tls.key": key})
	return []string{
		"--set=extraVolumes[0].name=own,extraVolumes[0].secret.secretName=own-certificate,extraVolumeMounts[0].name=own,extraVolumeMounts[0].mountPath=/etc/own",
		"--set=extraArgs[0]=--tls-cert-file=/etc/own/tls.crt,extraArgs[1]=--tls-private-key-file=/etc/own/tls.key,extraArgs[2]=--tls-ca-file=/etc/own/ca.crt",
	}, authority.CertPEM
}

// trusts says whether kube-apiserver trusts this authority, and no other, to tell who the server is.
func trusts(t *testing.T, ca []byte) error {
	t.Helper()
	got, err := base64.StdEncoding.DecodeString(kubectl(t, "get", "apiservice", "v1alpha1.rukpak.io", "-o", "jsonpath={.spec.caBundle}"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(ca) {
		return fmt.Errorf("the caBundle is %s, not %s", got, ca)
	}
	return nil
}

// TestReplicas has two replicas, an etcd that the chart does not bring, and an upgrade that no reader notices.
func TestReplicas(t *testing.T) {
	const namespace = "chart-ha"
	newNamespace(t, namespace)
	url := startEtcd(t, namespace)
	values := []string{"--set=topology=ha,ha.replicas=2,ha.etcd.servers={" + url + "},ha.contentStore=etcd:?capacity=256Mi"}
	install(t, namespace, values...)
	b := newBundle(t, "chart-ha", newImage(t, "chart-ha"))
	r := during(t, b, func() { install(t, namespace, append(values, "--set=memory.limit=640Mi")...) })
	if r.failed > 0 || r.read == 0 {
		t.Errorf("%d of %d reads failed: %v", r.failed, r.read+r.failed, r.err)
	}
	if n := kubectl(t, "get", "deployment", "rukpak-apiserver", "-n", namespace, "-o", "jsonpath={.status.readyReplicas}"); n != "2" {
		t.Errorf("%s replicas are ready", n)
	}
	if all := kubectl(t, "get", "all,secret,networkpolicy", "-n", namespace, "-o", "name"); strings.Contains(strings.ReplaceAll(all, "secret/rukpak-etcd-client", ""), "etcd") {
		t.Errorf("the chart brought an etcd of its own: %s", all)
	}
	kubectl(t, "delete", "bundle", b.name, "-n", "default")
	uninstall(t, namespace)
}
