// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/filesystem"
)

// schemeFile is the scheme of a store in a folder.
const schemeFile = "file"

// storeURLs are where the content stores are, by the names that classes use.
type storeURLs map[string]*url.URL

// parseStores reads the values of --content-store, NAME=URL. A store of the name that classes have by
// default is in a folder of the data dir unless it is given.
func parseStores(values []string, dataDir string) (storeURLs, error) {
	stores := storeURLs{}
	var errs []error
	for _, value := range values {
		name, raw, found := strings.Cut(value, "=")
		if !found {
			errs = append(errs, fmt.Errorf("--content-store: %q is not NAME=URL", value))
			continue
		}
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("--content-store: name %q: %s", name, strings.Join(problems, ", ")))
			continue
		}
		if stores[name] != nil {
			errs = append(errs, fmt.Errorf("--content-store: %q is given twice", name))
			continue
		}
		u, err := parseStore(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("--content-store: %s: %w", name, err))
			continue
		}
		stores[name] = u
	}
	if stores[v1alpha1.DefaultStore] == nil {
		stores[v1alpha1.DefaultStore] = &url.URL{Scheme: schemeFile, Path: filepath.Join(dataDir, "content")}
	}
	return stores, errors.Join(errs...)
}

// parseStore reads a URL. What is wrong with it is said without the URL, which may hold a secret.
func parseStore(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("its URL cannot be parsed")
	}
	if u.User != nil {
		return nil, errors.New("its URL holds a user or password, which do not belong on a command line")
	}
	switch u.Scheme {
	case schemeFile:
		if u.Host != "" || !filepath.IsAbs(u.Path) || u.RawQuery != "" {
			return nil, errors.New("a folder is file:///ABSOLUTE/PATH")
		}
		u.Path = filepath.Clean(u.Path)
	default:
		return nil, fmt.Errorf("scheme %q is not supported", u.Scheme)
	}
	return u, nil
}

// openFolders opens the stores in folders. They come before etcd: a folder says at once that another
// server has it, where etcd would wait.
func (p *process) openFolders(ctx context.Context) error {
	return p.openStores(ctx, func(u *url.URL) bool { return u.Scheme == schemeFile },
		func(_ context.Context, u *url.URL) (content.Store, error) { return filesystem.Open(u.Path) })
}

// openStores opens those of the configured stores that are chosen, and closes them at the end.
func (p *process) openStores(ctx context.Context, chosen func(*url.URL) bool, open func(context.Context, *url.URL) (content.Store, error)) error {
	for _, name := range slices.Sorted(maps.Keys(p.storeURLs)) {
		if !chosen(p.storeURLs[name]) {
			continue
		}
		store, err := open(ctx, p.storeURLs[name])
		if err != nil {
			return fmt.Errorf("open the content store %s: %w", name, err)
		}
		p.onClose(func() {
			if err := store.Close(); err != nil {
				klog.FromContext(ctx).Error(err, "Cannot close a content store", "store", name)
			}
		})
		p.stores[name] = store
	}
	return nil
}
