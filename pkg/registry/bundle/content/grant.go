// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/provisioner"
	"rukpak.io/apiserver/pkg/registry/bundle"
)

// grant is why a write is taken. It is found when the write begins, and asked again in the
// transaction that makes its bytes the bundle's content: what has changed in between ends it.
type grant struct {
	uid        types.UID
	generation int64
	// canonical means that the writer is a program of this project, which sends a canonical archive.
	canonical bool
	// attempt means that the write is that of the bundle's current attempt: of the pod, or of the nonce.
	attempt bool
	podUID  types.UID
	nonce   string
	// upload is the ID of the one in parts that the bytes come from, "" if they come at once.
	upload string
	// username is that of a client who uploads.
	username string
	// builtIn means that the provisioner is one of the server's own, so that the commit ends the unpacking.
	builtIn bool
	// ifMatch and ifNoneMatch are the conditions of the request.
	ifMatch, ifNoneMatch string
}

// Pod returns the pod that a service account's token is bound to.
func Pod(u user.Info) (name string, uid types.UID, ok bool) {
	names, uids := u.GetExtra()[serviceaccount.PodNameKey], u.GetExtra()[serviceaccount.PodUIDKey]
	if len(names) != 1 || len(uids) != 1 || uids[0] == "" {
		return "", "", false
	}
	return names[0], types.UID(uids[0]), true
}

// MayBeAttempt reports whether a token that is bound to a pod may belong to a bundle's current attempt:
// it is that of the pod, or the pod is not yet recorded and has the name that the attempt gave it. No more
// than a chance to ask; what is written is decided anew when it is committed.
func MayBeAttempt(b *rukpak.Bundle, namespace, podName string, podUID types.UID) bool {
	a := b.Status.Unpack
	if a == nil || b.Namespace != namespace || b.Spec.Source.Type != rukpak.SourceTypeImage || a.PodName == "" || a.PodName != podName {
		return false
	}
	return a.PodUID == podUID || a.PodUID == ""
}

// newGrant decides whether the caller may write the content of a bundle.
func newGrant(ctx context.Context, b *rukpak.Bundle, class *rukpak.ProvisionerClass, o *rukpak.BundleContentOptions, req *http.Request) (*grant, error) {
	caller, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewUnauthorized("content is written by somebody")
	}
	g := &grant{
		uid: b.UID, generation: b.Generation, builtIn: provisioner.BuiltIn(class.Provisioner),
		ifMatch: list(req.Header, "If-Match"), ifNoneMatch: list(req.Header, "If-None-Match"),
	}
	switch {
	case !g.builtIn, b.Spec.Source.Type == rukpak.SourceTypeUpload:
		g.username = caller.GetName()
	case bundle.FromLoopback(ctx):
		g.attempt, g.canonical, g.nonce = true, true, o.Attempt
	default:
		name, uid, ok := Pod(caller)
		if !ok || !MayBeAttempt(b, serviceAccountNamespace(caller), name, uid) {
			return nil, apierrors.NewForbidden(rukpak.Resource("bundles/content"), b.Name,
				&ownerError{b.Spec.Source.Type})
		}
		g.attempt, g.canonical, g.podUID = true, true, uid
	}
	return g, g.check(b)
}

// ownerError says whose the content of a bundle is to write.
type ownerError struct{ source rukpak.SourceType }

func (e *ownerError) Error() string {
	return "the content of a bundle of source type " + string(e.source) + " is written by its unpack pod alone"
}

func serviceAccountNamespace(u user.Info) string {
	namespace, _, err := serviceaccount.SplitUsername(u.GetName())
	if err != nil {
		return ""
	}
	return namespace
}

// check reports whether the grant holds for a bundle as it is now.
func (g *grant) check(b *rukpak.Bundle) error {
	if b.UID != g.uid {
		return conflict(b, CauseAttemptEnded, "it was deleted, and another bundle has its name")
	}
	if b.DeletionTimestamp != nil {
		return conflict(b, CauseAttemptEnded, "it is being deleted")
	}
	if b.Generation != g.generation {
		return conflict(b, CauseAttemptEnded, "its spec has changed since the write began")
	}
	if g.attempt {
		return g.checkAttempt(b)
	}
	return g.checkConditions(b)
}

func (g *grant) checkAttempt(b *rukpak.Bundle) error {
	a := b.Status.Unpack
	ended := conflict(b, CauseAttemptEnded, "the attempt is not its current one")
	if a == nil || a.Generation != g.generation {
		return ended
	}
	if g.podUID != "" {
		if a.PodUID == "" {
			return conflict(b, CauseAttemptNotRecorded, "the pod of the attempt is not recorded yet: try again")
		}
		if a.PodUID != g.podUID {
			return ended
		}
	} else if g.nonce == "" || a.Nonce != g.nonce || a.Mode != rukpak.UnpackModeDirect {
		return ended
	}
	// An attempt that has brought the content may say so again; one that has failed may not.
	if a.EndTime != nil && !(b.Status.Content != nil && b.Status.Content.Generation == g.generation) {
		return ended
	}
	return nil
}

// checkConditions evaluates If-Match and If-None-Match (RFC 9110, section 13.1).
func (g *grant) checkConditions(b *rukpak.Bundle) error {
	now := ""
	if b.Status.Content != nil {
		now = etag(b.Status.Content.Digest)
	}
	if g.ifMatch != "" && (now == "" || !listsTag(g.ifMatch, now)) {
		return preconditionFailed(b, "the content is "+orNothing(now)+", which If-Match does not list")
	}
	// If-None-Match compares weakly, so that a tag that a cache has weakened counts.
	if g.ifNoneMatch != "" && now != "" && (listsTag(g.ifNoneMatch, now) || listsTag(g.ifNoneMatch, "W/"+now)) {
		return preconditionFailed(b, "the content is "+now+", which If-None-Match lists")
	}
	return nil
}

func orNothing(tag string) string {
	if tag == "" {
		return "not there"
	}
	return tag
}

// list returns a header field that is a list, which may come in several lines (RFC 9110, section 5.3).
func list(h http.Header, field string) string { return strings.Join(h.Values(field), ",") }

// listsTag reports whether a list of entity tags has tag, or is "*".
func listsTag(list, tag string) bool {
	if strings.TrimSpace(list) == "*" {
		return true
	}
	for item := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(item) == tag {
			return true
		}
	}
	return false
}
