// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"
)

// authorityFile is a file of authorities, PEM, that somebody else keeps.
type authorityFile struct {
	path    string
	content atomic.Pointer[[]byte]
}

func newAuthorityFile(path string) (*authorityFile, error) {
	f := &authorityFile{path: path}
	return f, f.reload()
}

// reload reads the file again. If it is not good, what was read before stays.
func (f *authorityFile) reload() error {
	raw, err := os.ReadFile(f.path)
	if err != nil {
		return fmt.Errorf("read the authorities: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(raw) {
		return fmt.Errorf("read the authorities: no certificate is in %s", f.path)
	}
	f.content.Store(&raw)
	return nil
}

func (f *authorityFile) bundle() []byte { return *f.content.Load() }
