// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const (
	team    = "rukpak-system"
	keeping = "pki"
)

func same(a, b *Identity) bool {
	return bytes.Equal(a.Trusted(), b.Trusted()) && bytes.Equal(a.Current.KeyPEM, b.Current.KeyPEM) && bytes.Equal(a.AttemptKey, b.AttemptKey)
}

func TestReplicasShareOneIdentity(t *testing.T) {
	// A client answers one request at a time, so each replica has its own, of one cluster.
	cluster := fake.NewClientset()
	const replicas = 3
	var looked, group sync.WaitGroup
	looked.Add(replicas)
	found := make([]*Identity, replicas)
	for i := range found {
		client := fake.NewClientset()
		client.PrependReactor("*", "secrets", clienttesting.ObjectReaction(cluster.Tracker()))
		client.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			// All replicas have looked before the first makes the Secret.
			looked.Done()
			looked.Wait()
			return false, nil, nil
		})
		group.Go(func() {
			id, err := Open(t.Context(), NewSecretKeeper(client, team, keeping), time.Hour)
			if err != nil {
				t.Error(err)
				return
			}
			found[i] = id
		})
	}
	group.Wait()
	for i, id := range found {
		if id == nil || !same(id, found[0]) {
			t.Errorf("replica %d has another identity", i)
		}
	}
	if again, err := Open(t.Context(), NewSecretKeeper(cluster, team, keeping), time.Hour); err != nil || !same(again, found[0]) {
		t.Errorf("it is another after a restart: %v", err)
	}
}

// versioned makes a clientset answer conflicts as a cluster does.
func versioned(client *fake.Clientset) {
	client.PrependReactor("update", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		wanted := action.(clienttesting.UpdateAction).GetObject().(*corev1.Secret)
		obj, err := client.Tracker().Get(action.GetResource(), wanted.Namespace, wanted.Name)
		if err != nil {
			return true, nil, err
		}
		if have := obj.(*corev1.Secret).ResourceVersion; have != wanted.ResourceVersion {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, wanted.Name, errors.New("it is at "+have))
		}
		wanted = wanted.DeepCopy()
		wanted.ResourceVersion += "1"
		return true, wanted, client.Tracker().Update(action.GetResource(), wanted, wanted.Namespace)
	})
}

func TestASecretIsReplacedOnce(t *testing.T) {
	client := fake.NewClientset(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: keeping, ResourceVersion: "1", Annotations: map[string]string{AnnotationRotate: "now", "mine": "too"}},
		Data:       encoded(t, whole(t)),
	})
	versioned(client)
	k := NewSecretKeeper(client, team, keeping)
	id, version, err := k.Load(t.Context())
	if err != nil || id.Requested != "now" || id.Handled != "please" {
		t.Fatalf("got %+v, %v", id, err)
	}
	id.Next, id.Confirmed = nil, time.Time{}
	if err := k.Save(t.Context(), id, version); err != nil {
		t.Fatal(err)
	}
	if err := k.Save(t.Context(), id, version); !errors.Is(err, ErrConflict) {
		t.Errorf("a second write of the same version: %v", err)
	}
	if err := k.Save(t.Context(), id, ""); !errors.Is(err, ErrConflict) {
		t.Errorf("it is made though it is there: %v", err)
	}
	again, _, err := k.Load(t.Context())
	if err != nil || again.Next != nil || !same(again, id) {
		t.Errorf("got %+v, %v", again, err)
	}
	secret, err := client.CoreV1().Secrets(team).Get(t.Context(), keeping, metav1.GetOptions{})
	if err != nil || secret.Annotations["mine"] != "too" {
		t.Errorf("what is not ours is lost: %v, %v", secret.Annotations, err)
	}
	if _, ok := secret.Data[keyNextKey]; ok {
		t.Error("a key that is no longer of use is kept")
	}
}

