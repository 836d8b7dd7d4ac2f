// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// The environment variables that make a long test of TestChaos: how long things are killed, and over how many bundles.
const (
	chaosVariable        = "RUKPAK_CHAOS"
	chaosBundlesVariable = "RUKPAK_CHAOS_BUNDLES"
)

// chaos is what TestChaos does.
type chaos struct {
	length  time.Duration
	bundles int
	// pause is the mean time between two kills, and change that between two changes of one bundle.
	pause, change time.Duration
	// settle is how long after the last kill all may take to be as it should. An attempt that has failed again and
	// again waits five minutes for the next one.
	settle time.Duration
	long   bool
}

func theChaos(t *testing.T) chaos {
	t.Helper()
	text := os.Getenv(chaosVariable)
	if text == "" {
		return chaos{length: 12 * time.Second, bundles: 10, pause: 500 * time.Millisecond, change: 6 * time.Second, settle: patience}
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", chaosVariable, err)
	}
	c := chaos{length: length, bundles: 100, pause: 4 * time.Second, settle: 6 * time.Minute, long: true}
	if text := os.Getenv(chaosBundlesVariable); text != "" {
		if c.bundles, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", chaosBundlesVariable, err)
		}
	}
	// A change is a pod, or part of one: as many as two processors bear, all in all.
	c.change = time.Duration(c.bundles) * time.Second
	return c
}

// TestChaos kills the server, the parts of the cluster, and unpack pods, at random, while bundles of every kind come, change
// and go. In the end each is ready with what it was last given, or gone, and nothing is left over.
func TestChaos(t *testing.T) {
	s, c := begin(t), theChaos(t)
	number := seed(t)
	volume := s.class("volume", v1alpha1.ProvisionerRaw, nil)
	plain := s.class("plain", v1alpha1.ProvisionerPlain, nil)
	copying := s.class("copy", v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{Mode: v1alpha1.UnpackModeImageCopy}
	})
	scraper := s.scraper()
	goroutines := s.goroutines(scraper)

	end := time.Now().Add(c.length)
	actors := make([]*actor, c.bundles)
	var all sync.WaitGroup
	for i := range actors {
		a := &actor{kind: kinds[i%len(kinds)], class: volume, random: rand.New(rand.NewPCG(number, uint64(i)+1)), change: c.change}
		a.name = fmt.Sprintf("%s-%03d", a.kind, i)
		switch a.kind {
		case "copy":
			a.class, a.folder = copying, "manifests"
		case "tag":
			a.class = plain
		}
		actors[i] = a
		all.Go(func() {
			t.Run(a.name, func(t *testing.T) {
				a.scope = s.in(t)
				a.act(end)
			})
		})
	}
	s.killUntil(end, rand.New(rand.NewPCG(number, 0)), c.pause)
	all.Wait()
	if t.Failed() {
		return
	}

	quiet := time.Now()
	for _, a := range actors {
		a.scope = s
		s.within(time.Until(quiet.Add(c.settle)), "bundle "+a.name+" is as it was left", a.settled)
	}
	s.Logf("all was as it should %v after the last kill", time.Since(quiet).Round(100*time.Millisecond))
	s.noPods()
	for _, a := range actors {
		if a.want != nil {
			s.holds(s.unpacked(a.name), a.expected())
		}
	}
	s.answers()
	s.eventually("the server's goroutines are as many as before", func() error {
		// What comes and goes are connections, and those who wait for the next request on them.
		if now := s.goroutines(scraper); now > goroutines+100 {
			return fmt.Errorf("%d now, %d before", now, goroutines)
		}
		return nil
	})
	if !c.long {
		t.Parallel() // no more is killed, and the collector takes its time
	}
	s.noDebris()
}

// kinds are the kinds of bundles: of an image by digest, of one that many bundles have, of a tag that moves, of an upload, and
// of an image that is copied rather than mounted.
var kinds = []string{"digest", "shared", "tag", "upload", "copy"}

// actor does to one bundle what its owner does.
type actor struct {
	*scope
	kind, name, class string
	folder            string // the part of the image
	random            *rand.Rand
	change            time.Duration
	version           int
	want              files  // nil if the bundle is to be gone
	refresh           string // the last value of the annotation
}

