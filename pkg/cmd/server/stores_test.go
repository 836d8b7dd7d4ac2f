// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"maps"
	"strings"
	"testing"
)

func TestParseStores(t *testing.T) {
	for name, test := range map[string]struct {
		values []string
		want   map[string]string
		err    string // part of the error
	}{
		"none":                   {nil, map[string]string{"default": "file:///data/content"}, ""},
		"another beside it":      {[]string{"big=file:///mnt/big/"}, map[string]string{"default": "file:///data/content", "big": "file:///mnt/big"}, ""},
		"the default elsewhere":  {[]string{"default=file:///mnt"}, map[string]string{"default": "file:///mnt"}, ""},
		"no name":                {[]string{"file:///mnt"}, nil, `"file:///mnt" is not NAME=URL`},
		"a name that cannot be":  {[]string{"a/b=file:///mnt"}, nil, `name "a/b"`},
		"twice":                  {[]string{"a=file:///mnt", "a=file:///mnt"}, nil, `"a" is given twice`},
		"a relative folder":      {[]string{"a=file:mnt"}, nil, "a: a folder is file:///ABSOLUTE/PATH"},
		"a folder of a host":     {[]string{"a=file://host/mnt"}, nil, "a: a folder is"},
		"a folder with options":  {[]string{"a=file:///mnt?x=y"}, nil, "a: a folder is"},
		"a scheme nobody knows":  {[]string{"a=ftp://host"}, nil, `scheme "ftp" is not supported`},
		"etcd and a bucket":      {[]string{"a=etcd:?capacity=2Gi", "b=s3://bucket?region=x", "c=etcd:"}, map[string]string{"default": "file:///data/content", "a": "etcd:?capacity=2Gi", "b": "s3://bucket?region=x", "c": "etcd:"}, ""},
		"a host of etcd":         {[]string{"a=etcd://host:2379"}, nil, "a: a store in etcd is etcd:?capacity=QUANTITY"},
		"too small an etcd":      {[]string{"a=etcd:?capacity=1Ki"}, nil, `capacity "1Ki"`},
		"an etcd with more":      {[]string{"a=etcd:?size=1Gi"}, nil, `parameter "size"`},
		"no scheme":              {[]string{"a=/mnt"}, nil, `scheme "" is not supported`},
		"a password in the open": {[]string{"a=file://me:secret@host/mnt"}, nil, "user or password"},
		"not a URL":              {[]string{"a=file://[secret"}, nil, "cannot be parsed"},
	} {
		t.Run(name, func(t *testing.T) {
			stores, err := parseStores(test.values, "/data")
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v", err)
				}
				return
			}
			got := map[string]string{}
			for name, u := range stores {
				got[name] = u.String()
			}
			if err != nil || !maps.Equal(got, test.want) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}
