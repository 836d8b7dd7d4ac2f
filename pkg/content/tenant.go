// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import "context"

type tenantKey struct{}

// ForTenant says on whose behalf a Store is written to, so that one whose writes are slow does not keep those of others
// waiting. A Store shares out what it has little of by it, and nothing else: the content is the same for everybody.
func ForTenant(ctx context.Context, tenant string) context.Context {
	return context.WithValue(ctx, tenantKey{}, tenant)
}

// Tenant is what ForTenant said last, or empty, which is a tenant as well.
func Tenant(ctx context.Context) string {
	tenant, _ := ctx.Value(tenantKey{}).(string)
	return tenant
}
