// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

const (
	apiServicePath = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.rukpak.io"
	// soon is how long before its end a certificate is a reason to look. The server renews its own long before.
	soon = 7 * 24 * time.Hour
)

// get asks for a path.
func (d *examination) get(ctx context.Context, path string) ([]byte, error) {
	return body(d.kube.Discovery().RESTClient().Get().AbsPath(path).Do(ctx))
}

// server looks who answers at all.
func (d *examination) server(ctx context.Context) []finding {
	raw, err := d.get(ctx, "/version")
	if err != nil {
		p := d.explain(ctx, err)
		return []finding{bad(p.hint, "%s does not answer: %v", d.config.Host, err)}
	}
	var info version.Info
	if err := json.Unmarshal(raw, &info); err != nil {
		return []finding{bad("see what --server or the kubeconfig leads to", "%s is no API server: %v", d.config.Host, err)}
	}
	return []finding{ok("the API server %s answers: %s; this plugin is %s", d.config.Host, info.GitVersion, release)}
}

// apiService is what matters here of an APIService.
type apiService struct {
	Spec struct {
		CABundle              []byte `json:"caBundle"`
		InsecureSkipTLSVerify bool   `json:"insecureSkipTLSVerify"`
		Service               *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"service"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// registration looks at the APIService, and at the certificates in it.
func (d *examination) registration(ctx context.Context) []finding {
	raw, err := d.get(ctx, apiServicePath)
	if apierrors.IsForbidden(err) {
		return []finding{unknown("the APIService v1alpha1.rukpak.io: you may not look at it")}
	}
	if apierrors.IsNotFound(err) {
		if d.isAlone(ctx) {
			d.alone = true
			return []finding{ok("this is a standalone server: there is no cluster behind it, and no APIService")}
		}
		return []finding{bad("install rukpak-apiserver: kubectl apply -k artifacts/deploy", "there is no APIService v1alpha1.rukpak.io: the cluster does not know of bundles")}
	}
	var a apiService
	if err == nil {
		err = json.Unmarshal(raw, &a)
	}
	if err != nil {
		return []finding{unknown("the APIService v1alpha1.rukpak.io cannot be read: %v", err)}
	}
	return append([]finding{d.available(&a)}, certificates(&a, time.Now())...)
}

// isAlone reports whether what answers has bundles and nothing of a cluster.
func (d *examination) isAlone(ctx context.Context) bool {
	api := d.kube.Discovery().RESTClient()
	return api.Get().AbsPath("/apis/"+v1alpha1.SchemeGroupVersion.String()).Do(ctx).Error() == nil &&
		apierrors.IsNotFound(api.Get().AbsPath("/apis/apiregistration.k8s.io/v1").Do(ctx).Error())
}

func (d *examination) available(a *apiService) finding {
	for _, c := range a.Status.Conditions {
		if c.Type != "Available" {
			continue
		}
		if c.Status == metav1.ConditionTrue {
			d.served = true
			return ok("the APIService v1alpha1.rukpak.io is available")
		}
		remedy := "see the server: kubectl get pods,endpointslices" + d.where(d.system) + ", and its log"
		switch c.Reason {
		case "ServiceNotFound", "ServiceAccessError", "ServicePortError":
			remedy = "the Service that it names is missing or wrong: apply artifacts/deploy again"
		case "MissingEndpoints", "EndpointsNotFound", "EndpointsAccessError":
			remedy = "no pod of the server is ready: kubectl get pods" + d.where(d.system) + ", and describe what is there"
		case "FailedDiscoveryCheck":
			remedy = "kube-apiserver cannot reach the server: is port 10250 open from the control plane, and does the server's log show the request?"
		}
		return bad(remedy, "the APIService v1alpha1.rukpak.io is not available: %s: %s", c.Reason, c.Message)
	}
	return bad("see whether kube-apiserver runs its aggregator", "the APIService v1alpha1.rukpak.io has no condition Available yet")
}

// certificates looks at the authorities by which kube-apiserver knows the server.
func certificates(a *apiService, now time.Time) []finding {
	if a.Spec.InsecureSkipTLSVerify {
		return []finding{bad("take insecureSkipTLSVerify out of the APIService: the server keeps caBundle right by itself", "kube-apiserver does not check who it talks to (insecureSkipTLSVerify)")}
	}
	if len(a.Spec.CABundle) == 0 {
		return []finding{warning("unless the server's certificate is of an authority that the control plane trusts anyway, see the server's log: it writes caBundle, and needs update on its APIService for that",
			"the APIService has no caBundle")}
	}
	var (
		findings []finding
		good     *x509.Certificate
	)
	for rest := a.Spec.CABundle; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			findings = append(findings, bad("see who else writes the APIService", "an authority in caBundle cannot be read: %v", err))
			continue
		}
		if now.After(c.NotBefore) && now.Before(c.NotAfter) && (good == nil || c.NotAfter.After(good.NotAfter)) {
			good = c
		}
	}
	const remedy = "the server renews its authority long before: see its log, and whether it may write the APIService and its Secret"
	switch {
	case good == nil:
		findings = append(findings, bad(remedy, "no authority in caBundle is valid now"))
	case good.NotAfter.Sub(now) < soon:
		findings = append(findings, warning(remedy, "the last authority in caBundle is valid until %s only", good.NotAfter.Format(time.RFC3339)))
	default:
		findings = append(findings, ok("the certificates: the authority is valid until %s", good.NotAfter.Format(time.DateOnly)))
	}
	return findings
}

// group asks for the resources, as all clients do.
func (d *examination) group(ctx context.Context) []finding {
	var list metav1.APIResourceList
	raw, err := d.get(ctx, "/apis/"+v1alpha1.SchemeGroupVersion.String())
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		return []finding{bad("what was said above about the APIService is why; while it lasts, namespaces cannot be deleted", "%s is not served: %v", v1alpha1.SchemeGroupVersion, err)}
	}
	has := map[string]bool{}
	for _, r := range list.APIResources {
		has[r.Name] = true
	}
	for _, name := range []string{"bundles", "bundles/content", "bundles/uploads", "provisionerclasses"} {
		if !has[name] {
			return []finding{bad("upgrade the server, or use the plugin of its version", "%s has no %s: the server is older than this plugin", v1alpha1.SchemeGroupVersion, name)}
		}
	}
	return []finding{ok("%s is served", v1alpha1.SchemeGroupVersion)}
}
