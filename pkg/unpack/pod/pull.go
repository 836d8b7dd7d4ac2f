// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"regexp"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"strings"
)

// pullSigns are what container runtimes and registries say in the text of a failed
// pull, which is all that the kubelet passes on. The first that is found decides.
var pullSigns = []struct {
	reason, what string
	signs        []string
}{
	{v1alpha1.ReasonRateLimited, "the registry answers no more requests for now", []string{
		"429 too many requests", "toomanyrequests", "too many requests", "rate limit",
	}},
	{v1alpha1.ReasonPlatformNotSupported, "the registry does not have the image for the node's platform", []string{
		"no match for platform", "no matching manifest for", "no image found in image index for architecture",
		"no image found in manifest list for architecture", "does not match the specified platform",
	}},
	{v1alpha1.ReasonArtifactNotSupported, "this is no image of files", artifactSigns},
	{v1alpha1.ReasonRegistryNotTrusted, "the node does not trust the registry", []string{
		"x509:", "failed to verify certificate", "server gave http response to https client",
		"first record does not look like a tls handshake",
	}},
	{v1alpha1.ReasonImagePullUnauthorized, "the registry wants other credentials", []string{
		"401 unauthorized", "403 forbidden", "unauthorized", "authentication required", "authorization failed",
		"no basic auth credentials", "insufficient_scope", "access denied", "denied:", "failed to authorize",
	}},
	{v1alpha1.ReasonRegistryUnreachable, "the registry does not answer as it should", []string{
		"connection refused", "no such host", "i/o timeout", "connection reset", "network is unreachable",
		"no route to host", "tls:", "context deadline exceeded", "registry is unavailable",
		"handshake timeout", "timeout awaiting", "client.timeout exceeded", "502 bad gateway", "503 service unavailable", "504 gateway", "500 internal server error",
		": eof", "unexpected eof",
	}},
	{v1alpha1.ReasonImageNotFound, "the registry has no such image", []string{
		"not found", "manifest unknown", "name unknown", "name_unknown", "manifest_unknown", "does not exist",
	}},
}

// quoted matches what stands in quotes: names, in which any word may occur.
var quoted = regexp.MustCompile(`"[^"]*"`)

// judgePull finds the reason of a failed pull in its text.
func judgePull(message string) (reason, text string) {
	lower := strings.ToLower(quoted.ReplaceAllString(message, ""))
	for _, kind := range pullSigns {
		for _, sign := range kind.signs {
			if strings.Contains(lower, sign) {
				return kind.reason, Words(kind.what, steadyPull(message))
			}
		}
	}
	return v1alpha1.ReasonImagePullFailed, Words("the image could not be pulled", steadyPull(message))
}

// steadyPull takes off what the kubelet puts in front of an error while it backs off,
// so that ErrImagePull and ImagePullBackOff, which take turns, read the same.
func steadyPull(message string) string {
	if strings.HasPrefix(message, "Back-off pulling image ") {
		if _, cause, found := strings.Cut(message, `": `); found {
			message = cause
		}
	}
	for _, prefix := range []string{"ErrImagePull: ", "RegistryUnavailable: ", "SignatureValidationFailed: "} {
		message = strings.TrimPrefix(message, prefix)
	}
	return message
}
