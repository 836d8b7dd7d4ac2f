// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// What can go wrong with a registry, to be told apart with errors.Is. Each
// wraps the cause.
var (
	// ErrInvalidReference says that a reference cannot name an image.
	ErrInvalidReference = errors.New("invalid image reference")
	// ErrNotFound says that the registry knows no such image or layer.
	ErrNotFound = errors.New("image not found")
	// ErrUnauthorized says that the registry does not give the image to whoever has the
	// credentials that there are, if any. Several registries say so of images that do not
	// exist, too.
	ErrUnauthorized = errors.New("image does not exist or needs other credentials")
	// ErrTooManyRequests says that the registry limits the rate of requests.
	ErrTooManyRequests = errors.New("registry allows no more requests for now")
	// ErrUnreachable says that the registry cannot be reached, breaks off, or
	// answers with an error of its own.
	ErrUnreachable = errors.New("registry unreachable")
	// ErrNotTrusted says that the registry's certificate is none that this host trusts,
	// or that it speaks no TLS.
	ErrNotTrusted = errors.New("registry not trusted")
	// ErrInvalidImage says that what the registry sent is not what its digest
	// says, is broken, or is of a kind that this package does not know.
	ErrInvalidImage = errors.New("invalid image")
	// ErrPlatform is the ErrInvalidImage that an index holds images, but none for
	// this platform.
	ErrPlatform = fmt.Errorf("%w: not for this platform", ErrInvalidImage)
	// ErrAccess says that a file of an Access cannot be used.
	ErrAccess = errors.New("configuration of registries")
	// ErrEmpty is the ErrInvalidImage of one that holds not one file.
	ErrEmpty = fmt.Errorf("%w: there is not one file in it", ErrInvalidImage)
	// ErrNoImage is the ErrInvalidImage of an artifact that is no image of files.
	ErrNoImage = fmt.Errorf("%w: another kind of artifact", ErrInvalidImage)
)

var (
	errPlainHTTP        = errors.New("plain http is spoken with registries on loopback, and those that are named for it, only")
	errForbiddenAddress = errors.New("no connection is made to such an address on behalf of a registry")
	errStalled          = errors.New("no byte arrived for too long")
)

// invalid makes an ErrInvalidImage.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalidImage, fmt.Errorf(format, args...))
}

// describe adds the reference to an error. Once ctx has ended its error is the
// cause of whatever else went wrong.
func describe(ctx context.Context, reference string, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("image %s: %w", reference, err)
}

// classify gives an error of a request to a registry its kind.
func classify(err error) error {
	if errors.Is(err, ErrInvalidImage) || errors.Is(err, ErrAccess) {
		return err
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return invalid("the registry's answer is too large: %w", err)
	}
	kind := ErrUnreachable
	if answer, ok := errors.AsType[*transport.Error](err); ok {
		switch answer.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			kind = ErrUnauthorized
		case http.StatusNotFound, http.StatusGone:
			kind = ErrNotFound
		case http.StatusTooManyRequests:
			kind = ErrTooManyRequests
		case http.StatusBadRequest:
			// Registries refuse names so that their own rules do not allow.
			kind = ErrInvalidReference
		}
	}
	// On loopback plain HTTP has been tried after that, and what was answered to it says nothing.
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok || errors.Is(err, http.ErrSchemeMismatch) {
		kind = ErrNotTrusted
	}
	return fmt.Errorf("%w: %w", kind, err)
}
