// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"rukpak.io/apiserver/pkg/cmd/etcdcerts"
	"rukpak.io/apiserver/test/integration/harness"
)

// userOverlay is what a user writes: his image, and the components that he wants.
const userOverlay = `
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [deploy/ha]
components: [deploy/components/bucket, deploy/components/required-anti-affinity]
images:
- {name: rukpak-apiserver, newName: registry.example/rukpak-apiserver, newTag: v7}
`

// overlays are the folders that kubectl apply -k is for.
func overlays(t *testing.T) map[string]string {
	t.Helper()
	deploy := filepath.Join(shared.Root, "artifacts/deploy")
	own := t.TempDir()
	if err := os.CopyFS(filepath.Join(own, "deploy"), os.DirFS(deploy)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "kustomization.yaml"), []byte(userOverlay), 0o600); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{"single": deploy, "user's": own}
	for _, name := range []string{"local", "ha", "local-ha"} {
		found[name] = filepath.Join(deploy, name)
	}
	return found
}

func TestOverlaysAreValid(t *testing.T) {
	t.Parallel()
	for name, dir := range overlays(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}, Items: build(t, dir)}
			for _, o := range list.Items {
				if o.GetKind() == "Service" && o.GetName() == harness.ServiceName {
					o.SetName("another") // the tests' own has led it elsewhere
				}
			}
			out := mustKubectl(t, encode(t, list), "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
			if !strings.Contains(out, "apiservice.apiregistration.k8s.io/v1alpha1.rukpak.io") {
				t.Errorf("kubectl says:\n%s", out)
			}
		})
	}
}

func TestExamplesAreValid(t *testing.T) {
	t.Parallel()
	examples := filepath.Join(shared.Root, "artifacts/examples")
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}
	files := 0
	err := filepath.WalkDir(examples, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		files++
		for _, o := range objectsOf(t, must(os.ReadFile(path))(t)) {
			// The service account of a pod has to be there, which a dry run does not make. A node runs that pod in another test.
			if o.GetKind() != "Pod" {
				list.Items = append(list.Items, o)
			}
		}
		return nil
	})
	if err != nil || files == 0 {
		t.Fatalf("%d files: %v", files, err)
	}
	mustKubectl(t, encode(t, list), "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
}

// build returns what an overlay is made of.
func build(t *testing.T, dir string) []unstructured.Unstructured {
	t.Helper()
	return objectsOf(t, []byte(mustKubectl(t, "", "kustomize", dir)))
}

// objectsOf returns the objects of a file of YAML.
func objectsOf(t *testing.T, raw []byte) []unstructured.Unstructured {
	t.Helper()
	var objects []unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	for {
		var o unstructured.Unstructured
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
}

// find converts the one object of a kind and name.
func find[T any](t *testing.T, objects []unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() != kind || o.GetName() != name {
			continue
		}
		into := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into); err != nil {
			t.Fatal(err)
		}
		return into
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

func environment(c corev1.Container, name string) *corev1.EnvVar {
	i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
	if i < 0 {
		return &corev1.EnvVar{}
	}
	return &c.Env[i]
}

// TestPrioritiesHaveAQuota looks whether pods are admitted where the priority classes of the system are limited to namespaces with
// a quota for them.
func TestPrioritiesHaveAQuota(t *testing.T) {
	t.Parallel()
	for name, dir := range overlays(t) {
		objects := build(t, dir)
		quota := find[corev1.ResourceQuota](t, objects, "ResourceQuota", "rukpak-critical-pods")
		scope := quota.Spec.ScopeSelector.MatchExpressions[0]
		for _, o := range objects {
			class, _, _ := unstructured.NestedString(o.Object, "spec", "template", "spec", "priorityClassName")
			covered := quota.Namespace == o.GetNamespace() && scope.ScopeName == corev1.ResourceQuotaScopePriorityClass && slices.Contains(scope.Values, class)
			if class != "" && !covered {
				t.Errorf("%s: %s %s has the priority %s, which no quota allows", name, o.GetKind(), o.GetName(), class)
			}
		}
	}
}

func TestImageIsNamedOnce(t *testing.T) {
	t.Parallel()
	const image = "registry.example/rukpak-apiserver:v7"
	server := find[appsv1.Deployment](t, build(t, overlays(t)["user's"]), "Deployment", "rukpak-apiserver").Spec.Template.Spec.Containers[0]
	if server.Image != image || environment(server, "UNPACK_IMAGE").Value != image {
		t.Errorf("the server runs %s, and unpacks with %s", server.Image, environment(server, "UNPACK_IMAGE").Value)
	}
}

func TestBucketTakesThePlaceOfEtcd(t *testing.T) {
	t.Parallel()
	dirs := overlays(t)
	for name, want := range map[string]corev1.EnvVar{
		"ha": {Name: "CONTENT_STORE", Value: "etcd:?capacity=1Gi"},
		"user's": {Name: "CONTENT_STORE", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "rukpak-content-store"}, Key: "CONTENT_STORE",
		}}},
	} {
		server := find[appsv1.Deployment](t, build(t, dirs[name]), "Deployment", "rukpak-apiserver").Spec.Template.Spec.Containers[0]
		if !slices.Contains(server.Args, "--content-store=default=$(CONTENT_STORE)") {
			t.Errorf("%s: the server runs with %v", name, server.Args)
		}
		if got := environment(server, "CONTENT_STORE"); encode(t, got) != encode(t, want) {
			t.Errorf("%s: content is in %s", name, encode(t, got))
		}
	}
}