// act changes the bundle until a time comes.
func (a *actor) act(end time.Time) {
	a.Helper()
	// Many are made together at first, so that they share pods.
	pause := time.Duration(a.random.Int64N(int64(time.Second)))
	for time.Now().Add(pause).Before(end) {
		time.Sleep(pause)
		a.next()
		pause = time.Duration(a.random.Int64N(int64(2 * a.change)))
	}
	if a.version == 0 {
		a.next()
	}
}

func (a *actor) next() {
	a.Helper()
	switch chance := a.random.IntN(10); {
	case a.want == nil:
		a.make()
	case chance < 2:
		a.delete()
	case chance < 4:
		a.delete()
		a.make()
	case chance < 5:
		a.suspend()
	default:
		a.edit()
	}
}

// tree is what the bundle is to hold next.
func (a *actor) tree() files {
	a.version++
	if a.kind == "shared" {
		return small(fmt.Sprint(a.ns, "-", a.version%4))
	}
	return small(fmt.Sprint(a.ns, "-", a.name, "-", a.version))
}

// pushed puts a tree where the bundle's reference finds it.
func (a *actor) pushed(tree files) string {
	a.Helper()
	tag := fmt.Sprint(a.name, "-", a.version)
	switch a.kind {
	case "tag":
		tag = a.name
	case "shared":
		tag = fmt.Sprint("shared-", a.version%4)
	}
	digest, tagged := a.push(tag, tree)
	if a.kind == "tag" {
		return tagged
	}
	return digest
}

func (a *actor) make() {
	a.Helper()
	tree := a.tree()
	a.refresh = ""
	if a.kind == "upload" {
		a.bundle(a.name, a.class, "", func(b *v1alpha1.Bundle) {
			b.Spec.Source = v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}
		})
		a.send(tree)
	} else {
		a.bundle(a.name, a.class, a.pushed(tree), func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/" + a.folder })
	}
	a.want = tree
}

func (a *actor) edit() {
	a.Helper()
	tree := a.tree()
	switch a.kind {
	case "upload":
		a.send(tree)
	case "tag":
		a.pushed(tree)
		a.refresh = strconv.Itoa(a.version)
		a.update(a.name, func(b *v1alpha1.Bundle) {
			metav1.SetMetaDataAnnotation(&b.ObjectMeta, v1alpha1.AnnotationRefresh, a.refresh)
		})
	default:
		reference := a.pushed(tree)
		a.update(a.name, func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = reference })
	}
	a.want = tree
}

// suspend ends what goes on, and lets it go on again.
func (a *actor) suspend() {
	a.Helper()
	if a.kind == "upload" {
		return // there is nothing to suspend
	}
	a.update(a.name, func(b *v1alpha1.Bundle) { b.Spec.Suspend = true })
	a.update(a.name, func(b *v1alpha1.Bundle) { b.Spec.Suspend = false })
}

func (a *actor) send(tree files) {
	a.Helper()
	archive := tree.archive()
	a.must(a.retry(func() error {
		_, err := a.api().PutContent(a.ctx, a.name, bytes.NewReader(archive), typed.PutContentOptions{})
		return err
	}))
}

func (a *actor) delete() {
	a.Helper()
	err := a.retry(func() error { return a.api().Delete(a.ctx, a.name, metav1.DeleteOptions{}) })
	if err != nil && !apierrors.IsNotFound(err) {
		a.Fatalf("delete bundle %s: %v", a.name, err)
	}
	a.want = nil
}

// expected is what the bundle holds in the end.
func (a *actor) expected() files {
	if a.folder != "" {
		return a.want.below(a.folder)
	}
	return a.want
}

// settled tells whether the bundle is as it was left.
func (a *actor) settled() error {
	b, err := a.api().Get(a.ctx, a.name, metav1.GetOptions{})
	switch {
	case a.want == nil && apierrors.IsNotFound(err):
		return nil
	case a.want == nil && err == nil:
		return errors.New("it was deleted and is there")
	case apierrors.IsNotFound(err):
		return final("it was not deleted and is gone: %w", err)
	case err != nil:
		return err
	}
	if err := isUnpacked(b); err != nil {
		return err
	}
	if a.refresh != "" && b.Status.LastHandledRefresh != a.refresh {
		return fmt.Errorf("refresh %s is handled, %s was asked for", b.Status.LastHandledRefresh, a.refresh)
	}
	if _, want := a.canonical(a.want, a.folder); b.Status.Content == nil || b.Status.Content.Digest != want.Digest {
		return fmt.Errorf("the content is %+v, want %s; %s", b.Status.Content, want.Digest, said(b))
	}
	return nil
}
