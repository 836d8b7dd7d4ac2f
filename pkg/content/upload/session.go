// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package upload

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"rukpak.io/apiserver/pkg/content/reference"
)

// Errors of this package, to be found with errors.Is.
var (
	// ErrNotFound means that there is no such session, or none any more.
	ErrNotFound = errors.New("upload not found")
	// ErrChanged means that somebody else changed the session since it was read.
	ErrChanged = errors.New("upload has changed")
	// ErrInvalidID means that a text cannot be the ID of a session.
	ErrInvalidID = errors.New("invalid upload ID")
)

// UnreadableError says that a key that should hold a session does not.
type UnreadableError struct {
	// Key is that of etcd, and ID the session's, "" if it cannot be told.
	Key, ID string
	Err     error
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("key %s of etcd holds no upload: %v", e.Key, e.Err)
}

// Unwrap returns what is wrong.
func (e *UnreadableError) Unwrap() error { return e.Err }

// MayHold reports whether a holder of a reference record may be a part of the session. What it names is not known,
// so all of it has to stay.
func (e *UnreadableError) MayHold(holder string) bool {
	if e.ID == "" {
		return strings.HasPrefix(holder, HolderPrefix)
	}
	return strings.HasPrefix(holder, HolderPrefix+e.ID+"-")
}

// HolderPrefix begins the holder, reference.Ref.BundleUID, of each record of a part. No bundle has such a UID.
const HolderPrefix = "upload-"

// UnknownLength is the Length of a session whose client has not said how many bytes will come.
const UnknownLength = -1

// Key says where a session is.
type Key struct {
	Namespace string // of the bundle
	BundleUID string
	ID        string // as NewID makes them
}

// Session is an upload under way.
type Session struct {
	Key `json:"-"`
	// Bundle is the name of the bundle, and Generation that of the spec that the upload is for.
	Bundle     string `json:"bundle"`
	Generation int64  `json:"generation"`
	// User is the name of the only one who may go on with it.
	User string `json:"user"`
	// Store is the name of the content store that has the parts.
	Store string `json:"store"`
	// Created is when it began, and Touched when it last changed.
	Created time.Time `json:"created"`
	Touched time.Time `json:"touched"`
	// Length is how many bytes the client means to send, or UnknownLength.
	Length int64 `json:"length"`
	// MaxBytes is how many bytes it may have, 0 for any.
	MaxBytes int64 `json:"maxBytes,omitempty"`
	// IfMatch, IfNoneMatch and ReprDigest are the header fields of that name of the request that began it.
	IfMatch     string `json:"ifMatch,omitempty"`
	IfNoneMatch string `json:"ifNoneMatch,omitempty"`
	ReprDigest  string `json:"reprDigest,omitempty"`
	// Parts are the bytes so far, in order.
	Parts []Part `json:"parts,omitempty"`
	// Committing is the digest of the content that all bytes are about to become; "" before it is known.
	Committing string `json:"committing,omitempty"`
	// Outcome says how it ended; nil while it is open.
	Outcome *Outcome `json:"outcome,omitempty"`

	revision int64 // of the key
}

// Part is a blob that holds some of the bytes.
type Part struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// Nonce tells the request that brought it from all others.
	Nonce string `json:"nonce"`
}

// Outcome is how a session ended.
type Outcome struct {
	// Size is how many bytes it had.
	Size int64 `json:"size"`
	// Digest is that of the content that the bytes became, empty if they were refused.
	Digest string `json:"digest,omitempty"`
	// Refusal is the answer to a request whose bytes were refused, as JSON.
	Refusal []byte `json:"refusal,omitempty"`
}

// Offset is how many bytes there are.
func (s *Session) Offset() int64 {
	if s.Outcome != nil {
		return s.Outcome.Size
	}
	var n int64
	for _, p := range s.Parts {
		n += p.Size
	}
	return n
}

// Ref is the reference record of one of the session's parts.
func (s *Session) Ref(p Part) reference.Ref {
	return reference.Ref{Store: s.Store, Digest: p.Digest, BundleUID: HolderPrefix + s.ID + "-" + p.Nonce}
}

// Bounds of the sizes of parts. Each but the last has minPart bytes, or a share of all that came before it: so a
// session has few parts even when it is large or its requests are small.
const (
	minPart   = 4 << 20
	partShare = 256
)

// Grown returns the last part if it is too small to stay as it is: the bytes that come next go into
// one part with it. Else it returns nil.
func (s *Session) Grown() *Part {
	if len(s.Parts) == 0 {
		return nil
	}
	last := &s.Parts[len(s.Parts)-1]
	if last.Size >= max(minPart, s.Offset()/partShare) {
		return nil
	}
	return last
}

// With returns the session with a part more, in place of the last one if grown. The session itself is as it was.
func (s *Session) With(p Part, grown bool) Session {
	next := *s
	keep := len(s.Parts)
	if grown {
		keep--
	}
	next.Parts, next.Committing = append(s.Parts[:keep:keep], p), ""
	return next
}

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

const (
	idBytes    = 16
	nonceBytes = 8
)

// NewID makes an ID that nobody can guess.
func NewID() string {
	var raw [idBytes]byte
	// It never fails.
	_, _ = rand.Read(raw[:])
	return idEncoding.EncodeToString(raw[:])
}

// NewNonce makes the Nonce of a part.
func NewNonce() string {
	var raw [nonceBytes]byte
	_, _ = rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

// CheckID returns ErrInvalidID for what NewID cannot have made.
func CheckID(id string) error {
	if len(id) != idEncoding.EncodedLen(idBytes) || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		return fmt.Errorf("%w: %.40q", ErrInvalidID, id)
	}
	return nil
}
