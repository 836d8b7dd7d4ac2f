// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// outlook is what will come of asking for something.
type outlook struct {
	// asks means that there is something to ask for.
	asks bool
	// says is what will happen, or why nothing will.
	says string
	// hint says what to do, where nothing will happen and that is not because all is well.
	hint string
}

func asks(says string) outlook { return outlook{asks: true, says: says} }

// foreign is the provisioner of somebody else that a bundle has, or empty.
func (s state) foreign() string {
	switch who := s.Status.Provisioner; {
	case who != "" && !builtIn(who):
		return who
	case who == "" && s.ready.Reason == v1alpha1.ReasonWaitingForProvisioner:
		return "that is not one of the server's"
	}
	return ""
}

// resting is what will come of any request where the server makes no attempts.
func (s state) resting() (outlook, bool) {
	at := s.at()
	switch {
	case s.foreign() != "":
		return asks("it was asked for, and the provisioner " + s.foreign() + ", which is another controller's, decides what comes of it"), true
	case s.Spec.Source.Type == v1alpha1.SourceTypeUpload:
		o := outlook{says: "nothing is fetched for a bundle whose source is " + string(s.Spec.Source.Type)}
		if !s.isReady() {
			o.hint = program + " push " + at + " FOLDER writes its content"
		}
		return o, true
	case s.Spec.Suspend:
		return outlook{says: "it is suspended, and nothing is done for it", hint: resume(at) + ", and then the same command"}, true
	case s.current() && s.ready.Reason == v1alpha1.ReasonClassMissing:
		return outlook{says: "nothing is done for it: " + s.ready.Message, hint: strings.Join(remedy(s.ready.Reason), "; ")}, true
	}
	return outlook{}, false
}

// resume is how to go on with a bundle that is suspended.
func resume(at string) string {
	return "kubectl patch bundle " + at + ` --type=merge -p '{"spec":{"suspend":false}}'`
}

func retryOutlook(s state) outlook {
	if o, ok := s.resting(); ok {
		return o
	}
	switch {
	case s.full.Status == metav1.ConditionTrue:
		return asks("a new attempt was asked for; it begins when the store of its class has room")
	case !s.isReady() || refreshing(s.Bundle):
		return asks("a new attempt was asked for")
	case s.unrefreshed():
		return asks("what its tag names will be looked up again")
	}
	says := "its content is there and served: there is nothing to try again"
	if !s.digested() {
		says += fmt.Sprintf("; %s refresh %s looks up what its tag names now", program, s.at())
	}
	return outlook{says: says}
}

func refreshOutlook(s state) outlook {
	if o, ok := s.resting(); ok {
		return o
	}
	switch {
	case s.had() && !s.digested():
		return asks("its image will be looked up anew")
	case s.attempting() && !s.digested():
		// It may have looked before the tag was moved.
		return asks("an attempt is under way, and when there is content its image will be looked up anew")
	case s.isReady() || s.attempting():
		return outlook{says: "its image is named by digest, which names the same for ever: there is nothing to look up"}
	case s.failing() || s.had():
		return outlook{says: "it is not unpacked, and the next attempt takes what its image names then", hint: program + " retry " + s.at() + " makes one at once"}
	}
	return outlook{says: "its next attempt takes what its image names then"}
}

// digested reports whether the image is named by digest.
func (s state) digested() bool {
	image := s.Spec.Source.Image
	return image != nil && v1alpha1.Digested(image.Reference)
}

// had reports whether the spec as it is has had content, which may be lost.
func (s state) had() bool {
	c := s.Status.Content
	return s.isReady() || c != nil && c.Generation == s.Generation
}

// attempting reports whether an attempt for the spec as it is has begun and not ended.
func (s state) attempting() bool {
	u := s.Status.Unpack
	return u != nil && u.Generation == s.Generation && u.EndTime == nil
}
