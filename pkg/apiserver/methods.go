// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/registry/bundle/content"
	"rukpak.io/apiserver/pkg/registry/bundle/uploads"
)

// refuseMethods answers the methods that never come to bundles/content and bundles/uploads, in place of the generic server, which
// would not say in Allow which ones do (RFC 9110, section 15.5.6). It comes after authorization.
func refuseMethods(next http.Handler) http.Handler {
	subresources := map[string]struct {
		connected []string
		allowed   func(part bool) []string
	}{
		"content": {(*content.REST)(nil).ConnectMethods(), content.Methods},
		"uploads": {(*uploads.REST)(nil).ConnectMethods(), uploads.Methods},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(req.Context())
		if !ok || !ofBundle(info) {
			next.ServeHTTP(w, req)
			return
		}
		of, ok := subresources[info.Subresource]
		if !ok || slices.Contains(of.connected, req.Method) {
			next.ServeHTTP(w, req)
			return
		}
		// The resource, the name and the subresource come first. The path content/ is that of a directory, which is a part, too.
		allowed := of.allowed(len(info.Parts) > 3 || info.Subresource == "content" && strings.HasSuffix(info.Path, "/"))
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		err := &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
			Message: fmt.Sprintf("%.40s is no method of bundles/%s: those of this path are %s", req.Method, info.Subresource, strings.Join(allowed, ", ")),
		}}
		content.Refuse(w, req, func(error) { answerError(w, req, info, err) }, false, err)
	})
}

// ofBundle reports whether a request is for one bundle, or what belongs to it.
func ofBundle(info *genericapirequest.RequestInfo) bool {
	return info.IsResourceRequest && info.APIGroup == rukpak.GroupName && info.APIVersion == v1alpha1.SchemeGroupVersion.Version &&
		info.Resource == "bundles" && info.Namespace != "" && info.Name != ""
}