// TestHighlyAvailable looks at what parts of the overlay say of each other.
func TestHighlyAvailable(t *testing.T) {
	t.Parallel()
	objects := build(t, overlays(t)["ha"])
	server := find[appsv1.Deployment](t, objects, "Deployment", "rukpak-apiserver")
	etcd := find[appsv1.StatefulSet](t, objects, "StatefulSet", "rukpak-etcd")
	for _, o := range objects {
		if o.GetKind() == "StatefulSet" && o.GetName() == "rukpak-apiserver" {
			t.Error("the server is a StatefulSet too")
		}
	}
	if *server.Spec.Replicas < 2 || *etcd.Spec.Replicas != 3 {
		t.Errorf("%d replicas and %d members of etcd", *server.Spec.Replicas, *etcd.Spec.Replicas)
	}
	for _, v := range server.Spec.Template.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			t.Errorf("replicas share the volume %s", v.Name)
		}
	}
	for name, template := range map[string]corev1.PodTemplateSpec{"rukpak-apiserver": server.Spec.Template, "rukpak-etcd": etcd.Spec.Template} {
		budget := find[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget", name)
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		if !selector.Matches(labels.Set(template.Labels)) || budget.Spec.MaxUnavailable.IntValue() != 1 {
			t.Errorf("%s is not guarded by its PodDisruptionBudget", name)
		}
		if template.Spec.PriorityClassName != "system-cluster-critical" || template.Spec.Affinity == nil || template.Spec.Affinity.PodAntiAffinity == nil {
			t.Errorf("%s has no priority, or does not spread", name)
		}
	}
}

// TestMembersJoinWithoutANewTemplate looks whether a member that lost its volume can join again without a change of the template, at
// which the controller would restart members whichever of them are well.
func TestMembersJoinWithoutANewTemplate(t *testing.T) {
	t.Parallel()
	etcd := find[appsv1.StatefulSet](t, build(t, overlays(t)["ha"]), "StatefulSet", "rukpak-etcd").Spec.Template.Spec.Containers[0]
	for _, arg := range etcd.Args {
		if strings.HasPrefix(arg, "--initial-cluster-state") {
			t.Errorf("the flag %s wins over the environment", arg)
		}
	}
	from := environment(etcd, "ETCD_INITIAL_CLUSTER_STATE").ValueFrom
	if from == nil || from.ConfigMapKeyRef == nil || from.ConfigMapKeyRef.Optional == nil || !*from.ConfigMapKeyRef.Optional {
		t.Errorf("the state is not from a ConfigMap that may be missing: %s", encode(t, from))
	}
}

