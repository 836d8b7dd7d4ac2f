// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content/verify"
	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
	"rukpak.io/apiserver/test/integration/harness"
)

// uploaded makes a bundle with content in a server without a cluster, and returns the content.
func uploaded(t *testing.T, client clientset.Interface, name string, seed uint64) []byte {
	t.Helper()
	api := client.RukpakV1alpha1()
	must(api.Bundles("default").Create(t.Context(), uploadBundle(name, "raw"), metav1.CreateOptions{}))(t)
	content := canonical(t, noise("data", seed, 200_000))
	if err := put(t.Context(), api.RESTClient(), contentPath("default", name), content); err != nil {
		t.Fatal(err)
	}
	return content
}

// flip changes one bit of stored content.
func flip(t *testing.T, s *harness.Server, content []byte) {
	t.Helper()
	hex := strings.TrimPrefix(digestOf(content), "sha256:")
	path := filepath.Join(s.Dir, "content", "blobs", "sha256", hex[:2], hex)
	stored := must(os.ReadFile(path))(t)
	stored[len(stored)/2] ^= 1
	if err := os.WriteFile(path, stored, 0o600); err != nil {
		t.Fatal(err)
	}
}

// isLost waits until a bundle says that its content is lost, and expects that none is served.
func isLost(t *testing.T, client clientset.Interface, name string) {
	t.Helper()
	api := client.RukpakV1alpha1()
	eventually(t, "the bundle says that it is lost", func() string {
		b := must(api.Bundles("default").Get(t.Context(), name, metav1.GetOptions{}))(t)
		c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionContentAvailable)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != "ContentLost" {
			return encode(t, b.Status.Conditions)
		}
		return ""
	})
	err := api.RESTClient().Get().AbsPath(contentPath("default", name)).Do(t.Context()).Error()
	if !apierrors.IsConflict(err) {
		t.Errorf("reading it: %v", err)
	}
}

func isServed(t *testing.T, client clientset.Interface, name string, content []byte) {
	t.Helper()
	got := must(client.RukpakV1alpha1().RESTClient().Get().AbsPath(contentPath("default", name)).Do(t.Context()).Raw())(t)
	if !bytes.Equal(got, content) {
		t.Errorf("%s: other content is served", name)
	}
}

func TestScrubFindsAFlippedBit(t *testing.T) {
	t.Parallel()
	s, client := standalone(t, "--content-scrub-interval=1s")
	broken, whole := uploaded(t, client, "broken", 1), uploaded(t, client, "whole", 2)
	// An alert sees a counter grow, so it has to be there before.
	eventually(t, "the counters are there", func() string {
		metrics := string(must(client.RukpakV1alpha1().RESTClient().Get().AbsPath("/metrics").Do(t.Context()).Raw())(t))
		for _, name := range []string{"damaged", "unreadable", "failures"} {
			if want := `rukpak_content_scrub_` + name + `_total{store="default"} 0`; !strings.Contains(metrics, want) {
				return "they lack " + want
			}
		}
		return ""
	})
	flip(t, s, broken)
	isLost(t, client, "broken")
	isServed(t, client, "whole", whole)
	if err := put(t.Context(), client.RukpakV1alpha1().RESTClient(), contentPath("default", "broken"), broken); err != nil {
		t.Fatal(err)
	}
	isServed(t, client, "broken", broken)
	eventually(t, "metrics tell of it", func() string {
		metrics := string(must(client.RukpakV1alpha1().RESTClient().Get().AbsPath("/metrics").Do(t.Context()).Raw())(t))
		for _, want := range []string{
			`rukpak_content_scrub_damaged_total{store="default"} 1`, `rukpak_content_scrub_blobs_total{store="default"}`,
			`rukpak_content_scrub_last_completed_timestamp_seconds{store="default"}`, `rukpak_content_garbage_bytes{store="default"}`,
			`rukpak_content_namespace_bytes{class="raw",namespace="default"}`, "rukpak_etcd_nospace_alarm 0", "rukpak_etcd_db_quota_bytes 8.58",
			`rukpak_content_store_full{store="default"} 0`, `rukpak_content_store_free_bytes{store="default"}`, `rukpak_content_store_capacity_bytes{store="default"}`,
		} {
			if !strings.Contains(metrics, want) {
				return "they lack " + want
			}
		}
		return ""
	})
}

