// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/server/healthz"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"

	"rukpak.io/apiserver/pkg/etcd"
)

// etcdCheckTimeout bounds one question of a check of health, or of a scrape, to etcd. Two of them are asked for a healthz.
const etcdCheckTimeout = time.Second

// addEtcdChecks makes the state of etcd part of the health of the server.
func (p *process) addEtcdChecks() {
	p.config.AddHealthzChecks(healthz.NamedCheck("etcd", p.checkEtcd), healthz.NamedCheck("etcd-space", p.checkEtcdSpace))
	if p.monitor != nil {
		p.config.AddReadyzChecks(healthz.NamedCheck("etcd-reached", func(*http.Request) error { return unreached(p.monitor) }))
	}
}

// etcdAway is the error with which etcd does not answer, as far as it is known without a question.
func (p *process) etcdAway() error {
	if p.monitor == nil {
		return nil
	}
	return p.monitor.Err()
}

// checkEtcd is part of healthz alone. A server that is killed because its etcd is away (livez) comes back no
// better. One that gets no requests because of it (readyz) stops answering discovery, and an API that
// does not answer discovery keeps every namespace of the cluster from being deleted; as it is, only
// requests for bundles and classes fail, and say why.
func (p *process) checkEtcd(req *http.Request) error {
	if err := p.etcdAway(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(req.Context(), etcdCheckTimeout)
	defer cancel()
	_, err := p.client.Get(ctx, referencePrefix, clientv3.WithCountOnly())
	return err
}

// checkEtcdSpace is part of healthz alone, as checkEtcd is. An etcd that does not tell, as one whose users may not
// ask for alarms, counts as healthy: whether it answers at all is the matter of the other check.
func (p *process) checkEtcdSpace(req *http.Request) error {
	if p.etcdAway() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(req.Context(), etcdCheckTimeout)
	defer cancel()
	full, err := etcd.HasNoSpace(ctx, p.client)
	if err == nil && full {
		return errors.New(etcd.NoSpaceMessage)
	}
	return nil
}

// unreached is part of readyz. A server that has never reached its etcd is most likely told the wrong one: it takes no place of
// one that works, and a rollout stops at it. Once etcd has answered it is checkEtcd's matter.
func unreached(monitor *etcd.Monitor) error {
	if err := monitor.Unreached(); err != nil {
		return fmt.Errorf("etcd has not answered since the start: %w", err)
	}
	return nil
}

// measureEtcd has the generic metric of the size of etcd read by the client that there is, within a second. The generic server makes one of its
// own in the first scrape, which waits 20 s for an etcd that is away.
func (p *process) measureEtcd() {
	etcdmetrics.SetStorageMonitorGetter(func() ([]etcdmetrics.Monitor, error) {
		if err := p.etcdAway(); err != nil {
			return nil, err
		}
		return []etcdmetrics.Monitor{etcdSize{p.client}}, nil
	})
}

// etcdSize measures by a client that is somebody else's.
type etcdSize struct{ client *clientv3.Client }

// Monitor asks all members at the same time, and takes what those say that answer within a second.
func (s etcdSize) Monitor(ctx context.Context) (etcdmetrics.StorageMetrics, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdCheckTimeout)
	defer cancel()
	size, err := etcd.Size(ctx, s.client)
	return etcdmetrics.StorageMetrics{Size: size}, err
}

// Close does nothing.
func (etcdSize) Close() error { return nil }