// TestBackupFitsEtcd looks whether the examples that save etcd and put it back are about the etcd of the overlay.
func TestBackupFitsEtcd(t *testing.T) {
	t.Parallel()
	objects := build(t, overlays(t)["ha"])
	etcd := find[appsv1.StatefulSet](t, objects, "StatefulSet", "rukpak-etcd")
	example := func(name string) []unstructured.Unstructured {
		raw := must(os.ReadFile(filepath.Join(shared.Root, "artifacts/examples", name)))(t)
		return objectsOf(t, bytes.ReplaceAll(raw, []byte("rukpak-etcd-n"), []byte("rukpak-etcd-2")))
	}
	backup := find[batchv1.CronJob](t, example("etcd-backup.yaml"), "CronJob", "rukpak-etcd-backup").Spec.JobTemplate.Spec.Template
	restore := find[batchv1.Job](t, example("etcd-restore.yaml"), "Job", "restore-rukpak-etcd-2").Spec.Template
	member := etcd.Spec.Template.Spec.Containers[0]
	for name, pod := range map[string]corev1.PodTemplateSpec{"backup": backup, "restore": restore} {
		if image := pod.Spec.Containers[0].Image; image != member.Image {
			t.Errorf("%s runs %s, and etcd %s", name, image, member.Image)
		}
	}
	policy := find[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", "rukpak-etcd")
	if !slices.ContainsFunc(policy.Spec.Ingress, func(rule networkingv1.NetworkPolicyIngressRule) bool {
		return rule.Ports[0].Port.StrVal == "client" && slices.ContainsFunc(rule.From, func(peer networkingv1.NetworkPolicyPeer) bool {
			return labels.SelectorFromSet(peer.PodSelector.MatchLabels).Matches(labels.Set(backup.Labels))
		})
	}) {
		t.Errorf("pods with the labels %v may not connect", backup.Labels)
	}
	args := restore.Spec.Containers[0].Args
	for _, flag := range []string{"--data-dir=", "--initial-cluster=", "--initial-cluster-token="} {
		i := slices.IndexFunc(member.Args, func(arg string) bool { return strings.HasPrefix(arg, flag) })
		if !slices.Contains(args, member.Args[i]) {
			t.Errorf("it is restored with %v, and etcd runs with %s", args, member.Args[i])
		}
	}
	claim := find[corev1.PersistentVolumeClaim](t, example("etcd-restore.yaml"), "PersistentVolumeClaim", etcd.Spec.VolumeClaimTemplates[0].Name+"-rukpak-etcd-2")
	if encode(t, claim.Spec) != encode(t, etcd.Spec.VolumeClaimTemplates[0].Spec) {
		t.Errorf("the claim is %s", encode(t, claim.Spec))
	}
}

// TestCertificatesOfEtcdFit makes the certificates as the Job does, with the permissions that it has, and looks
// whether the members' names are theirs, and every Secret that a pod mounts is made.
func TestCertificatesOfEtcdFit(t *testing.T) {
	t.Parallel()
	dir := overlays(t)["ha"]
	objects := build(t, dir)
	// The Role and its binding alone; the rest of the overlay needs nodes.
	mustKubectl(t, "", "apply", "--server-side", "-f", filepath.Join(dir, "etcd/certs-rbac.yaml"))
	client := must(shared.As(t.Context(), harness.SystemNamespace, "rukpak-etcd-certs"))(t)
	config := etcdcerts.Config{Namespace: harness.SystemNamespace, Name: "rukpak-etcd", ClusterDomain: "cluster.local"}
	eventually(t, "the role is in force", func() string {
		_, err := etcdcerts.Ensure(t.Context(), client, config, time.Now())
		return problem(err)
	})
	if written := must(etcdcerts.Ensure(t.Context(), client, config, time.Now().AddDate(0, 0, 80)))(t); len(written) != 3 {
		t.Errorf("after eighty days it renews %v", written)
	}
	etcd := find[appsv1.StatefulSet](t, objects, "StatefulSet", "rukpak-etcd")
	server := find[appsv1.Deployment](t, objects, "Deployment", "rukpak-apiserver")
	for _, v := range slices.Concat(etcd.Spec.Template.Spec.Volumes, server.Spec.Template.Spec.Volumes) {
		if v.Secret == nil {
			continue
		}
		if _, err := shared.Kube.CoreV1().Secrets(harness.SystemNamespace).Get(t.Context(), v.Secret.SecretName, metav1.GetOptions{}); err != nil {
			t.Errorf("volume %s: %v", v.Name, err)
		}
	}
	secret := must(shared.Kube.CoreV1().Secrets(harness.SystemNamespace).Get(t.Context(), "rukpak-etcd-server", metav1.GetOptions{}))(t)
	leaf := must(tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]))(t).Leaf
	for url := range strings.SplitSeq(environment(server.Spec.Template.Spec.Containers[0], "ETCD_SERVERS").Value, ",") {
		host := strings.TrimSuffix(strings.TrimPrefix(url, "https://"), ":2379")
		if err := leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
}
