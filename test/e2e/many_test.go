// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/informers/externalversions"
)

// manyVariable makes TestManyAtOnce one of 200 bundles: from 20 images in 10 namespaces, 150 of them in one.
const manyVariable = "RUKPAK_MANY"

// crowd is how many bundles there are at once, and where.
type crowd struct {
	images, namespaces int
	inFirst, inOthers  int
	// restart has the server end, and begin again with all of them.
	restart bool
}

func theCrowd(t *testing.T) crowd {
	t.Helper()
	text := os.Getenv(manyVariable)
	if text == "" {
		return crowd{images: 6, namespaces: 4, inFirst: 15, inOthers: 3}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 40 {
		t.Fatalf("%s: %q is no number of at least 40", manyVariable, text)
	}
	others := n / 4 / 9
	return crowd{images: n / 10, namespaces: 10, inFirst: n - 9*others, inOthers: others, restart: true}
}

// TestManyAtOnce makes many bundles at once, most of them in one namespace, and first there. All get ready with what they are
// to hold; those of the other namespaces do not stand behind the large one's; bundles share pods; and then nothing goes on.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s, c := begin(t), theCrowd(t)
	class := s.class("many", v1alpha1.ProvisionerRaw, nil)
	scopes := []*scope{s}
	for i := 1; i < c.namespaces; i++ {
		other := *s
		other.ns = fmt.Sprintf("%s-%d", s.ns, i)
		other.makeNamespace(other.ns)
		scopes = append(scopes, &other)
	}
	trees, references := make([]files, c.images), make([]string, c.images)
	for i := range trees {
		trees[i] = small(fmt.Sprint(s.ns, "-", i))
		references[i], _ = s.push(fmt.Sprint("many-", i), trees[i])
	}
	log := s.recordBundles(class)
	pods := make([]*podLog, len(scopes))
	for i := range scopes {
		pods[i] = scopes[i].recordPods()
	}

	began := time.Now()
	total := s.crowdIn(scopes, c, class, references)
	s.within(patience*time.Duration(1+total/40), "all bundles are ready", func() error {
		if ready := len(log.ready()); ready < total {
			return fmt.Errorf("%d of %d are", ready, total)
		}
		return nil
	})
	s.Logf("%d bundles took %v", total, time.Since(began).Round(100*time.Millisecond))
	for i, sub := range scopes {
		sub.noPods()
		for n := range c.in(i) {
			name := fmt.Sprintf("b-%03d", n)
			sub.holds(sub.unpacked(name), trees[(i+n)%c.images])
		}
	}
	made := 0
	for _, l := range pods {
		made += len(distinct(l.all()))
	}
	s.Logf("%d pods for %d bundles", made, total)
	if made > total/2 {
		t.Errorf("%d bundles of one kind took %d pods", total, made)
	}
	log.fair(s.ns, c)
	if c.restart {
		s.restartChangesNothing(log, pods)
	}
}

// in is how many bundles the i-th namespace has.
func (c crowd) in(i int) int {
	if i == 0 {
		return c.inFirst
	}
	return c.inOthers
}

// crowdIn makes the bundles, those of the first namespace first, and returns how many they are.
func (s *scope) crowdIn(scopes []*scope, c crowd, class string, references []string) int {
	s.Helper()
	type one struct {
		ns, name, reference string
	}
	var all []one
	for i, sub := range scopes {
		for n := range c.in(i) {
			all = append(all, one{sub.ns, fmt.Sprintf("b-%03d", n), references[(i+n)%len(references)]})
		}
	}
	next := make(chan one)
	var makers sync.WaitGroup
	for range 16 {
		makers.Go(func() {
			for o := range next {
				err := s.create("bundle "+o.ns+"/"+o.name, func() error {
					_, err := s.bundles.RukpakV1alpha1().Bundles(o.ns).Create(s.ctx, &v1alpha1.Bundle{
						ObjectMeta: metav1.ObjectMeta{Namespace: o.ns, Name: o.name},
						Spec: v1alpha1.BundleSpec{ProvisionerClassName: class, Source: v1alpha1.BundleSource{
							Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ImageSource{Reference: o.reference},
						}},
					}, metav1.CreateOptions{})
					return err
				})
				if err != nil {
					s.Error(err)
				}
			}
		})
	}
	for _, o := range all {
		next <- o
	}
	close(next)
	makers.Wait()
	return len(all)
}