func TestASecretThatCannotBe(t *testing.T) {
	refuse := func(verb string) func(*fake.Clientset) {
		return func(c *fake.Clientset) {
			c.PrependReactor(verb, "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no leader") })
		}
	}
	for name, test := range map[string]struct {
		data    map[string][]byte // of the Secret; none if nil
		prepare func(*fake.Clientset)
		says    []string
	}{
		"no authority":      {data: map[string][]byte{keyAttempt: make([]byte, attemptKeySize)}, says: []string{"rukpak-system/pki", "ca.crt is missing", "delete the secret"}},
		"cannot be read":    {prepare: refuse("get"), says: []string{"read the secret rukpak-system/pki", "no leader"}},
		"cannot be written": {prepare: refuse("create"), says: []string{"make the secret rukpak-system/pki", "no leader"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			if test.data != nil {
				client = fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: keeping}, Data: test.data})
			}
			if test.prepare != nil {
				test.prepare(client)
			}
			_, err := Open(t.Context(), NewSecretKeeper(client, team, keeping), time.Hour)
			for _, part := range test.says {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want it to say %q", err, part)
				}
			}
		})
	}
}

func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

func TestAFileKeepsAnIdentity(t *testing.T) {
	k := NewFileKeeper(filepath.Join(t.TempDir(), "pki"), writeFile)
	if _, _, err := k.Load(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Fatalf("an empty folder: %v", err)
	}
	first, err := Open(t.Context(), k, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Open(t.Context(), k, time.Hour); err != nil || !same(first, again) {
		t.Errorf("it is another after a restart: %v", err)
	}
	for name, content := range map[string]string{"no JSON": "{", "no parts": "{}"} {
		if err := writeFile(filepath.Join(k.dir, identityFile), []byte(content)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), k, time.Hour); err == nil || !strings.Contains(err.Error(), identityFile) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(t.Context(), NewFileKeeper(filepath.Join(k.dir, identityFile), writeFile), time.Hour); err == nil {
		t.Error("a file is taken for a folder")
	}
}

// The first version kept a file for each part. Losing one must not replace the authority in silence.
func TestFilesOfTheFirstVersion(t *testing.T) {
	for name, test := range map[string]struct {
		without []string
		says    string // empty if it is taken over
	}{
		"all of them":       {nil, ""},
		"no key of pods":    {[]string{keyAttempt}, ""},
		"no key":            {[]string{keyAuthorityKey}, "ca.key is missing"},
		"no certificate":    {[]string{keyAuthority}, "ca.crt is missing"},
		"the authority out": {[]string{keyAuthority, keyAuthorityKey}, "ca.crt is missing"},
		"what others read":  {[]string{keyAuthorityKey, keyAttempt}, "identity.json is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			old := fresh(t, time.Hour)
			data := encoded(t, old)
			for _, part := range []string{keyAuthority, keyAuthorityKey, keyAttempt} {
				if err := writeFile(filepath.Join(dir, part), data[part]); err != nil {
					t.Fatal(err)
				}
			}
			for _, part := range test.without {
				if err := os.Remove(filepath.Join(dir, part)); err != nil {
					t.Fatal(err)
				}
			}
			k := NewFileKeeper(dir, writeFile)
			id, err := Open(t.Context(), k, time.Hour)
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Fatalf("got %v, want it to say %q", err, test.says)
				}
				if _, err := os.Stat(filepath.Join(dir, identityFile)); err == nil {
					t.Error("it is made anew all the same")
				}
				return
			}
			if err != nil || !bytes.Equal(id.Current.KeyPEM, old.Current.KeyPEM) || len(id.AttemptKey) != attemptKeySize {
				t.Fatalf("got %v", err)
			}
			if again, err := Open(t.Context(), k, time.Hour); err != nil || !same(id, again) {
				t.Errorf("it is another after a restart: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, keyAuthorityKey)); err == nil {
				t.Error("the key is in two places")
			}
		})
	}
}
