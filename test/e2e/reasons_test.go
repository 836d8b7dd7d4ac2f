// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/informers/externalversions"
)

// causesAtOnce is how many causes are made at the same time. They wait most of the time.
const causesAtOnce = 8

// cause is one thing that keeps a bundle from being unpacked.
type cause struct {
	name   string
	reason string
	// words are parts of the message, beside those that arrange expects.
	words []string
	// stalled says that nothing is tried any more until somebody acts.
	stalled bool
	// arrange makes the cause and the bundle app, which it keeps from being unpacked. What it returns
	// removes the cause; the bundle has to heal by itself then.
	arrange func(p *plight) (remedy func())
}

// plight is what a cause is made with.
type plight struct {
	*scope
	// tree is what app holds in the end.
	tree  files
	words []string
}

// expect adds words that the message has to have.
func (p *plight) expect(words ...string) { p.words = append(p.words, words...) }

// TestReasons makes each cause of a failure for real, reads what the bundle says of it, removes it, and sees
// the bundle heal. Causes that cannot be made here, a runtime without image volumes above all, are
// judged by what others have recorded of them: see TestJudge of package pod.
func TestReasons(t *testing.T) {
	t.Parallel()
	turns := make(chan struct{}, causesAtOnce)
	var all sync.WaitGroup
	// Not by t.Parallel, which would let them wait for one another and for the other tests.
	for _, c := range causes() {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			t.Run(c.name, c.test)
		})
	}
	all.Wait()
}

func (c cause) test(t *testing.T) {
	s := begin(t)
	p := &plight{scope: s, tree: small(s.ns)}
	log := s.recordSayings()
	remedy := c.arrange(p)
	p.eventually("it says "+c.reason, func() error { return log.said("app", c.reason, c.stalled, append(p.words, c.words...)) })
	p.warned("app", c.reason)
	remedy()
	p.holds(p.unpacked("app"), p.tree)
	p.noPods()
}

func causes() []cause {
	return append(append(append(clusterCauses(), podCauses()...), registryCauses()...), contentCauses()...)
}

// sayings remembers every state of the bundles of a namespace, since some last for a moment only.
type sayings struct {
	mu     sync.Mutex
	states []*v1alpha1.Bundle
}

func (s *scope) recordSayings() *sayings {
	s.Helper()
	log := &sayings{}
	factory := externalversions.NewSharedInformerFactoryWithOptions(s.bundles, 0, externalversions.WithNamespace(s.ns))
	add := func(obj any) {
		log.mu.Lock()
		defer log.mu.Unlock()
		log.states = append(log.states, obj.(*v1alpha1.Bundle))
	}
	informer := factory.Rukpak().V1alpha1().Bundles().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }})
	s.must(err)
	factory.Start(s.ctx.Done())
	factory.WaitForCacheSync(s.ctx.Done())
	return log
}

// said looks for a state in which a bundle gave a reason, in its conditions Unpacked and Ready alike, with
// words that name what is wrong.
func (l *sayings) said(name, reason string, stalled bool, words []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	heard := []string{}
	for _, b := range l.states {
		c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked)
		if b.Name != name || c == nil {
			continue
		}
		if text := said(b); len(heard) == 0 || heard[len(heard)-1] != text {
			heard = append(heard, text)
		}
		if c.Reason != reason || c.ObservedGeneration != b.Generation || missing(c.Message, words) != "" {
			continue
		}
		if ready := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionReady); ready == nil || ready.Reason != reason || ready.Message != c.Message {
			return final("the condition Unpacked is %+v and Ready is %+v", c, ready)
		}
		if stalled != meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionStalled) {
			continue
		}
		if want := metav1.ConditionUnknown; !stalled && c.Status != want || stalled && c.Status != metav1.ConditionFalse {
			return final("the condition Unpacked is %s", c.Status)
		}
		return nil
	}
	return fmt.Errorf("with %q, stalled: %v: what was said is\n  %s", words, stalled, strings.Join(heard, "\n  "))
}

// missing is the first of the words that a message does not have.
func missing(message string, words []string) string {
	for _, word := range words {
		if !strings.Contains(message, word) {
			return word
		}
	}
	return ""
}
