// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Access is how private registries are reached. Its zero value is anonymous, and
// trusts what the system trusts. The files are read anew for each image, so that a
// change needs no restart.
type Access struct {
	// CredentialsFile is a config.json as docker writes it: its "auths" are used, by
	// registry, or by registry and the beginning of a repository's path. The registry may
	// have * in the parts of its name. Of several entries that fit the longest counts, alone.
	CredentialsFile string
	// AuthoritiesFile holds certificates, in PEM, of authorities that are trusted beside
	// those of the system.
	AuthoritiesFile string
	// PlainHTTP are the registries, HOST or HOST:PORT, that are spoken to without TLS where
	// they do not speak it.
	PlainHTTP []string
}

// Check returns what is wrong with the files as they are now. The errors wrap ErrAccess.
func (a Access) Check() error {
	_, credentialsErr := a.credentials()
	_, authoritiesErr := readAuthorities(a.AuthoritiesFile)
	return errors.Join(credentialsErr, authoritiesErr)
}

// maxAccessFile bounds the files of an Access, in bytes: it is that of a Secret.
const maxAccessFile = 1 << 20

// readAccessFile reads a whole file of an Access.
func readAccessFile(file string) (_ []byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAccess, err)
	}
	defer f.Close() // nothing is written
	data, err := io.ReadAll(io.LimitReader(f, maxAccessFile+1))
	if err == nil && len(data) > maxAccessFile {
		err = fmt.Errorf("%s has more than %d bytes", file, maxAccessFile)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAccess, err)
	}
	return data, nil
}

// entry is one of the auths.
type entry struct {
	host, path string
	login      authn.AuthConfig
}

// credentials reads the file, the longest entries first.
func (a Access) credentials() ([]entry, error) {
	if a.CredentialsFile == "" {
		return nil, nil
	}
	data, err := readAccessFile(a.CredentialsFile)
	if err != nil {
		return nil, err
	}
	var config struct {
		Auths             map[string]authn.AuthConfig `json:"auths"`
		CredentialsStore  string                      `json:"credsStore"`
		CredentialHelpers map[string]string           `json:"credHelpers"`
	}
	// What the decoder says can quote the file, and with it a secret.
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("%w: %s is no config.json of docker", ErrAccess, a.CredentialsFile)
	}
	if config.CredentialsStore != "" || len(config.CredentialHelpers) > 0 {
		return nil, fmt.Errorf("%w: %s names programs that hold credentials (credsStore, credHelpers), and none is run here: put them under auths", ErrAccess, a.CredentialsFile)
	}
	var entries []entry
	for _, key := range slices.Sorted(maps.Keys(config.Auths)) {
		host, path := splitKey(key)
		entries = append(entries, entry{host, path, config.Auths[key]})
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(len(b.path), len(a.path)), cmp.Compare(len(b.host), len(a.host)))
	})
	return entries, nil
}

// splitKey takes a key of auths apart, which may be a host, a host and a path, or
// the URL of an API that docker has spoken to.
func splitKey(key string) (host, path string) {
	if _, rest, ok := strings.Cut(key, "://"); ok {
		key = rest
	}
	host, path, _ = strings.Cut(key, "/")
	path = strings.Trim(path, "/")
	if path == "v1" || path == "v2" {
		path = ""
	}
	if host == "docker.io" || host == "registry-1.docker.io" {
		host = name.DefaultRegistry
	}
	return host, path
}

// login finds the credentials for a repository, nil if there are none.
func (a Access) login(repository name.Repository) (*authn.AuthConfig, error) {
	entries, err := a.credentials()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if hostMatches(e.host, repository.RegistryStr()) && isBelow(repository.RepositoryStr(), e.path) {
			return &e.login, nil
		}
	}
	return nil, nil
}

// hostMatches compares the parts between dots, each of which may have a * in the
// pattern, and the ports.
func hostMatches(pattern, host string) bool {
	if pattern == host {
		return true
	}
	wanted, parts := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(wanted) != len(parts) {
		return false
	}
	for i := range wanted {
		if ok, err := path.Match(wanted[i], parts[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// isBelow tells whether a repository is, or is below, what a path names.
func isBelow(repository, path string) bool {
	rest, ok := strings.CutPrefix(repository, path)
	return ok && (path == "" || rest == "" || rest[0] == '/')
}

// plain tells whether a registry may be spoken to without TLS.
func (a Access) plain(registry string) bool {
	if isLoopback(hostOf(registry)) {
		return true
	}
	return slices.Contains(a.PlainHTTP, registry) || slices.Contains(a.PlainHTTP, hostOf(registry))
}

// hostOf is a registry without its port.
func hostOf(registry string) string {
	if rest, ok := strings.CutPrefix(registry, "["); ok {
		host, _, _ := strings.Cut(rest, "]")
		return host
	}
	host, _, _ := strings.Cut(registry, ":")
	return host
}
