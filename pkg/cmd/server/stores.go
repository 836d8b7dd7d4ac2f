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
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/bucket"
	"rukpak.io/apiserver/pkg/content/etcdstore"
	"rukpak.io/apiserver/pkg/content/filesystem"
)

// Schemes of content stores.
const (
	schemeFile = "file" // a folder
	schemeEtcd = "etcd" // the etcd of the API
)

// bucketSchemes are those of stores in a bucket.
var bucketSchemes = []string{"s3", "gs", "azblob"}

// storePrefix is where the stores in etcd are, each below its name: outside of what the API's watch caches see.
const storePrefix = "/rukpak.io/blobs"

// What the leader does about writers that died in a store that is shared.
const (
	sweepInterval = time.Hour
	// sweepAge is longer than writers work: attempts end by their deadline, and what clients send at once is written when all
	// of it is there. A part of an upload that takes as long fails, and its client sends it again, or less at a time.
	sweepAge = 6 * time.Hour
)

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
	case schemeEtcd:
		if _, err := etcdCapacity(u); err != nil {
			return nil, err
		}
	default:
		if !slices.Contains(bucketSchemes, u.Scheme) {
			return nil, fmt.Errorf("scheme %q is not supported", u.Scheme)
		}
	}
	return u, nil
}

// etcdCapacity is how many bytes a store in etcd may keep.
func etcdCapacity(u *url.URL) (int64, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if u.Host != "" || u.Opaque != "" || strings.Trim(u.Path, "/") != "" || err != nil {
		return 0, errors.New("a store in etcd is etcd:?capacity=QUANTITY")
	}
	capacity := int64(etcdstore.DefaultCapacity)
	for key, values := range query {
		if key != "capacity" || len(values) != 1 {
			return 0, fmt.Errorf("parameter %q of a store in etcd: only capacity is known, once", key)
		}
		q, err := resource.ParseQuantity(values[0])
		if err != nil || q.Value() < etcdstore.ChunkSize {
			return 0, fmt.Errorf("capacity %q is not a quantity of at least 1Mi", values[0])
		}
		capacity = q.Value()
	}
	return capacity, nil
}

// openFolders opens the stores in folders. They come before etcd: a folder says at once that another
// server has it, where etcd would wait.
func (p *process) openFolders(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(p.storeURLs)) {
		if u := p.storeURLs[name]; u.Scheme == schemeFile {
			store, err := filesystem.Open(u.Path)
			if err := p.addStore(ctx, name, store, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// openSharedStores opens the stores that several servers may use.
func (p *process) openSharedStores(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(p.storeURLs)) {
		u := p.storeURLs[name]
		switch u.Scheme {
		case schemeFile:
		case schemeEtcd:
			capacity, err := etcdCapacity(u)
			if err := p.addStore(ctx, name, etcdstore.New(p.client, storePrefix+"/"+name, capacity), err); err != nil {
				return err
			}
		default:
			store, err := bucket.Open(ctx, u, bucket.Options{})
			if err := p.addStore(ctx, name, store, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// addStore takes a store that was opened, unless with an error, and closes it at the end.
func (p *process) addStore(ctx context.Context, name string, store content.Store, err error) error {
	if err != nil {
		return fmt.Errorf("open the content store %s: %w", name, err)
	}
	p.stores[name] = store
	p.onClose(func() {
		if err := store.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot close a content store", "store", name)
		}
	})
	return nil
}

// sweepStores removes what dead writers left in shared stores, until ctx ends.
func (p *process) sweepStores(ctx context.Context) error {
	wait.JitterUntilWithContext(ctx, func(ctx context.Context) {
		for name, store := range p.stores {
			if !store.Shared() {
				continue
			}
			if err := p.sweepStore(ctx, name, store); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot sweep a content store", "store", name)
			}
		}
	}, sweepInterval, 0.1, true)
	return nil
}
