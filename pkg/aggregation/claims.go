// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package aggregation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

const (
	claimsInterval = time.Minute
	claimsTimeout  = 20 * time.Second
	// claimsPage is how many CustomResourceDefinitions are listed at once, by their metadata alone.
	claimsPage = 500

	reporter = "rukpak.io/apiserver"
)

// CRDs is the resource of CustomResourceDefinitions.
var CRDs = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Claim is somebody else's claim to the API group of this server.
type Claim struct {
	// Object is the kind, name and UID of what claims it.
	Object corev1.ObjectReference
	// Why says what that means and what to do.
	Why string
}

func (c Claim) String() string { return c.Object.Kind + " " + c.Object.Name + ": " + c.Why }

// Claims looks for others who lay claim to the API group of this server, and tells whoever can mend it: by the log, an
// event, a metric and a health check. It changes nothing of theirs.
type Claims struct {
	apiService *APIService
	metadata   metadata.Interface
	kube       kubernetes.Interface
	instance   string
	found      atomic.Pointer[[]Claim]
}

// NewClaims returns Claims. instance names the replica in events.
func NewClaims(apiService *APIService, metadata metadata.Interface, kube kubernetes.Interface, instance string) *Claims {
	registerMetrics()
	return &Claims{apiService: apiService, metadata: metadata, kube: kube, instance: instance}
}

// Run looks until ctx ends.
func (c *Claims) Run(ctx context.Context) error {
	told := map[types.UID]string{}
	// Whoever looks from then on says what there is.
	defer observeClaims(nil)
	defer c.found.Store(nil)
	for {
		c.round(ctx, told)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(claimsInterval):
		}
	}
}

// round looks once. What was told already is not told again.
func (c *Claims) round(ctx context.Context, told map[types.UID]string) {
	log := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, claimsTimeout)
	defer cancel()
	claims, err := c.Find(ctx)
	if err != nil {
		log.Error(err, "Cannot find out who else claims the API", "group", v1alpha1.GroupName)
		return
	}
	c.found.Store(&claims)
	observeClaims(claims)
	now := map[types.UID]string{}
	for _, claim := range claims {
		now[claim.Object.UID] = claim.Why
		if told[claim.Object.UID] == claim.Why {
			continue
		}
		log.Error(nil, "Somebody else claims the API of this server", "kind", claim.Object.Kind, "name", claim.Object.Name, "problem", claim.Why)
		if err := c.tell(ctx, claim); err != nil {
			log.Error(err, "Cannot make an event", "kind", claim.Object.Kind, "name", claim.Object.Name)
		}
	}
	if len(told) > 0 && len(now) == 0 {
		log.Info("Nobody else claims the API of this server any more")
	}
	clear(told)
	for uid, why := range now {
		told[uid] = why
	}
}

// Find returns all claims of others.
func (c *Claims) Find(ctx context.Context) ([]Claim, error) {
	var claims []Claim
	v, err := c.apiService.Read(ctx)
	if err != nil {
		return nil, err
	}
	if v.Foreign != "" {
		claims = append(claims, Claim{
			Object: corev1.ObjectReference{APIVersion: APIServices.GroupVersion().String(), Kind: "APIService", Name: Name, UID: v.uid}, Why: v.Foreign,
		})
	}
	options := metav1.ListOptions{Limit: claimsPage}
	for {
		page, err := c.metadata.Resource(CRDs).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list the CustomResourceDefinitions: %w", err)
		}
		for _, crd := range page.Items {
			if !ofOurGroup(crd.Name) {
				continue
			}
			claims = append(claims, Claim{
				Object: corev1.ObjectReference{APIVersion: CRDs.GroupVersion().String(), Kind: "CustomResourceDefinition", Name: crd.Name, UID: crd.UID},
				Why: fmt.Sprintf("it is of the group %s, which this server serves: its objects of version %s cannot be reached while the APIService is there; delete it, or give it another group",
					v1alpha1.GroupName, v1alpha1.SchemeGroupVersion.Version),
			})
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return claims, nil
		}
	}
}

// ofOurGroup reports whether a CustomResourceDefinition is of the group: its name is the plural, which
// has no dot, and the group.
func ofOurGroup(name string) bool {
	_, group, _ := strings.Cut(name, ".")
	return group == v1alpha1.GroupName
}

// tell makes an event about what claims the API.
func (c *Claims) tell(ctx context.Context, claim Claim) error {
	now := metav1.NowMicro()
	_, err := c.kube.EventsV1().Events(metav1.NamespaceDefault).Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", claim.Object.Name, now.UnixNano()), Namespace: metav1.NamespaceDefault},
		EventTime:           now,
		ReportingController: reporter, ReportingInstance: c.instance,
		Type: corev1.EventTypeWarning, Reason: "APIClaimed", Action: "Serve", Regarding: claim.Object, Note: claim.Why,
	}, metav1.CreateOptions{})
	return err
}

// Check is a health check that fails while somebody else claims the API.
func (c *Claims) Check(*http.Request) error {
	found := c.found.Load()
	if found == nil {
		return nil
	}
	var errs []error
	for _, claim := range *found {
		errs = append(errs, errors.New(claim.String()))
	}
	return errors.Join(errs...)
}
