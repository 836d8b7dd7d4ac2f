// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// versionRoot is where the API's own paths begin.
var versionRoot = "/apis/" + v1alpha1.SchemeGroupVersion.String()

// watchPrefix is where the deprecated paths begin whose verb is watch, whatever the method.
var watchPrefix = versionRoot + "/watch/"

// serveWatchPrefix serves GET and HEAD of exactly
//
//	/apis/rukpak.io/v1alpha1/watch/namespaces/NS/bundles/NAME/content
//
// as the content of that bundle. kube-apiserver takes a request below watch/ for a watch, which it neither ends after
// a minute nor counts as a seat. That makes watch the verb that was authorized, for every method: so nothing else
// below the prefix is served, and a DELETE there, which whoever may watch could send, reaches nothing. It comes after
// authorization, and the path that is served is made of what was authorized.
func serveWatchPrefix(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(req.Context())
		if !ok || !belowWatch(info, req) {
			next.ServeHTTP(w, req)
			return
		}
		content := fmt.Sprintf("/namespaces/%s/bundles/%s/content", info.Namespace, info.Name)
		exact := info.APIGroup == rukpak.GroupName && info.Namespace != "" && info.Name != "" &&
			req.URL.Path == versionRoot+"/watch"+content && req.URL.RawPath == ""
		if !exact || req.Method != http.MethodGet && req.Method != http.MethodHead {
			refuseWatchPrefix(w, req, info, exact)
			return
		}
		// Nothing is to be sent before content flows, so flow control has no reason to hold a seat for it.
		utilflowcontrol.WatchInitialized(req.Context())
		served := *req
		served.URL = &url.URL{Path: versionRoot + content, RawQuery: req.URL.RawQuery}
		next.ServeHTTP(w, &served)
	})
}

// belowWatch reports whether the verb of a request comes from its path.
func belowWatch(info *genericapirequest.RequestInfo, req *http.Request) bool {
	if !info.IsResourceRequest {
		return false
	}
	// As the verb was found: slashes at the ends do not count.
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	return len(parts) > 3 && parts[3] == "watch"
}

func refuseWatchPrefix(w http.ResponseWriter, req *http.Request, info *genericapirequest.RequestInfo, exact bool) {
	// RFC 9110, section 15.5.6: the field is sent in any case, and is empty where no method is allowed.
	allow := ""
	if exact {
		allow = "GET, HEAD"
	}
	w.Header().Set("Allow", allow)
	err := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: "below " + watchPrefix + " there are GET and HEAD of namespaces/NAMESPACE/bundles/NAME/content alone: a watch is a GET without the prefix, with ?watch=true",
	}}
	responsewriters.ErrorNegotiated(err, Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, req)
}
