// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// cniResults is where the runtime's network plugins leave what they gave to a pod.
const cniResults = "/var/lib/cni/results"

// podCauses are those that end a pod which has a node.
func podCauses() []cause {
	return []cause{
		{name: "server unreachable", reason: v1alpha1.ReasonServerUnreachable, words: []string{"cannot reach the server", "NetworkPolicy", "dial tcp", "tried for"}, arrange: serverUnreachable},
		{name: "node lost", reason: v1alpha1.ReasonNodeLost, words: []string{"node was lost", "taint"}, arrange: nodeLost},
		{name: "out of memory", reason: v1alpha1.ReasonOutOfMemory, words: []string{"needs more memory than unpack.podTemplate.resources of the class"}, arrange: outOfMemory},
		{name: "deadline", reason: v1alpha1.ReasonDeadlineExceeded, words: []string{"not done within the 4s"}, arrange: deadline},
		{name: "preempted", reason: v1alpha1.ReasonPreempted, words: []string{"higher priority"}, arrange: preempted},
		{name: "evicted", reason: v1alpha1.ReasonEvicted, words: []string{"the pod was evicted"}, arrange: heldAnd(evictThroughAPI)},
		{name: "deleted by hand", reason: v1alpha1.ReasonPodDeleted, words: []string{"deleted before it was done"}, arrange: heldAnd(func(p *plight, pod *corev1.Pod) {
			p.must(p.kube.CoreV1().Pods(p.ns).Delete(p.ctx, pod.Name, metav1.DeleteOptions{}))
		})},
	}
}

// hold makes app of an image that the registry keeps the node waiting for, until it is let go.
func (p *plight) hold(change func(*v1alpha1.ProvisionerClass)) (class string, letGo func()) {
	p.Helper()
	g := p.gate("127.0.0.1:0", nil)
	digest, _ := p.pushImage(g.host, "v1", p.image(p.tree.archive(), v1.Config{}))
	released := make(chan struct{})
	g.close(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-released:
			g.next.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
	class = p.patient(change)
	p.bundle("app", class, digest)
	return class, func() { close(released) }
}

// onNode waits until the pod of app has a node.
func (p *plight) onNode() *corev1.Pod {
	p.Helper()
	var found *corev1.Pod
	p.eventually("the pod has a node", func() error {
		b, err := p.api().Get(p.ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if b.Status.Unpack == nil || b.Status.Unpack.PodUID == "" {
			return fmt.Errorf("there is no pod: %s", said(b))
		}
		found, err = p.kube.CoreV1().Pods(p.ns).Get(p.ctx, b.Status.Unpack.PodName, metav1.GetOptions{})
		if err == nil && found.Spec.NodeName == "" {
			err = fmt.Errorf("pod %s has none", found.Name)
		}
		return err
	})
	return found
}

// heldAnd does something to a pod that is on a node and waits for its image.
func heldAnd(do func(*plight, *corev1.Pod)) func(*plight) func() {
	return func(p *plight) func() {
		_, letGo := p.hold(nil)
		do(p, p.onNode())
		return letGo
	}
}

func evictThroughAPI(p *plight, pod *corev1.Pod) {
	p.must(p.kube.PolicyV1().Evictions(p.ns).Evict(p.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: p.ns}}))
}

func deadline(p *plight) func() {
	_, letGo := p.hold(func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{TimeoutSeconds: ptr.To[int32](4)}
	})
	return letGo
}

func outOfMemory(p *plight) func() {
	digest, _ := p.push("v1", p.tree)
	class := p.patient(limited("1Mi"))
	p.bundle("app", class, digest)
	return func() { p.updateClass(class, limited("100Mi")) }
}

// preempted starts a pod of higher priority that goes to no node where the unpack pod is.
func preempted(p *plight) func() {
	const label = "e2e.rukpak.io/preempted"
	_, err := p.kube.SchedulingV1().PriorityClasses().Create(p.ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: p.ns}, Value: 1000}, metav1.CreateOptions{})
	p.must(err)
	p.Cleanup(func() {
		after, cancel := p.afterwards()
		defer cancel()
		after.must(after.kube.SchedulingV1().PriorityClasses().Delete(after.ctx, p.ns, metav1.DeleteOptions{}))
	})
	_, letGo := p.hold(func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{PodTemplate: &v1alpha1.UnpackPodTemplate{Labels: map[string]string{label: "true"}}}
	})
	p.onNode()
	higher := idlePod("higher")
	higher.Spec.PriorityClassName = p.ns
	higher.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: "true"}}, TopologyKey: corev1.LabelHostname,
	}}}}
	_, err = p.kube.CoreV1().Pods(p.ns).Create(p.ctx, higher, metav1.CreateOptions{})
	p.must(err)
	return func() {
		p.must(p.kube.CoreV1().Pods(p.ns).Delete(p.ctx, higher.Name, metav1.DeleteOptions{}))
		letGo()
	}
}