// bundleLog remembers the order in which bundles of a class got ready, and how often each was written.
type bundleLog struct {
	*testing.T
	mu       sync.Mutex
	order    []cache.ObjectName
	versions map[cache.ObjectName]string
}

func (s *scope) recordBundles(class string) *bundleLog {
	s.Helper()
	log := &bundleLog{T: s.T, versions: map[cache.ObjectName]string{}}
	factory := externalversions.NewSharedInformerFactory(s.bundles, 0)
	informer := factory.Rukpak().V1alpha1().Bundles().Informer()
	look := func(obj any) {
		b := obj.(*v1alpha1.Bundle)
		if b.Spec.ProvisionerClassName != class {
			return
		}
		name := cache.MetaObjectToName(b)
		log.mu.Lock()
		defer log.mu.Unlock()
		if _, seen := log.versions[name]; !seen || b.Status.Phase != v1alpha1.BundleUnpacked {
			log.versions[name] = ""
		}
		if b.Status.Phase == v1alpha1.BundleUnpacked {
			if log.versions[name] == "" {
				log.order = append(log.order, name)
			}
			log.versions[name] = b.ResourceVersion
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) }})
	s.must(err)
	ctx, stop := context.WithCancel(s.ctx)
	s.Cleanup(stop)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return log
}

// ready are the bundles that are ready, in the order in which they were.
func (l *bundleLog) ready() []cache.ObjectName {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]cache.ObjectName(nil), l.order...)
}

// fair checks that the bundles of the other namespaces did not stand behind those of the first one, which were made
// before them: if all stood in one line, none of them would be ready before the last but few of the first one's.
func (l *bundleLog) fair(first string, c crowd) {
	l.Helper()
	before, of := 0, 0
	ofFirst := 0
	for _, name := range l.ready() {
		if name.Namespace == first {
			ofFirst++
			continue
		}
		of++
		if ofFirst < c.inFirst*3/4 {
			before++
		}
	}
	l.Logf("%d of %d bundles of the other namespaces were ready before three quarters of the first one's %d", before, of, c.inFirst)
	if c.restart && before < of*3/4 {
		l.Errorf("bundles of small namespaces stand behind those of a large one: %d of %d were ready before three quarters of its %d", before, of, c.inFirst)
	}
}

// restartChangesNothing kills the server and checks that its successor does nothing about bundles that are ready.
func (s *scope) restartChangesNothing(log *bundleLog, pods []*podLog) {
	s.Helper()
	before := map[cache.ObjectName]string{}
	log.mu.Lock()
	for name, version := range log.versions {
		before[name] = version
	}
	log.mu.Unlock()
	seen := 0
	for _, l := range pods {
		seen += len(l.all())
	}
	pid, err := s.process()
	s.must(err)
	s.must(syscall.Kill(pid, syscall.SIGTERM))
	s.eventually("another server runs", func() error {
		now, err := s.process()
		if err == nil && now == pid {
			err = fmt.Errorf("process %d is there", pid)
		}
		return err
	})
	// That a bundle of its own is unpacked shows that the successor has looked at all of them.
	digest, _ := s.push("after", small("after"))
	s.bundle("after", s.class("after", v1alpha1.ProvisionerRaw, nil), digest)
	s.unpacked("after")
	for name, version := range before {
		b, err := s.bundles.RukpakV1alpha1().Bundles(name.Namespace).Get(s.ctx, name.Name, metav1.GetOptions{})
		s.must(err)
		if b.ResourceVersion != version {
			s.Errorf("bundle %s was written by the server that came after: %s is now %s", name, version, b.ResourceVersion)
		}
	}
	now := 0
	for _, l := range pods {
		for _, p := range l.all() {
			if len(p.OwnerReferences) != 1 || p.OwnerReferences[0].Name != "after" {
				now++
			}
		}
	}
	if now != seen {
		s.Errorf("the server that came after made pods: %d states were seen before, and %d are now", seen, now)
	}
}

// distinct are the pods of which there are states.
func distinct(states []*corev1.Pod) map[string]bool {
	pods := map[string]bool{}
	for _, p := range states {
		pods[string(p.UID)] = true
	}
	return pods
}
