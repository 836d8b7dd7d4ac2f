// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apiserver"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/collect"
	"rukpak.io/apiserver/pkg/content/instance"
)

const (
	// instanceObject is the name of the ConfigMap that holds the cluster's mark.
	instanceObject = "rukpak-apiserver-instance"
	instanceKey    = "mark"
	// firstCheckTimeout bounds how long the start waits to know whether etcd and the stores are this server's. It serves
	// discovery after that, and refuses all else until it knows.
	firstCheckTimeout = 20 * time.Second
)

// checkInstance finds out whether etcd and the content stores are this server's, before anything is written to them.
func (p *process) checkInstance(ctx context.Context, _ context.CancelCauseFunc) error {
	guard, err := p.newGuard()
	if err != nil {
		return err
	}
	p.instance = guard
	// It is part of healthz alone, for the reasons that checkEtcd has.
	p.config.AddHealthzChecks(healthz.NamedCheck("instance", func(*http.Request) error { return guard.Err() }))
	if p.monitor != nil && p.monitor.Err() != nil {
		return nil // watchInstance looks once etcd is there
	}
	ctx, cancel := context.WithTimeout(ctx, firstCheckTimeout)
	defer cancel()
	// A refusal is served, and told by Observe.
	_ = guard.Check(ctx)
	return nil
}

// instanceConfig is about etcd and the stores that are open.
func (p *process) instanceConfig() instance.Config {
	config := instance.Config{
		KV: p.client, Prefix: referencePrefix, Objects: etcdPrefix + "/", Stores: map[string]instance.Store{}, Now: time.Now, Referred: p.referred,
	}
	for name, store := range p.stores {
		config.Stores[name] = store
	}
	return config
}

// newGuard makes the guard of etcd, the stores and the cluster.
func (p *process) newGuard() (*instance.Guard, error) {
	config := p.instanceConfig()
	config.Accept, config.Observe = p.AcceptDataLoss, newInstanceReport(p.AcceptDataLoss).observe
	if p.kube != nil {
		config.Cluster = &clusterMark{client: p.kube, namespace: p.Namespace}
		config.ClusterTitle = fmt.Sprintf("ConfigMap %s/%s", p.Namespace, instanceObject)
	}
	return instance.New(config)
}

// referred says whether etcd names content of a store.
func (p *process) referred(ctx context.Context, store string) (bool, error) {
	for _, err := range p.records.List(ctx, store) {
		return err == nil, err
	}
	return false, nil
}

// watchInstance looks from time to time until ctx ends.
func (p *process) watchInstance(ctx context.Context) error {
	p.instance.Run(ctx)
	return nil
}

// whenWhole runs something as soon as etcd and the content stores are known to be this server's.
func (p *process) whenWhole(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := p.instance.Wait(ctx); err != nil {
			return nil // ctx is over
		}
		return run(ctx)
	}
}

// guarded is a reader of the API state that fails while it may not be what the content of a store is to be measured by.
func (p *process) guarded(store string, live func(context.Context) (map[collect.Pair]struct{}, error)) func(context.Context) (map[collect.Pair]struct{}, error) {
	return func(ctx context.Context) (map[collect.Pair]struct{}, error) {
		err := p.instance.Sweep(ctx, store)
		if errors.Is(err, instance.ErrHold) {
			return nil, fmt.Errorf("%w: %w", collect.ErrHeld, err)
		}
		if err != nil {
			return nil, err
		}
		return live(ctx)
	}
}

// sweepStore removes what dead writers left in a store, if the store is this server's.
func (p *process) sweepStore(ctx context.Context, name string, store content.Store) error {
	if err := p.instance.Sweep(ctx, name); err != nil {
		return err
	}
	return store.Sweep(ctx, sweepAge)
}

// clusterMark keeps the mark of the cluster in a ConfigMap.
type clusterMark struct {
	client    kubernetes.Interface
	namespace string
	forbidden sync.Once
}

// ReadMark returns the mark. A server that may not read it does without: it says so, and its permissions are named elsewhere.
func (c *clusterMark) ReadMark(ctx context.Context) ([]byte, error) {
	found, err := c.client.CoreV1().ConfigMaps(c.namespace).Get(ctx, instanceObject, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		c.forbidden.Do(func() {
			klog.FromContext(ctx).Error(err, "The mark of the cluster cannot be read: the loss of the whole volume would not be noticed")
		})
		return nil, nil
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return []byte(found.Data[instanceKey]), nil
}

// WriteMark replaces the mark.
func (c *clusterMark) WriteMark(ctx context.Context, mark []byte) error {
	maps := c.client.CoreV1().ConfigMaps(c.namespace)
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: instanceObject, Namespace: c.namespace, Labels: map[string]string{"app.kubernetes.io/name": "rukpak-apiserver"}},
		Data:       map[string]string{instanceKey: string(mark)},
	}
	patch, err := json.Marshal(map[string]any{"data": object.Data})
	if err != nil {
		return err
	}
	_, err = maps.Patch(ctx, instanceObject, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: apiserver.Name})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = maps.Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = maps.Patch(ctx, instanceObject, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: apiserver.Name})
	}
	return err
}

var instanceMismatch = sync.OnceValue(func() *metrics.GaugeVec {
	m := metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name: "rukpak_instance_mismatch", StabilityLevel: metrics.ALPHA,
		Help: "1 for each place that does not fit to etcd, or of which this is not known yet. While there is one, requests are refused.",
	}, []string{"place", "reason"})
	legacyregistry.MustRegister(m)
	return m
})

// instanceReport tells what the checks of the instance find.
type instanceReport struct {
	metric *metrics.GaugeVec
	accept string

	mu            sync.Mutex
	last, trouble string
	checked       bool
}

func newInstanceReport(accept string) *instanceReport {
	return &instanceReport{metric: instanceMismatch(), accept: accept}
}

// observe logs what is new.
func (r *instanceReport) observe(verdict, trouble error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := klog.Background()
	if text := said(trouble); text != r.trouble && !errors.Is(trouble, context.Canceled) {
		r.trouble = text
		if trouble != nil {
			log.Error(trouble, "The check of the instance met a problem")
		}
	}
	text := said(verdict)
	if r.checked && text == r.last {
		return
	}
	first := !r.checked
	r.checked, r.last = true, text
	r.metric.Reset()
	var d *instance.Disagreement
	switch {
	case verdict == nil:
		log.Info("Etcd and the content stores fit together")
		if first && r.accept != "" {
			log.Info("No loss of data is refused any more: --accept-data-loss can go")
		}
	case errors.As(verdict, &d):
		for _, f := range d.Findings {
			r.metric.WithLabelValues(f.Place, string(f.Reason)).Set(1)
		}
		log.Error(verdict, "Requests are refused")
		if r.accept != "" {
			log.Error(nil, "--accept-data-loss names another loss than this one", "given", r.accept, "token", d.Token)
		}
	default:
		r.metric.WithLabelValues("", "Unverified").Set(1)
		log.Error(verdict, "Requests are refused")
	}
}

func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