// nodeLost makes a node that nobody runs, which takes the pod, and says of it that it is out of service. The
// cluster's own controllers do the rest.
func nodeLost(p *plight) func() {
	const label = "e2e.rukpak.io/ghost"
	digest, _ := p.push("v1", p.tree)
	nodes := p.kube.CoreV1().Nodes()
	// By its name it comes after the real one, which other tests take to be the first.
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "z-" + p.ns, Labels: map[string]string{
			corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH, corev1.LabelHostname: "z-" + p.ns, label: p.ns,
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: label, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("10")},
		},
	}
	node.Status.Capacity = node.Status.Allocatable
	_, err := nodes.Create(p.ctx, node, metav1.CreateOptions{})
	p.must(err)
	p.Cleanup(func() {
		after, cancel := p.afterwards()
		defer cancel()
		after.must(ignoreNotFound(after.kube.CoreV1().Nodes().Delete(after.ctx, node.Name, metav1.DeleteOptions{})))
	})
	class := p.patient(func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{PodTemplate: &v1alpha1.UnpackPodTemplate{
			NodeSelector: map[string]string{label: p.ns},
			Tolerations:  []v1alpha1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
		}}
	})
	p.bundle("app", class, digest)
	lost := p.onNode()
	p.patchNode(node.Name, []corev1.Taint{
		{Key: label, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute},
	})
	return func() {
		p.updateClass(class, func(c *v1alpha1.ProvisionerClass) { c.Unpack = nil })
		// What the node would do: nobody else ends the pods that it has.
		list, err := p.kube.CoreV1().Pods(p.ns).List(p.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + lost.Spec.NodeName})
		p.must(err)
		for _, pod := range list.Items {
			p.must(ignoreNotFound(p.kube.CoreV1().Pods(p.ns).Delete(p.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})))
		}
	}
}

func (s *scope) patchNode(name string, taints []corev1.Taint) {
	s.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	s.must(err)
	_, err = s.kube.CoreV1().Nodes().Patch(s.ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	s.must(err)
}

// serverUnreachable drops what the pod sends, as the firewall of a node does that enforces a NetworkPolicy
// without egress. The pod has its address before its image comes, which the registry holds back for so long.
func serverUnreachable(p *plight) func() {
	_, letGo := p.hold(func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{TimeoutSeconds: ptr.To[int32](60)}
	})
	address := p.address(p.onNode().Name)
	table := "e2e-" + p.ns
	p.nft(fmt.Sprintf("table ip %s { chain unwanted { type filter hook prerouting priority -300; ip saddr %s drop; }; }", table, address))
	lift := func(s *scope) { s.nft(fmt.Sprintf("add table ip %[1]s; delete table ip %[1]s", table)) }
	p.Cleanup(func() {
		after, cancel := p.afterwards()
		defer cancel()
		lift(after)
	})
	letGo()
	return func() { lift(p.scope) }
}

func (s *scope) nft(rules string) {
	s.Helper()
	cmd := exec.CommandContext(s.ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("nft: %v: %s", err, out)
	}
}

// address waits for the address that a pod was given, which the node tells the cluster of only later.
func (p *plight) address(podName string) string {
	p.Helper()
	var address string
	p.within(time.Minute, "the pod has an address", func() error {
		results, err := filepath.Glob(filepath.Join(cniResults, "*"))
		if err != nil {
			return err
		}
		for _, file := range results {
			data, err := os.ReadFile(file)
			if err != nil {
				continue // of a pod that has just gone
			}
			var cached struct {
				Args   [][2]string `json:"cniArgs"`
				Result struct {
					IPs []struct {
						Address string `json:"address"`
					} `json:"ips"`
				} `json:"result"`
			}
			if json.Unmarshal(data, &cached) != nil || len(cached.Result.IPs) == 0 {
				continue // it is being written
			}
			given, err := netip.ParsePrefix(cached.Result.IPs[0].Address)
			if err != nil || given.Addr().IsLoopback() || !slices.Contains(cached.Args, [2]string{"K8S_POD_NAME", podName}) {
				continue // every pod has its own loopback, too, which is everybody's
			}
			address = given.Addr().String()
			return nil
		}
		return fmt.Errorf("none of the %d in %s is of pod %s", len(results), cniResults, podName)
	})
	return address
}
