// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/registry/bundle"
	"rukpak.io/apiserver/pkg/registry/bundle/content"
)

// healthPaths are what kubelets and load balancers ask without a credential. They say ok, or no more than
// which check fails.
var healthPaths = map[string]bool{"/healthz": true, "/livez": true, "/readyz": true}

// secure makes a request without a credential fail with 401, except on the health paths. The
// generic options let it in as system:anonymous, for an authorizer to decide; here nothing is for everybody.
func secure(info *genericapiserver.AuthenticationInfo) {
	inner := info.Authenticator
	if inner == nil {
		return
	}
	info.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := inner.AuthenticateRequest(req)
		if ok && response.User.GetName() == user.Anonymous && !healthPaths[req.URL.Path] {
			return nil, false, err
		}
		return response, ok, err
	})
}

type directKey struct{}

// markDirect marks requests that did not come through kube-apiserver: the aggregator shows a client
// certificate, with which it vouches for the identity in the headers.
func markDirect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.TLS != nil && len(req.TLS.PeerCertificates) == 0 {
			req = req.WithContext(context.WithValue(req.Context(), directKey{}, true))
		}
		next.ServeHTTP(w, req)
	})
}

func isDirect(ctx context.Context) bool {
	direct, _ := ctx.Value(directKey{}).(bool)
	return direct
}

// lookupTimeout bounds the read of a bundle for an authorization: the request has no deadline of its own.
const lookupTimeout = 10 * time.Second

// attemptAuthorizer lets an unpack pod write the content of the bundle that it was made for, and nothing else. No
// role in the bundle's namespace is needed for that, and none is enough: a role cannot name a pod.
type attemptAuthorizer struct {
	// bundles is set once the storage is there, which is after the authorizer is.
	bundles atomic.Pointer[bundle.Storage]
}

// authorize allows an update of bundles/content to the pod of the bundle's current attempt, as a fresh read
// of the bundle names it, when its token comes straight to this server. It has no opinion on anything else.
func (a *attemptAuthorizer) authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	bundles := a.bundles.Load()
	if bundles == nil || !isDirect(ctx) || !attributes.IsResourceRequest() || attributes.GetVerb() != "update" ||
		attributes.GetAPIGroup() != rukpak.GroupName || attributes.GetResource() != "bundles" || attributes.GetSubresource() != "content" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	caller := attributes.GetUser()
	podName, podUID, ok := content.Pod(caller)
	if !ok {
		return authorizer.DecisionNoOpinion, "", nil
	}
	namespace, _, err := serviceaccount.SplitUsername(caller.GetName())
	if err != nil || namespace != attributes.GetNamespace() {
		return authorizer.DecisionNoOpinion, "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	b, err := bundles.Get(genericapirequest.WithNamespace(ctx, namespace), attributes.GetName())
	if apierrors.IsNotFound(err) {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if err != nil {
		// An answer of 500, after which the pod tries again, not one of 403, after which it gives up.
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("read the bundle that the pod belongs to: %w", err)
	}
	if !content.MayBeAttempt(b, namespace, podName, podUID) {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionAllow, "unpack pod of the bundle's current attempt", nil
}

// infoResolver finds out what a request is about. One that is about nothing is one for a path: it needs a credential and
// a grant, and is not found, like any other.
type infoResolver struct {
	genericapirequest.RequestInfoResolver
}

func (r infoResolver) NewRequestInfo(req *http.Request) (*genericapirequest.RequestInfo, error) {
	info, err := r.RequestInfoResolver.NewRequestInfo(req)
	if err != nil {
		return &genericapirequest.RequestInfo{Path: req.URL.Path, Verb: strings.ToLower(req.Method)}, nil
	}
	return info, nil
}
