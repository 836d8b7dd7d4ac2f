// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

const (
	// queueVariable says how many bundles wait at once. Without it that is not measured: 10,000 take a quarter of an hour.
	queueVariable = "RUKPAK_BENCH_QUEUE"
	// queueNamespaces is how many namespaces they are in.
	queueNamespaces = 10
	// queueTime is how long the server is watched meanwhile.
	queueTime = 2 * time.Minute
	// queuePatience is how long all of them may take to be gone.
	queuePatience = 20 * time.Minute
)

// queueFigures are what many more bundles cost than there are places for, and what is left of them when they are deleted.
func (s *scope) queueFigures() []figure {
	s.Helper()
	text := os.Getenv(queueVariable)
	if text == "" {
		return nil
	}
	count, err := strconv.Atoi(text)
	if err != nil || count < queueNamespaces {
		s.Fatalf("%s: %q is no number of bundles", queueVariable, text)
	}
	image := s.push("queue", v1.Config{}, file{"manifests/one", 0o644, []byte("one")})
	namespaces := s.queueNamespaces()
	start := time.Now()
	s.parallel(count, func(i int) error {
		_, err := s.rukpak.RukpakV1alpha1().Bundles(namespaces[i%len(namespaces)]).Create(s.Context(), &v1alpha1.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("queued-%05d", i)},
			Spec: v1alpha1.BundleSpec{ProvisionerClassName: s.class, Source: v1alpha1.BundleSource{
				Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ImageSource{Reference: image},
			}},
		}, metav1.CreateOptions{})
		return err
	})
	made := time.Since(start)

	waiting, revision, cpu := s.number("rukpak_unpack_waiting"), s.revision(), s.number("process_cpu_seconds_total")
	most := s.peak(func() { time.Sleep(queueTime) })
	writes := float64(s.revision()-revision) / queueTime.Seconds()
	cpu = (s.number("process_cpu_seconds_total") - cpu) / queueTime.Seconds()
	done := (waiting - s.number("rukpak_unpack_waiting")) / queueTime.Seconds()

	start = time.Now()
	for _, ns := range namespaces {
		// So many take longer than a request has; each goes on where the one before it was.
		for {
			err := s.rukpak.RukpakV1alpha1().Bundles(ns).DeleteCollection(s.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
			if err == nil {
				break
			}
			if !apierrors.IsTimeout(err) {
				s.Fatal(err)
			}
		}
	}
	s.nothingIn(namespaces)
	gone := time.Since(start)
	one := func(name, unit string, v float64) figure {
		return figure{Name: fmt.Sprintf("%d bundles in %d namespaces: %s", count, queueNamespaces, name), Unit: unit, Ours: over([]float64{v})}
	}
	return []figure{
		one("to make them", "s", made.Seconds()),
		one("that wait then", "", waiting),
		one("that leave the queue", "1/s", done),
		one("writes to etcd meanwhile", "1/s", writes),
		one("CPU of the server meanwhile", "cores", cpu),
		one("memory of the server at most (RSS)", "MiB", most),
		one("from the order to delete them until they and their pods are gone", "s", gone.Seconds()),
		one("memory of the server after that (RSS)", "MiB", s.residentMemory()),
	}
}

func (s *scope) queueNamespaces() []string {
	s.Helper()
	var names []string
	namespaces := s.kube.CoreV1().Namespaces()
	for i := range queueNamespaces {
		name := fmt.Sprintf("%s-%d", s.ns, i)
		_, err := namespaces.Create(s.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		s.must(err)
		s.cleanup("namespace "+name, func(ctx context.Context) error { return namespaces.Delete(ctx, name, metav1.DeleteOptions{}) })
		s.eventually("the default service account of "+name, func() error {
			_, err := s.kube.CoreV1().ServiceAccounts(name).Get(s.Context(), "default", metav1.GetOptions{})
			return err
		})
		names = append(names, name)
	}
	return names
}

// number is the value of a metric that has no labels and has to be there.
func (s *scope) number(name string) float64 {
	s.Helper()
	v, err := s.metric(name)
	s.must(err)
	return v
}

// revision is that of the server's etcd, which grows by one with each write.
func (s *scope) revision() int64 {
	s.Helper()
	list, err := s.rukpak.RukpakV1alpha1().ProvisionerClasses().List(s.Context(), metav1.ListOptions{Limit: 1})
	s.must(err)
	n, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	s.must(err)
	return n
}

// nothingIn waits until namespaces have no bundles and no pods, and nobody waits in the queue.
func (s *scope) nothingIn(namespaces []string) {
	s.Helper()
	left := ""
	err := wait.PollUntilContextTimeout(s.Context(), time.Second, queuePatience, true, func(ctx context.Context) (bool, error) {
		for _, ns := range namespaces {
			bundles, err := s.rukpak.RukpakV1alpha1().Bundles(ns).List(ctx, metav1.ListOptions{Limit: 1})
			if err != nil || len(bundles.Items) > 0 {
				left = fmt.Sprintf("bundles in %s (%v)", ns, err)
				return false, nil
			}
			pods, err := s.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{Limit: 1})
			if err != nil || len(pods.Items) > 0 {
				left = fmt.Sprintf("pods in %s (%v)", ns, err)
				return false, nil
			}
		}
		waiting, err := s.metric("rukpak_unpack_waiting")
		left = fmt.Sprintf("%v wait (%v)", waiting, err)
		return err == nil && waiting == 0, nil
	})
	if err != nil {
		s.Fatalf("left are %s: %v", left, err)
	}
}
