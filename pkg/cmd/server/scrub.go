// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/content/verify"
)

// scrubPrefix is where the progress of the scrubbers is, by the name of the store.
const scrubPrefix = "/rukpak.io/scrub/"

// ScrubOptions are the flags of the scrubbers, which read stored content again.
type ScrubOptions struct {
	// Interval is how often all content is read; 0 is never.
	Interval time.Duration
	// Rate is how fast, in MiB a second for each store.
	Rate int64
}

func (o *ScrubOptions) addFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.Interval, "content-scrub-interval", o.Interval, "How often all stored content is read again, to find what has changed on the disk. 0 turns it off.")
	fs.Int64Var(&o.Rate, "content-scrub-rate", o.Rate, "How fast stored content is read again, in MiB a second for each store.")
}

func (o *ScrubOptions) validate() []error {
	var errs []error
	if o.Interval < 0 {
		errs = append(errs, fmt.Errorf("--content-scrub-interval: %v is negative", o.Interval))
	}
	if o.Rate < 1 {
		errs = append(errs, fmt.Errorf("--content-scrub-rate: %d is less than 1", o.Rate))
	}
	return errs
}

// scrubMetrics count what this process did while it led.
type scrubMetrics struct {
	blobs, bytes, damaged, unreadable, failures *metrics.CounterVec
	completed                                   *metrics.GaugeVec
}

var newScrubMetrics = sync.OnceValue(func() *scrubMetrics {
	labels := []string{"store"}
	counter := func(name, help string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
	}
	m := &scrubMetrics{
		blobs:      counter("rukpak_content_scrub_blobs_total", "Stored blobs that were read again."),
		bytes:      counter("rukpak_content_scrub_bytes_total", "Bytes of stored blobs that were read again."),
		damaged:    counter("rukpak_content_scrub_damaged_total", "Stored blobs that did not have their digest."),
		unreadable: counter("rukpak_content_scrub_unreadable_total", "Stored blobs that could not be read again."),
		failures:   counter("rukpak_content_scrub_failures_total", "Passes over the stored blobs that could not go on for the moment."),
		completed: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Name: "rukpak_content_scrub_last_completed_timestamp_seconds", Help: "When all blobs had been read again last; when that was begun, if it never has come to its end.", StabilityLevel: metrics.ALPHA,
		}, labels),
	}
	legacyregistry.MustRegister(m.blobs, m.bytes, m.damaged, m.unreadable, m.failures, m.completed)
	return m
})

// begin shows the counters of a store at 0, so that their first step is one.
func (m *scrubMetrics) begin(store string) {
	for _, c := range []*metrics.CounterVec{m.blobs, m.bytes, m.damaged, m.unreadable, m.failures} {
		c.WithLabelValues(store)
	}
}

// show shows how far the passes over a store are. The first one counts from its beginning until it is at its end, so that
// one which never is gets late, too.
func (m *scrubMetrics) show(store string, p verify.Progress) {
	since := p.Completed
	if since.IsZero() {
		since = p.Started
	}
	if !since.IsZero() {
		m.completed.WithLabelValues(store).Set(float64(since.Unix()))
	}
}

// scrubber returns what reads the blobs of a store again until ctx ends.
func (p *process) scrubber(name string) func(context.Context) error {
	if p.Scrub.Interval == 0 {
		return func(context.Context) error { return nil }
	}
	log, m := klog.Background().WithValues("store", name), newScrubMetrics()
	s := &verify.Scrubber{
		Store: p.stores[name], Interval: p.Scrub.Interval, Pace: verify.NewPace(p.Scrub.Rate << 20), Now: time.Now,
		Load: func(ctx context.Context) (verify.Progress, error) {
			progress, err := loadProgress(ctx, p.client, name)
			if err == nil {
				m.show(name, progress)
			}
			return progress, err
		},
		Save: func(ctx context.Context, progress verify.Progress) error {
			err := saveProgress(ctx, p.client, name, progress)
			if err == nil {
				m.show(name, progress)
			}
			return err
		},
		Damaged: func(ctx context.Context, digest string) error {
			_, err := p.server.Content.Damaged(ctx, name, digest)
			return err
		},
		Observe: func(progress verify.Progress, digest string, size int64, err error) {
			if digest == "" {
				log.Info("Read all stored content again", "blobs", progress.Blobs, "bytes", progress.Bytes, "damaged", progress.Damaged, "failures", progress.Failures)
				return
			}
			m.blobs.WithLabelValues(name).Inc()
			m.bytes.WithLabelValues(name).Add(float64(size))
			if errors.Is(err, verify.ErrDamaged) {
				m.damaged.WithLabelValues(name).Inc()
			} else if err != nil {
				m.unreadable.WithLabelValues(name).Inc()
			}
			if err != nil {
				log.Error(err, "Stored content is not as it should be", "digest", digest)
			}
		},
	}
	return func(ctx context.Context) error {
		m.begin(name)
		return s.Run(ctx, func(err error) {
			m.failures.WithLabelValues(name).Inc()
			log.Error(err, "Cannot read stored content again now")
		})
	}
}

// progressTimeout bounds the reading and writing of a progress.
const progressTimeout = 10 * time.Second

func loadProgress(ctx context.Context, kv clientv3.KV, store string) (verify.Progress, error) {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	var progress verify.Progress
	resp, err := kv.Get(ctx, scrubPrefix+store)
	if err != nil {
		return progress, fmt.Errorf("read the progress: %w", err)
	}
	if len(resp.Kvs) == 0 {
		return progress, nil
	}
	if err := json.Unmarshal(resp.Kvs[0].Value, &progress); err != nil {
		return progress, fmt.Errorf("read the progress, key %s: %w", scrubPrefix+store, err)
	}
	return progress, nil
}

func saveProgress(ctx context.Context, kv clientv3.KV, store string, progress verify.Progress) error {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	value, err := json.Marshal(progress)
	if err != nil {
		return err
	}
	if _, err := kv.Put(ctx, scrubPrefix+store, string(value)); err != nil {
		return fmt.Errorf("write the progress: %w", err)
	}
	return nil
}
