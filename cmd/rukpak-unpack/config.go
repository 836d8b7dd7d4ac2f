// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// config is what the environment asks for.
type config struct {
	url        string
	serverName string
	roots      *x509.CertPool
	tokenFile  string
	root, path string
	limits     tarball.Limits
	timeout    time.Duration
	// traceParent is sent along; the program has no other use for it.
	traceParent string
}

// readConfig reads the environment. An error names the variable at fault.
func readConfig(getenv func(string) string) (config, error) {
	c := config{roots: x509.NewCertPool()}
	for name, field := range map[string]*string{
		contract.EnvURL: &c.url, contract.EnvServerName: &c.serverName,
		contract.EnvTokenFile: &c.tokenFile, contract.EnvRoot: &c.root,
	} {
		if *field = getenv(name); *field == "" {
			return config{}, fmt.Errorf("%s is not set", name)
		}
	}
	c.path, c.traceParent = getenv(contract.EnvPath), getenv(contract.EnvTraceParent)
	if u, err := url.Parse(c.url); err != nil || u.Scheme != "https" || u.Host == "" {
		return config{}, fmt.Errorf("%s: %q is no https URL", contract.EnvURL, c.url)
	}
	if !c.roots.AppendCertsFromPEM([]byte(getenv(contract.EnvCA))) {
		return config{}, fmt.Errorf("%s holds no certificate", contract.EnvCA)
	}
	for name, field := range map[string]*int64{
		contract.EnvCompressedBytes: &c.limits.CompressedBytes,
		contract.EnvBytes:           &c.limits.Bytes,
		contract.EnvFiles:           &c.limits.Files,
	} {
		n, err := strconv.ParseInt(getenv(name), 10, 64)
		if err == nil && n <= 0 {
			err = errors.New("not above 0")
		}
		if err != nil {
			return config{}, fmt.Errorf("%s: %w", name, err)
		}
		*field = n
	}
	timeout, err := time.ParseDuration(getenv(contract.EnvTimeout))
	if err == nil && timeout <= 0 {
		err = errors.New("not above 0")
	}
	if err != nil {
		return config{}, fmt.Errorf("%s: %w", contract.EnvTimeout, err)
	}
	c.timeout = timeout
	return c, nil
}
