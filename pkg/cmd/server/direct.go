// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/source/image"
)

// DirectOptions are the flags of how the server itself pulls images, in mode Direct.
type DirectOptions struct {
	RegistryConfig string
	CAFile         string
	PlainHTTP      []string
}

func (o *DirectOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.RegistryConfig, "direct-registry-config", o.RegistryConfig, "A config.json as docker writes it, with the credentials of registries that mode Direct pulls from (auths). Read anew for each image. Every bundle in mode Direct is pulled with them.")
	fs.StringVar(&o.CAFile, "direct-ca-file", o.CAFile, "Certificates, in PEM, of authorities that mode Direct trusts registries by, beside those of the system. Read anew for each image.")
	fs.StringSliceVar(&o.PlainHTTP, "direct-plain-http", o.PlainHTTP, "Registries, HOST or HOST:PORT, that mode Direct speaks to without TLS where they do not speak it, beside those on loopback.")
}

func (o *DirectOptions) validate() error {
	var errs []error
	if err := o.access().Check(); err != nil {
		errs = append(errs, fmt.Errorf("--direct-registry-config, --direct-ca-file: %w", err))
	}
	for _, host := range o.PlainHTTP {
		if host == "" || strings.ContainsAny(host, "/ *") {
			errs = append(errs, fmt.Errorf("--direct-plain-http: %q is neither HOST nor HOST:PORT", host))
		}
	}
	return errors.Join(errs...)
}

func (o *DirectOptions) access() image.Access {
	return image.Access{CredentialsFile: o.RegistryConfig, AuthoritiesFile: o.CAFile, PlainHTTP: o.PlainHTTP}
}

// validatePlatform returns what is wrong with the flag --default-platform.
func validatePlatform(text string) error {
	if _, err := platform.Parse(text); err != nil {
		return fmt.Errorf("--default-platform: %q: %w", text, err)
	}
	return nil
}