// TestTwoStoresLackNothing: each has content of its own, which is not missing in the other.
func TestTwoStoresLackNothing(t *testing.T) {
	t.Parallel()
	_, client := standalone(t, "--content-store=default=etcd:", "--content-store=cold=file://"+t.TempDir())
	api := client.RukpakV1alpha1()
	class := must(api.ProvisionerClasses().Get(t.Context(), "raw", metav1.GetOptions{}))(t)
	class.ObjectMeta, class.Store = metav1.ObjectMeta{Name: "frozen"}, "cold"
	must(api.ProvisionerClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t)
	for name, class := range map[string]string{"hot": "raw", "far": "frozen"} {
		must(api.Bundles("default").Create(t.Context(), uploadBundle(name, class), metav1.CreateOptions{}))(t)
		if err := put(t.Context(), api.RESTClient(), contentPath("default", name), canonical(t, noise(name, 1, 100))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both stores have their content and lack nothing", func() string {
		metrics := string(must(api.RESTClient().Get().AbsPath("/metrics").Do(t.Context()).Raw())(t))
		for _, want := range []string{
			`rukpak_content_store_blobs{store="cold"} 1`, `rukpak_content_store_blobs{store="default"} 1`,
			`rukpak_content_missing{store="cold"} 0`, `rukpak_content_missing{store="default"} 0`,
		} {
			if !strings.Contains(metrics, want) {
				return "metrics lack " + want
			}
		}
		return ""
	})
}

// tool runs a command of the server's program and returns its exit code.
func tool(t *testing.T, s *harness.Server, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, shared.Programs.Server, slices.Insert(slices.Clone(args), 1, "--data-dir="+s.Dir)...)
	stdout, stderr, err := output(cmd, "")
	exit, ended := errors.AsType[*exec.ExitError](err)
	if err != nil && !ended {
		t.Fatal(err)
	}
	if ended {
		code = exit.ExitCode()
	}
	return code, stdout, stderr
}

// kinds runs fsck and returns what it finds, with what it did about it.
func kinds(t *testing.T, s *harness.Server, want int, args ...string) string {
	t.Helper()
	code, stdout, stderr := tool(t, s, append([]string{"fsck", "-o=json", "--content-gc-grace=1ns"}, args...)...)
	if code != want {
		t.Fatalf("fsck %v ended with %d:\n%s%s", args, code, stdout, stderr)
	}
	var report verify.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, p := range report.Problems {
		found = append(found, strings.TrimSpace(string(p.Kind)+" "+p.Bundle+" "+p.Repair))
	}
	return strings.Join(found, ", ")
}

