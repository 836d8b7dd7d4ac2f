// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"rukpak.io/apiserver/pkg/apiserver"
)

// applyTracing does what the generic options would with --tracing-config-file, under the server's own name.
func (p *process) applyTracing(ctx context.Context) error {
	path := p.Recommended.Traces.ConfigFile
	if path == "" {
		return nil
	}
	config, err := genericoptions.ReadTracingConfiguration(path)
	if err != nil {
		return fmt.Errorf("--tracing-config-file: %w", err)
	}
	if errs := tracingapi.ValidateTracingConfiguration(config, utilfeature.DefaultFeatureGate, nil); len(errs) > 0 {
		return fmt.Errorf("--tracing-config-file: %s: %w", path, errs.ToAggregate())
	}
	provider, err := newSpanProvider(ctx, config, flushTimeout, resource.WithAttributes(
		attribute.String("service.name", apiserver.Name), attribute.String("service.version", version), attribute.String("service.instance.id", podIdentity()),
	))
	if err != nil {
		return fmt.Errorf("--tracing-config-file: %w", err)
	}
	p.config.TracerProvider = provider
	return nil
}

// tracer records the spans of the server's own work. Where tracing is off it records none.
func (p *process) tracer() trace.Tracer {
	return p.config.TracerProvider.Tracer("rukpak.io/apiserver")
}
