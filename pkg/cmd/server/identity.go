// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rukpak.io/apiserver/pkg/pki"
)

const (
	authorityName     = "rukpak-apiserver-ca"
	authorityValidity = 10 * 365 * 24 * time.Hour
	// servingValidity is short, since the certificate is renewed by itself.
	servingValidity = 90 * 24 * time.Hour
	clientValidity  = 365 * 24 * time.Hour

	attemptKeySize = 32

	// Keys of the Secret, and names of the files, that hold the identity.
	keyAuthority    = "ca.crt"
	keyAuthorityKey = "ca.key"
	keyAttempt      = "attempt.key"
)

// identity is what replicas of one server have in common, and nobody else knows: the authority that
// signs their certificates, and the key with which they recognize the pods that they made.
type identity struct {
	authority  *pki.Authority
	attemptKey []byte
}

func newIdentity() (map[string][]byte, error) {
	authority, err := pki.NewAuthority(authorityName, authorityValidity)
	if err != nil {
		return nil, err
	}
	key := make([]byte, attemptKeySize)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make the key of attempts: %w", err)
	}
	return map[string][]byte{keyAuthority: authority.CertPEM, keyAuthorityKey: authority.KeyPEM, keyAttempt: key}, nil
}

func loadIdentity(data map[string][]byte) (*identity, error) {
	authority, err := pki.LoadAuthority(data[keyAuthority], data[keyAuthorityKey])
	if err != nil {
		return nil, err
	}
	if len(data[keyAttempt]) != attemptKeySize {
		return nil, fmt.Errorf("%s has %d bytes in place of %d", keyAttempt, len(data[keyAttempt]), attemptKeySize)
	}
	return &identity{authority: authority, attemptKey: data[keyAttempt]}, nil
}

// clusterIdentity reads the identity from a Secret. Whoever comes first makes it; the others take it.
func clusterIdentity(ctx context.Context, client kubernetes.Interface, namespace, name string) (*identity, error) {
	secrets := client.CoreV1().Secrets(namespace)
	secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		data, err := newIdentity()
		if err != nil {
			return nil, err
		}
		secret, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app.kubernetes.io/name": "rukpak-apiserver"}},
			Type:       corev1.SecretTypeOpaque,
			Data:       data,
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			secret, err = secrets.Get(ctx, name, metav1.GetOptions{})
		}
		if err != nil {
			return nil, fmt.Errorf("make the secret %s/%s of the server's own authority: %w", namespace, name, err)
		}
		return readSecret(secret)
	}
	if err != nil {
		return nil, fmt.Errorf("read the secret %s/%s of the server's own authority: %w", namespace, name, err)
	}
	return readSecret(secret)
}

func readSecret(secret *corev1.Secret) (*identity, error) {
	id, err := loadIdentity(secret.Data)
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w; delete it to have a new one made", secret.Namespace, secret.Name, err)
	}
	return id, nil
}

// fileIdentity reads the identity from files in dir, which are made where they are missing.
func fileIdentity(dir string) (*identity, error) {
	data := map[string][]byte{}
	for _, key := range []string{keyAuthority, keyAuthorityKey, keyAttempt} {
		raw, err := os.ReadFile(filepath.Join(dir, key))
		if errors.Is(err, os.ErrNotExist) {
			return makeFileIdentity(dir)
		}
		if err != nil {
			return nil, fmt.Errorf("read the server's own authority: %w", err)
		}
		data[key] = raw
	}
	id, err := loadIdentity(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return id, nil
}

func makeFileIdentity(dir string) (*identity, error) {
	data, err := newIdentity()
	if err != nil {
		return nil, err
	}
	for key, raw := range data {
		if err := writeFile(filepath.Join(dir, key), raw); err != nil {
			return nil, err
		}
	}
	return loadIdentity(data)
}

// writeFile replaces a file in one step, readable by this user alone.
func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the folder of %s: %w", path, err)
	}
	if err := renamedInto(path, data); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func renamedInto(path string, data []byte) error {
	temporary := path + ".new"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	// Without it the loss of power can leave the new name without the bytes.
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
