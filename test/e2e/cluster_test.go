// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

const (
	// interval is the pause between two looks at a condition.
	interval = 100 * time.Millisecond
	// patience is how long a condition may take on a machine that is busy.
	patience = 2 * time.Minute
)

// scope is what one test has of the cluster: clients of its administrator, and a
// namespace of its own, which enforces the restricted Pod Security Standard.
type scope struct {
	*testing.T
	ctx     context.Context
	config  *rest.Config
	kube    kubernetes.Interface
	bundles versioned.Interface
	ns      string
}

// begin makes a scope, which goes when the test ends.
func begin(t *testing.T) *scope {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1 // nothing is to be measured through a client's own brakes
	s := &scope{T: t, ctx: t.Context(), config: config, ns: "e2e-" + rand.String(8)}
	if s.kube, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if s.bundles, err = versioned.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	s.makeNamespace(s.ns)
	return s
}

// makeNamespace makes a namespace in which pods are admitted, for as long as the test runs.
func (s *scope) makeNamespace(name string) {
	s.Helper()
	s.must(s.create("namespace "+name, func() error {
		_, err := s.kube.CoreV1().Namespaces().Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"},
			Annotations: map[string]string{"e2e.rukpak.io/test": s.Name()},
		}}, metav1.CreateOptions{})
		return err
	}))
	s.Cleanup(func() {
		if s.Failed() {
			s.explain(name)
		}
		s, cancel := s.afterwards()
		defer cancel()
		if err := s.kube.CoreV1().Namespaces().Delete(s.ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.Errorf("delete namespace %s: %v", name, err)
		}
	})
	s.eventually("the default service account of "+name, func() error {
		_, err := s.kube.CoreV1().ServiceAccounts(name).Get(s.ctx, "default", metav1.GetOptions{})
		return err
	})
}

// afterwards is the scope for what is done when the test has ended.
func (s *scope) afterwards() (*scope, context.CancelFunc) {
	after := *s
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), patience)
	after.ctx = ctx
	return &after, cancel
}

// explain logs what a namespace looks like, for whoever has to find out why a test failed.
func (s *scope) explain(namespace string) {
	for _, args := range [][]string{
		{"get", "bundles", "-o", "yaml", "--show-managed-fields=false"},
		{"get", "pods", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
	} {
		out, err := exec.Command("kubectl", append([]string{"-n", namespace}, args...)...).CombinedOutput()
		s.Logf("kubectl -n %s %s: %v\n%s", namespace, strings.Join(args, " "), err, out)
	}
}

func (s *scope) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// eventually waits until there is no error any more.
func (s *scope) eventually(what string, f func() error) {
	s.Helper()
	s.within(patience, what, f)
}

func (s *scope) within(limit time.Duration, what string, f func() error) {
	s.Helper()
	var last error
	err := wait.PollUntilContextTimeout(s.ctx, interval, limit, true, func(context.Context) (bool, error) {
		err := f()
		if final := (*finalError)(nil); errors.As(err, &final) {
			return false, err
		}
		if err != nil {
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		s.Fatalf("%s: %v: %v", what, err, last)
	}
}

// finalError ends a wait that has become vain.
type finalError struct{ error }

func (f *finalError) Unwrap() error { return f.error }

func final(format string, args ...any) error { return &finalError{fmt.Errorf(format, args...)} }

// passing tells whether an error says no more than that somebody is away for the moment: the
// server may be rolled or killed while tests that do not care run.
func passing(err error) bool {
	var network net.Error
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err) || utilnet.IsConnectionRefused(err) ||
		utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) || errors.Is(err, syscall.EPIPE) || errors.As(err, &network)
}

// retry repeats a request while its error is passing.
func (s *scope) retry(f func() error) error {
	var last error
	err := wait.PollUntilContextTimeout(s.ctx, interval, patience, true, func(context.Context) (bool, error) {
		last = f()
		return last == nil || !passing(last), nil
	})
	if last == nil {
		return err
	}
	return last
}

// create repeats a request that makes something. When an answer was lost, that it exists is the answer.
func (s *scope) create(what string, f func() error) error {
	repeated := false
	err := s.retry(func() error {
		err := f()
		if repeated && apierrors.IsAlreadyExists(err) {
			return nil
		}
		repeated = true
		return err
	})
	if err != nil {
		return fmt.Errorf("create %s: %w", what, err)
	}
	return nil
}

// kubectl runs kubectl in the namespace, with what it is to read, and returns what it prints.
func (s *scope) kubectl(stdin string, args ...string) string {
	s.Helper()
	out, err := s.tryKubectl(stdin, args...)
	s.must(err)
	return out
}

func (s *scope) tryKubectl(stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.ctx, "kubectl", append([]string{"-n", s.ns}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, problems.String())
	}
	return out.String(), nil
}

// podLog remembers every unpack pod of a namespace, in each state that was seen.
type podLog struct {
	mu     sync.Mutex
	states []*corev1.Pod
	gone   map[string]bool // by name
}

// recordPods begins to remember the unpack pods of the namespace.
func (s *scope) recordPods() *podLog {
	s.Helper()
	log := &podLog{gone: map[string]bool{}}
	factory := informers.NewSharedInformerFactoryWithOptions(s.kube, 0, informers.WithNamespace(s.ns),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = pod.LabelManagedBy + "=" + pod.ManagedBy }))
	informer := factory.Core().V1().Pods().Informer()
	add := func(obj any) {
		log.mu.Lock()
		defer log.mu.Unlock()
		log.states = append(log.states, obj.(*corev1.Pod))
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, obj any) { add(obj) },
		DeleteFunc: func(obj any) {
			if p, ok := obj.(*corev1.Pod); ok {
				log.mu.Lock()
				defer log.mu.Unlock()
				log.gone[p.Name] = true
			}
		},
	})
	s.must(err)
	factory.Start(s.ctx.Done())
	factory.WaitForCacheSync(s.ctx.Done())
	return log
}

// all returns the states seen so far, oldest first.
func (l *podLog) all() []*corev1.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*corev1.Pod(nil), l.states...)
}

func (l *podLog) isGone(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone[name]
}

// noPods waits until no unpack pod is left in the namespace.
func (s *scope) noPods() {
	s.Helper()
	s.eventually("the unpack pods are gone", func() error {
		list, err := s.kube.CoreV1().Pods(s.ns).List(s.ctx, metav1.ListOptions{LabelSelector: pod.LabelManagedBy + "=" + pod.ManagedBy})
		if err != nil {
			return err
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("pod %s and %d more are there", list.Items[0].Name, len(list.Items)-1)
		}
		return nil
	})
}
