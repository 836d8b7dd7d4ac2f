// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// AnnotationRotate on the Secret asks for a new authority. Its value is free; another value is another request.
const AnnotationRotate = "rukpak.io/rotate-ca"

// SecretKeeper keeps an identity in a Secret, for all replicas in a cluster.
type SecretKeeper struct {
	client          kubernetes.Interface
	namespace, name string
}

// NewSecretKeeper returns the keeper of one Secret, which has to be allowed to get, create and update it.
func NewSecretKeeper(client kubernetes.Interface, namespace, name string) *SecretKeeper {
	return &SecretKeeper{client: client, namespace: namespace, name: name}
}

func (k *SecretKeeper) String() string { return "secret " + k.namespace + "/" + k.name }

// Load reads the Secret.
func (k *SecretKeeper) Load(ctx context.Context) (*Identity, string, error) {
	secret, err := k.client.CoreV1().Secrets(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, "", fmt.Errorf("%s: %w", k, ErrNotFound)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the %s: %w", k, err)
	}
	id, err := decode(secret.Data)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w; put it back, or delete the secret and restart all replicas to have a new authority made", k, err)
	}
	id.Requested = secret.Annotations[AnnotationRotate]
	return id, secret.ResourceVersion, nil
}

// Save writes the Secret, if it still has the version.
func (k *SecretKeeper) Save(ctx context.Context, id *Identity, version string) error {
	data, err := id.encode()
	if err != nil {
		return err
	}
	secrets := k.client.CoreV1().Secrets(k.namespace)
	if version == "" {
		_, err := secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: k.name, Namespace: k.namespace, Labels: map[string]string{"app.kubernetes.io/name": "rukpak-apiserver"}},
			Type:       corev1.SecretTypeOpaque,
			Data:       data,
		}, metav1.CreateOptions{})
		return k.written(err, "make")
	}
	secret, err := secrets.Get(ctx, k.name, metav1.GetOptions{})
	if err != nil {
		return k.written(err, "read")
	}
	// Labels, annotations and other data are somebody else's.
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	for _, part := range parts {
		delete(secret.Data, part)
		if value, ok := data[part]; ok {
			secret.Data[part] = value
		}
	}
	secret.ResourceVersion = version
	_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	return k.written(err, "write")
}

func (k *SecretKeeper) written(err error, what string) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return fmt.Errorf("%s the %s: %w", what, k, ErrConflict)
	}
	return fmt.Errorf("%s the %s: %w", what, k, err)
}
