// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"maps"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	generatedopenapi "rukpak.io/apiserver/pkg/generated/openapi"
	"rukpak.io/apiserver/pkg/registry/bundle"
	"rukpak.io/apiserver/pkg/registry/bundle/content"
	"rukpak.io/apiserver/pkg/registry/bundle/uploads"
	"rukpak.io/apiserver/pkg/registry/provisionerclass"
)

// Name is the name of the server, in logs and in OpenAPI.
const Name = "rukpak-apiserver"

// Server is the API server.
type Server struct {
	Generic *genericapiserver.GenericAPIServer
	Bundles *bundle.Storage
	Classes *provisionerclass.REST
	Content *content.REST
	Uploads *uploads.REST
}

// Describe sets what of a configuration is the same however the server runs: its OpenAPI documents and
// which requests are long. It comes before the options, which read it.
func Describe(config *genericapiserver.Config) {
	namer := openapi.NewDefinitionNamer(Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title = Name
	config.OpenAPIConfig.Info.Version = v1alpha1.SchemeGroupVersion.Version
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config.Info.Title = Name
	config.OpenAPIV3Config.Info.Version = v1alpha1.SchemeGroupVersion.Version
	// What is not served is not described.
	config.OpenAPIConfig.IgnorePrefixes = append(config.OpenAPIConfig.IgnorePrefixes, watchPrefix)
	config.OpenAPIV3Config.IgnorePrefixes = append(config.OpenAPIV3Config.IgnorePrefixes, watchPrefix)
	// Content takes as long as the client's line is slow.
	config.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString("content", "uploads"))
}

// New assembles the server from a configuration that the options have been applied to. An etcd that can be away is
// watched; one that is part of the process is nil. The gate decides whether requests for objects are answered. The
// configurations of the subresources lack bundles and classes, and that of uploads what is common to both: they are made here.
func New(config *genericapiserver.RecommendedConfig, etcd Etcd, gate Gate, extra content.Config, parts uploads.Config) (*Server, error) {
	secure(&config.Authentication)
	attempts := &attemptAuthorizer{}
	both, err := union.New(
		union.NamedAuthorizer{AuthorizerName: "UnpackAttempt", Authorizer: authorizer.AuthorizerFunc(attempts.authorize)},
		union.NamedAuthorizer{AuthorizerName: "Delegated", Authorizer: config.Authorization.Authorizer},
	)
	if err != nil {
		return nil, err
	}
	config.Authorization.Authorizer = both
	config.RequestInfoResolver = infoResolver{genericapiserver.NewRequestInfoResolver(&config.Config)}
	config.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		handler = serveWatchPrefix(refuseMethods(handler))
		handler = refuse(handler, gate)
		if etcd != nil {
			handler = failEarly(handler, etcd)
		}
		return boundUnread(markDirect(genericapiserver.DefaultBuildHandlerChain(handler, c)), unreadTime)
	}
	generic, err := config.Complete().New(Name, genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	getter := config.RESTOptionsGetter
	if etcd != nil {
		getter = awaitEtcd(getter, etcd)
	}
	getter = explainNoSpace(getter)
	stores := sets.New(slices.Collect(maps.Keys(extra.Stores))...)
	classes, err := provisionerclass.NewREST(Scheme, getter, stores)
	if err != nil {
		return nil, err
	}
	var (
		subresource *content.REST
		inParts     *uploads.REST
	)
	bundles, err := bundle.NewStorage(Scheme, getter, classes, func(b *rukpak.Bundle) {
		subresource.Release(b)
		inParts.Release(b)
	})
	if err != nil {
		return nil, err
	}
	attempts.bundles.Store(bundles)
	extra.Bundles, extra.Classes, extra.Uploading = bundles, classes, parts.Sessions.Bytes
	subresource = content.NewREST(extra)
	parts.Bundles, parts.Content, parts.Authorizer = bundles, subresource, config.Authorization.Authorizer
	parts.Whole = extra.Whole
	parts.Stores, parts.CommitTimeout, parts.PlaceTimeout, parts.Now = extra.Stores, extra.CommitTimeout, extra.PlaceTimeout, extra.Now
	inParts = uploads.NewREST(parts)
	s := &Server{Generic: generic, Bundles: bundles, Classes: classes, Content: subresource, Uploads: inParts}

	group := genericapiserver.NewDefaultAPIGroupInfo(rukpak.GroupName, Scheme, runtime.NewParameterCodec(Scheme), Codecs)
	group.NegotiatedSerializer = Serializer
	group.VersionedResourcesStorageMap[v1alpha1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"bundles":            bundles.Bundle,
		"bundles/status":     bundles.Status,
		"bundles/content":    s.Content,
		"bundles/uploads":    s.Uploads,
		"provisionerclasses": classes,
	}
	return s, generic.InstallAPIGroup(&group)
}
