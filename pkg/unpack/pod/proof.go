// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// Attempt is one attempt to unpack one bundle.
type Attempt struct {
	BundleUID  types.UID
	Generation int64
	Number     int32
	Nonce      string
}

// AttemptOf returns the attempt that the status of a bundle names. The nonce is
// empty when it names none.
func AttemptOf(b *v1alpha1.Bundle) Attempt {
	a := Attempt{BundleUID: b.UID}
	if u := b.Status.Unpack; u != nil {
		a.Generation, a.Number, a.Nonce = u.Generation, u.Attempt, u.Nonce
	}
	return a
}

// nonceEncoding makes lower-case letters and digits, which a pod name may hold.
var nonceEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewNonce makes a random name of 80 bits in 16 characters.
func NewNonce() string {
	var b [10]byte
	// It never returns an error: crypto/rand ends the process instead.
	rand.Read(b[:])
	return NonceOf(b[:])
}

// NonceOf makes such a name of the first 80 bits of a sum.
func NonceOf(sum []byte) string { return nonceEncoding.EncodeToString(sum[:10]) }

// maxName is the length of a DNS label. A pod's name may be longer, but is its
// hostname too and cut off there.
const maxName = 63

// Name makes the name of an attempt's pod, a DNS label, from that of the bundle
// and the attempt's nonce. Two names that are cut to the same differ in their nonces.
func Name(bundle, nonce string) string {
	prefix := strings.ReplaceAll(bundle, ".", "-")
	prefix = prefix[:min(len(prefix), max(0, maxName-1-len(nonce)))]
	if prefix = strings.Trim(prefix, "-"); prefix == "" {
		return nonce
	}
	return prefix + "-" + nonce
}

// Proof is the value of the annotation rukpak.io/attempt: the attempt, and a
// keyed hash (HMAC-SHA-256) over it and the bundle's UID.
func (a Attempt) Proof(key []byte) string {
	head := fmt.Sprintf("%d.%d.%s.", a.Generation, a.Number, a.Nonce)
	return head + base64.RawURLEncoding.EncodeToString(a.mac(key))
}

func (a Attempt) mac(key []byte) []byte {
	h := hmac.New(sha256.New, key)
	// None of the parts can hold a line break, so no two attempts give the same text.
	fmt.Fprintf(h, "rukpak.io/attempt v1\n%s\n%d\n%d\n%s\n", a.BundleUID, a.Generation, a.Number, a.Nonce)
	return h.Sum(nil)
}

// ErrNotOurs says that a pod was not made by a server with this key.
var ErrNotOurs = errors.New("the pod carries no proof that this server made it")

// Made returns the attempt that a pod was made for. The error wraps ErrNotOurs
// unless its proof is right for the Bundle that owns it. The comparison takes the
// same time whatever the proof is.
func Made(key []byte, pod *corev1.Pod) (Attempt, error) {
	owner := Owner(pod)
	if owner == nil {
		return Attempt{}, fmt.Errorf("pod %s/%s has no Bundle as its owner: %w", pod.Namespace, pod.Name, ErrNotOurs)
	}
	a, err := check(key, owner.UID, pod.Annotations[v1alpha1.AnnotationAttempt])
	if err != nil {
		return Attempt{}, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return a, nil
}

// check reads a proof, which has to be right for a Bundle. The error is ErrNotOurs.
func check(key []byte, bundle types.UID, proof string) (Attempt, error) {
	parts := strings.Split(proof, ".")
	if len(parts) != 4 {
		return Attempt{}, ErrNotOurs
	}
	a := Attempt{BundleUID: bundle, Nonce: parts[2]}
	generation, err1 := strconv.ParseInt(parts[0], 10, 64)
	number, err2 := strconv.ParseInt(parts[1], 10, 32)
	mac, err3 := base64.RawURLEncoding.DecodeString(parts[3])
	if errors.Join(err1, err2, err3) != nil {
		return Attempt{}, ErrNotOurs
	}
	a.Generation, a.Number = generation, int32(number)
	if !hmac.Equal(mac, a.mac(key)) {
		return Attempt{}, ErrNotOurs
	}
	return a, nil
}

// Owner returns the reference to the Bundle that owns a pod, or nil.
func Owner(pod *corev1.Pod) *metav1.OwnerReference {
	for i, ref := range pod.OwnerReferences {
		if ref.APIVersion == v1alpha1.SchemeGroupVersion.String() && ref.Kind == "Bundle" {
			return &pod.OwnerReferences[i]
		}
	}
	return nil
}