func TestFsck(t *testing.T) {
	t.Parallel()
	// Without a collector in the way.
	s, client := standalone(t, "--content-gc-interval=1h", "--content-scrub-interval=0")
	broken, whole := uploaded(t, client, "broken", 1), uploaded(t, client, "whole", 2)
	if code, _, stderr := tool(t, s, "fsck"); code != 2 || !strings.Contains(stderr, "a server is running") {
		t.Errorf("beside a server fsck ends with %d: %s", code, stderr)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := kinds(t, s, 0); got != "" {
		t.Errorf("all is well, and it finds %s", got)
	}
	flip(t, s, broken)
	orphan := filepath.Join(s.Dir, "content", "blobs", "sha256", digestOf(nil)[7:9], digestOf(nil)[7:])
	if err := os.WriteFile(orphan, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := kinds(t, s, 1); got != "DamagedBlob, OrphanBlob" {
		t.Errorf("it finds %s", got)
	}
	if got := kinds(t, s, 1, "--repair"); got != "DamagedBlob  removed, OrphanBlob  removed" {
		t.Errorf("it repairs %s", got)
	}
	if got := kinds(t, s, 1); got != "MissingBlob default/broken" {
		t.Errorf("it is left with %s", got)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	isLost(t, client, "broken")
	isServed(t, client, "whole", whole)
	if err := put(t.Context(), client.RukpakV1alpha1().RESTClient(), contentPath("default", "broken"), broken); err != nil {
		t.Fatal(err)
	}
	isServed(t, client, "broken", broken)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := kinds(t, s, 0); got != "" {
		t.Errorf("after all is mended it finds %s", got)
	}
	// Content of another server is not measured by this one's bundles.
	mark := filepath.Join(s.Dir, "content", "mark")
	if err := os.WriteFile(mark, []byte("of somebody else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := tool(t, s, "fsck", "--repair"); code != 2 || !strings.Contains(stderr, "nothing is repaired") {
		t.Errorf("with a store of somebody else it ends with %d: %s", code, stderr)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	for name, args := range map[string][]string{
		"a wrong value": {"-o=yaml"}, "a wrong flag": {"--repare"}, "a word too much": {"now"},
		"a data dir that is not there": {"--data-dir=" + missing}, "a store that is not there": {"--content-store=other=file://" + missing},
	} {
		if code, _, stderr := tool(t, s, append([]string{"fsck"}, args...)...); code != 2 {
			t.Errorf("with %s it ends with %d: %s", name, code, stderr)
		}
	}
	if _, err := os.Stat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has made a folder: %v", err)
	}
}

// TestFullEtcd fills the database of the embedded etcd, and has it mended while the server runs.
func TestFullEtcd(t *testing.T) {
	t.Parallel()
	s, client := standalone(t, "--embedded-etcd-quota=16Mi")
	api := client.RukpakV1alpha1()
	content := uploaded(t, client, "app", 1)
	big := strings.Repeat("x", 250_000)
	var err error
	for i := range 200 {
		b := must(api.Bundles("default").Get(t.Context(), "app", metav1.GetOptions{}))(t)
		b.Annotations = map[string]string{"big": big[:len(big)-i]}
		if _, err = api.Bundles("default").Update(t.Context(), b, metav1.UpdateOptions{}); err != nil {
			break
		}
	}
	expectFull := func(what string, err error) {
		t.Helper()
		status, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok || status.Status().Code != http.StatusInsufficientStorage || !strings.Contains(err.Error(), "etcd-recover") {
			t.Errorf("%s: %v", what, err)
		}
	}
	expectFull("an update", err)
	_, err = api.Bundles("default").Create(t.Context(), uploadBundle("other", "raw"), metav1.CreateOptions{})
	expectFull("a new bundle", err)
	expectFull("new content", put(t.Context(), api.RESTClient(), contentPath("default", "app"), canonical(t, noise("data", 2, 10))))
	isServed(t, client, "app", content)
	if err := api.RESTClient().Get().AbsPath("/healthz").Do(t.Context()).Error(); err == nil || !strings.Contains(err.Error(), "etcd-space failed") {
		t.Errorf("health: %v", err)
	}

	code, stdout, stderr := tool(t, s, "etcd-recover")
	if code != 0 || !strings.Contains(stdout, "ended the alarm") {
		t.Fatalf("etcd-recover ended with %d:\n%s%s", code, stdout, stderr)
	}
	must(api.Bundles("default").Create(t.Context(), uploadBundle("other", "raw"), metav1.CreateOptions{}))(t)
	isServed(t, client, "app", content)
	if err := api.RESTClient().Get().AbsPath("/healthz").Do(t.Context()).Error(); err != nil {
		t.Errorf("health: %v", err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := tool(t, s, "etcd-recover"); code != 0 || !strings.Contains(stdout, "defragmented") {
		t.Errorf("without a server etcd-recover ended with %d:\n%s%s", code, stdout, stderr)
	}
}
