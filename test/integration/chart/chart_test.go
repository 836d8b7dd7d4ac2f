// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chart compares what the Helm chart installs with what kubectl apply -k does.
package chart

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const chart = "artifacts/charts/rukpak-apiserver"

// objects are the objects of a manifest by kind, namespace and name.
type objects map[string]*unstructured.Unstructured

func TestSameObjects(t *testing.T) {
	t.Parallel()
	for topology, folder := range map[string]string{"single": "artifacts/deploy", "ha": "artifacts/deploy/ha"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			want := parse(t, run(t, "kubectl", "kustomize", folder))
			got := parse(t, run(t, "helm", "template", "rukpak", chart, "--namespace=rukpak-system", "--kube-version=1.37.0", "--set=topology="+topology))
			// The namespace is the release's, which helm makes; and the Job is named after its image.
			delete(want, "Namespace//rukpak-system")
			for key, o := range got {
				if strings.HasPrefix(key, "Job/rukpak-system/rukpak-etcd-certs-") {
					delete(got, key)
					o.SetName("rukpak-etcd-certs")
					got[id(o)] = o
				}
			}
			const policy = "ValidatingAdmissionPolicy//rukpak-apiserver-creates-pods"
			if images := ownImages(t, got[policy]); images != "['rukpak-apiserver']" {
				t.Errorf("the policy of the chart lets pods run %s", images)
			}
			ownImages(t, want[policy])
			if len(want) < 15 {
				t.Fatalf("kustomize made %d objects", len(want))
			}
			for key := range want {
				if o := got[key]; o == nil || !reflect.DeepEqual(want[key], o) {
					t.Errorf("%s of the chart is not that of %s: run hack/update-chart.sh\n%+v\n%+v", key, folder, o, want[key])
				}
			}
			for key := range got {
				if want[key] == nil {
					t.Errorf("%s of the chart is not in %s", key, folder)
				}
			}
		})
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	const digest = "sha256:2d822088a2f75761d701ee4e7ca77cf41e3bda50f9fecdef050f57c50df15e87"
	for _, test := range []struct {
		name, values, object string
		want                 map[string]any
	}{
		{"image by digest", "image.repository=registry.example/rukpak,image.digest=" + digest, "StatefulSet/elsewhere/rukpak-apiserver", map[string]any{
			"spec.template.spec.containers.0.image":       "registry.example/rukpak@" + digest,
			"spec.template.spec.containers.0.env.1.value": "registry.example/rukpak@" + digest,
		}},
		{"volume", "storage.size=20Gi,storage.className=fast", "StatefulSet/elsewhere/rukpak-apiserver", map[string]any{
			"spec.volumeClaimTemplates.0.spec.resources.requests.storage": "20Gi",
			"spec.volumeClaimTemplates.0.spec.storageClassName":           "fast",
		}},
		{"memory and secrets", "memory.limit=1Gi,memory.goLimit=800MiB,imagePullSecrets[0].name=regcred", "StatefulSet/elsewhere/rukpak-apiserver", map[string]any{
			"spec.template.spec.containers.0.resources.limits.memory": "1Gi",
			"spec.template.spec.imagePullSecrets.0.name":              "regcred",
		}},
		{"flags and environment", "extraArgs[0]=--v=4,extraEnv[0].name=A,extraEnv[0].value=b", "StatefulSet/elsewhere/rukpak-apiserver", map[string]any{
			"spec.template.spec.containers.0.args.8":      "--v=4",
			"spec.template.spec.containers.0.env.1.name":  "A",
			"spec.template.spec.containers.0.env.1.value": "b",
		}},
		{"volumes", "extraVolumes[0].name=own,extraVolumes[0].secret.secretName=s,extraVolumeMounts[0].name=own,extraVolumeMounts[0].mountPath=/own", "StatefulSet/elsewhere/rukpak-apiserver", map[string]any{
			"spec.template.spec.volumes.0.secret.secretName":           "s",
			"spec.template.spec.containers.0.volumeMounts.0.mountPath": "/own",
			"spec.template.spec.containers.0.volumeMounts.1.mountPath": "/var/lib/rukpak-apiserver",
			"spec.template.spec.volumes.1.configMap.name":              "rukpak-apiserver-audit-h6gtfm6tmk",
		}},
		// What makes etcd's certificates runs the server's image as well.
		{"where pods run", "topology=ha,imagePullSecrets[0].name=regcred,tolerations[0].key=infra,nodeSelector.pool=infra,image.tag=1", "Job/elsewhere/rukpak-etcd-certs-" + hash("rukpak-apiserver:1"), map[string]any{
			"spec.template.spec.imagePullSecrets.0.name": "regcred",
			"spec.template.spec.tolerations.0.key":       "infra",
			"spec.template.spec.nodeSelector.pool":       "infra",
		}},
		{"an etcd of one's own", "topology=ha,ha.replicas=5,ha.etcd.servers={https://a:2379,https://b:2379}", "Deployment/elsewhere/rukpak-apiserver", map[string]any{
			"spec.replicas": 5,
			"spec.template.spec.containers.0.env.0.value": "https://a:2379,https://b:2379",
		}},
		{"priority", "priorityClassName=mine", "StatefulSet/elsewhere/rukpak-apiserver", map[string]any{"spec.template.spec.priorityClassName": "mine"}},
		{"priority that needs a quota", "topology=ha,priorityClassName=mine", "ResourceQuota/elsewhere/rukpak-critical-pods", map[string]any{
			"spec.scopeSelector.matchExpressions.0.values.0": "mine",
		}},
		{"no priority", "topology=ha,priorityClassName=", "StatefulSet/elsewhere/rukpak-etcd", map[string]any{"spec.template.spec.priorityClassName": nil}},
		{"namespace", "", "APIService//v1alpha1.rukpak.io", map[string]any{"spec.service.namespace": "elsewhere"}},
		{"bucket", "topology=ha," + bucket, "Deployment/elsewhere/rukpak-apiserver", map[string]any{
			"spec.template.spec.containers.0.env.1.value": "s3://content?region=eu-west-1",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := parse(t, run(t, "helm", "template", "rukpak", chart, "--namespace=elsewhere", "--kube-version=1.37.0", "--set="+test.values))
			o := got[test.object]
			if o == nil {
				t.Fatalf("there is no %s", test.object)
			}
			for id := range got {
				if strings.HasSuffix(test.values, "priorityClassName=") && strings.HasPrefix(id, "ResourceQuota/") {
					t.Errorf("there is %s", id)
				}
				if strings.Contains(test.values, "ha.etcd.servers") && strings.Contains(id, "etcd") {
					t.Errorf("there is %s", id)
				}
			}
			for path, want := range test.want {
				if value := at(o.Object, path); fmt.Sprint(value) != fmt.Sprint(want) {
					t.Errorf("%s is %v, not %v", path, value, want)
				}
			}
		})
	}
}

