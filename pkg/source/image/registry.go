// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"rukpak.io/apiserver/pkg/platform"
)

// maxNesting is how many indexes may be followed until an image is reached.
const maxNesting = 4

var manifestTypes = strings.Join([]string{
	string(types.OCIImageIndex), string(types.DockerManifestList),
	string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
}, ", ")

// session asks a registry about one repository.
type session struct {
	puller     *Puller
	client     *http.Client
	base       url.URL
	repository string
	// who says, for errors, with which credentials.
	who string
}

// open starts a session: it finds out which scheme the registry speaks, and
// gets a token where it wants one.
func (p *Puller) open(ctx context.Context, repository name.Repository) (*session, error) {
	registry := repository.Registry
	host := registry.RegistryStr()
	base, err := p.transport()
	if err != nil {
		return nil, err
	}
	login, err := p.access.login(repository)
	if err != nil {
		return nil, err
	}
	s := &session{
		puller: p,
		// The transport replaces the scheme by the one it found out.
		base:       url.URL{Scheme: "https", Host: host},
		repository: repository.RepositoryStr(),
		who:        "there are no credentials for " + host,
	}
	authenticator := authn.Anonymous
	if login != nil {
		authenticator = authn.FromConfig(*login)
		s.who = "with the credentials for " + host
	}
	plain := p.access.plain(host)
	if plain {
		if registry, err = name.NewRegistry(host, name.WeakValidation, name.Insecure); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalidReference, err)
		}
	}
	below := guard{base: base, registry: host, plain: plain}
	above, err := transport.NewWithContext(ctx, registry, authenticator, below, []string{repository.Scope(transport.PullScope)})
	if err != nil {
		return nil, s.classify(err)
	}
	s.client = &http.Client{Transport: above}
	return s, nil
}

// classify gives an error its kind, and says of one about credentials which there were.
func (s *session) classify(err error) error {
	err = classify(err)
	if errors.Is(err, ErrUnauthorized) {
		return fmt.Errorf("%s: %w", s.who, err)
	}
	return err
}

// do asks for kind/identifier of the repository. The caller closes the body.
func (s *session) do(ctx context.Context, method, kind, identifier, accept string) (*http.Response, error) {
	target := s.base.JoinPath("v2", s.repository, kind, identifier)
	req, err := http.NewRequestWithContext(ctx, method, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidReference, err)
	}
	req.Header.Set("Accept", accept)
	resp, err := s.client.Do(req)
	if err != nil {
		if errors.Is(context.Cause(ctx), errStalled) {
			err = errStalled
		}
		return nil, s.classify(fmt.Errorf("%s %s: %w", method, target.Path, err))
	}
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		resp.Body.Close()
		return nil, s.classify(err)
	}
	return resp, nil
}

// resolve returns the digest of the manifest or index that tag names.
func (s *session) resolve(ctx context.Context, tag string) (v1.Hash, error) {
	resp, err := s.do(ctx, http.MethodHead, "manifests", tag, manifestTypes)
	if err != nil {
		return v1.Hash{}, err
	}
	resp.Body.Close()
	if digest, err := v1.NewHash(resp.Header.Get("Docker-Content-Digest")); err == nil && digest.Algorithm == "sha256" {
		return digest, nil
	}
	// Not every registry sends the header, which the specification leaves optional.
	raw, _, err := s.read(ctx, tag)
	if err != nil {
		return v1.Hash{}, err
	}
	return hashOf(raw), nil
}

// image returns the manifest of the image that digest names, or that the index
// which it names holds for a platform.
func (s *session) image(ctx context.Context, digest v1.Hash, want platform.Platform) (*v1.Manifest, error) {
	for range maxNesting {
		raw, mediaType, err := s.read(ctx, digest.String())
		if err != nil {
			return nil, err
		}
		if got := hashOf(raw); got != digest {
			return nil, invalid("the registry sent %s as the manifest %s", got, digest)
		}
		switch {
		case mediaType.IsImage():
			manifest, err := v1.ParseManifest(bytes.NewReader(raw))
			if err != nil {
				return nil, invalid("manifest %s: %w", digest, err)
			}
			return manifest, nil
		case mediaType.IsIndex():
			index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
			if err != nil {
				return nil, invalid("index %s: %w", digest, err)
			}
			if digest, err = choose(index.Manifests, want); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("%w: manifest %s has the unknown media type %q", ErrNoImage, digest, mediaType)
		}
	}
	return nil, invalid("more than %d indexes inside each other", maxNesting)
}

// read returns a manifest or index and its media type.
func (s *session) read(ctx context.Context, identifier string) ([]byte, types.MediaType, error) {
	resp, err := s.do(ctx, http.MethodGet, "manifests", identifier, manifestTypes)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, "", classify(fmt.Errorf("read manifest %s: %w", identifier, err))
	}
	// What the manifest says of itself is covered by its digest, the header is not.
	var self struct {
		MediaType types.MediaType `json:"mediaType"`
	}
	if err := json.Unmarshal(raw, &self); err != nil {
		return nil, "", invalid("manifest %s: %w", identifier, err)
	}
	if self.MediaType == "" {
		mediaType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
		self.MediaType = types.MediaType(strings.TrimSpace(mediaType))
	}
	return raw, self.MediaType, nil
}

// blob writes the blob that d describes to w and checks its digest and size.
func (s *session) blob(ctx context.Context, d v1.Descriptor, w io.Writer) error {
	ctx, dog, stop := newWatchdog(ctx, s.puller.stall)
	defer stop()
	resp, err := s.do(ctx, http.MethodGet, "blobs", d.Digest.String(), acceptBlob)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	hash := sha256.New()
	source := &rememberingReader{r: io.LimitReader(resp.Body, d.Size+1)}
	n, err := io.Copy(io.MultiWriter(dog, hash, w), source)
	switch {
	case source.err != nil && errors.Is(context.Cause(ctx), errStalled):
		return classify(fmt.Errorf("layer %s: %w", d.Digest, errStalled))
	case source.err != nil:
		return classify(fmt.Errorf("layer %s: %w", d.Digest, source.err))
	case err != nil:
		return fmt.Errorf("layer %s: write to scratch: %w", d.Digest, err)
	case n != d.Size:
		return invalid("layer %s has not the %d bytes that its manifest says", d.Digest, d.Size)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != d.Digest.Hex {
		return invalid("the registry sent sha256:%s as the layer %s", got, d.Digest)
	}
	return nil
}

// rememberingReader remembers its error, so that it can be told from that of
// the writer of a copy.
type rememberingReader struct {
	r   io.Reader
	err error
}

func (r *rememberingReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

func hashOf(raw []byte) v1.Hash {
	sum := sha256.Sum256(raw)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}