// hash is how the chart names a Job after its image.
func hash(image string) string {
	sum := sha256.Sum256([]byte(image))
	return hex.EncodeToString(sum[:4])
}

// ownImages takes out of the policy of pods how it knows the server's images: the chart says them, and the kustomization has the
// namespace say them.
func ownImages(t *testing.T, policy *unstructured.Unstructured) string {
	t.Helper()
	if policy == nil {
		t.Fatal("there is no policy of pods")
	}
	variables, _, err := unstructured.NestedSlice(policy.Object, "spec", "variables")
	if err != nil {
		t.Fatal(err)
	}
	expression := ""
	for _, v := range variables {
		if v := v.(map[string]any); v["name"] == "repositories" {
			expression = v["expression"].(string)
			v["expression"] = ""
		}
	}
	if err := unstructured.SetNestedSlice(policy.Object, variables, "spec", "variables"); err != nil {
		t.Fatal(err)
	}
	return expression
}

// TestNotes has the notes of an installation say what outlives it.
func TestNotes(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"topology=single":       "the volume",
		"topology=ha":           "the volumes of etcd",
		"topology=ha," + bucket: "the volumes of etcd and the bucket",
		"topology=ha,ha.etcd.servers={https://a:2379}":               "your etcd",
		"topology=ha,ha.etcd.servers={https://a:2379}," + bucket:     "your etcd and the bucket",
		"topology=single,ha.etcd.servers={https://a:2379}," + bucket: "the volume",
	} {
		t.Run(values, func(t *testing.T) {
			t.Parallel()
			notes := string(run(t, "helm", "install", "rukpak", chart, "--dry-run=client", "--namespace=elsewhere", "--set="+values))
			if line := "helm uninstall rukpak -n elsewhere does not touch " + want + ": "; !strings.Contains(notes, line) {
				_, after, _ := strings.Cut(notes, "NOTES:")
				t.Errorf("the notes do not say %q:%s", line, after)
			}
			minute := strings.Contains(notes, "etcd and its certificates take a minute at first.")
			if own := strings.HasPrefix(want, "the volumes of etcd"); minute != own {
				t.Errorf("the notes speak of the chart's own etcd: %t", minute)
			}
		})
	}
}

const bucket = "ha.contentStore=s3://content?region=eu-west-1"

func TestLint(t *testing.T) {
	t.Parallel()
	run(t, "helm", "lint", "--strict", chart)
}

// at is the value at a path, whose parts are keys, and numbers in lists.
func at(value any, path string) any {
	for part := range strings.SplitSeq(path, ".") {
		switch v := value.(type) {
		case map[string]any:
			value = v[part]
		case []any:
			var i int
			if n, err := fmt.Sscanf(part, "%d", &i); n != 1 || err != nil || i >= len(v) {
				return nil
			}
			value = v[i]
		default:
			return nil
		}
	}
	return value
}

// run runs one of the programs that make builds, in the root of the tree.
func run(t *testing.T, program string, args ...string) []byte {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "_output", "bin", program), args...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", program, strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out
}

func parse(t *testing.T, manifest []byte) objects {
	t.Helper()
	all := objects{}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(o.Object) == 0 {
			continue
		}
		if all[id(o)] != nil {
			t.Fatalf("%s is there twice", id(o))
		}
		all[id(o)] = o
	}
}

func id(o *unstructured.Unstructured) string {
	return o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
}
