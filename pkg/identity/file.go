// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"
)

// identityFile holds all parts, so that they are replaced in one step.
const identityFile = "identity.json"

// FileKeeper keeps an identity in a file, for a server that is alone. The folder is that server's own.
type FileKeeper struct {
	dir   string
	write func(path string, data []byte) error
}

// NewFileKeeper returns the keeper of the file in dir. write replaces a file in one step, readable by its owner alone.
func NewFileKeeper(dir string, write func(path string, data []byte) error) *FileKeeper {
	return &FileKeeper{dir: dir, write: write}
}

// Load reads the file. A folder of the first version of this server, with a file for each part, is taken over. An authority of
// which only a part is there is refused: a new one in its place would lock out everybody who trusts the old one.
func (k *FileKeeper) Load(ctx context.Context) (*Identity, string, error) {
	path := filepath.Join(k.dir, identityFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return k.takeOver(ctx)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the server's own authority: %w", err)
	}
	var data map[string][]byte
	if err := json.Unmarshal(raw, &data); err != nil {
		return nil, "", fmt.Errorf("%s: %w; put it back, or remove the folder to have a new authority made", path, err)
	}
	id, err := decode(data)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w; put it back, or remove the folder to have a new authority made", path, err)
	}
	return id, identityFile, nil
}

// Save writes the file.
func (k *FileKeeper) Save(_ context.Context, id *Identity, _ string) error {
	data, err := id.encode()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode the server's own authority: %w", err)
	}
	return k.write(filepath.Join(k.dir, identityFile), raw)
}

// takeOver reads the files of the first version and keeps them in the one of this. ca.crt alone stays: others read it.
func (k *FileKeeper) takeOver(ctx context.Context) (*Identity, string, error) {
	data := map[string][]byte{}
	var missing []string
	for _, part := range []string{keyAuthority, keyAuthorityKey, keyAttempt} {
		raw, err := os.ReadFile(filepath.Join(k.dir, part))
		switch {
		case errors.Is(err, os.ErrNotExist):
			missing = append(missing, part)
		case err != nil:
			return nil, "", fmt.Errorf("read the server's own authority: %w", err)
		default:
			data[part] = raw
		}
	}
	if len(data) == 0 {
		return nil, "", fmt.Errorf("%s: %w", k.dir, ErrNotFound)
	}
	if len(data[keyAttempt]) == 0 {
		// It recognizes the pods of attempts that are under way, which are made anew.
		key, err := newAttemptKey()
		if err != nil {
			return nil, "", err
		}
		data[keyAttempt] = key
	}
	id, err := decode(data)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %s is missing, and from what an earlier version kept it cannot be made: %w; put back what is missing, or remove the folder to have a new authority made, which every client has to be told of",
			k.dir, identityFile, err)
	}
	if err := k.Save(ctx, id, ""); err != nil {
		return nil, "", err
	}
	for _, part := range []string{keyAuthorityKey, keyAttempt} {
		if err := os.Remove(filepath.Join(k.dir, part)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, "", fmt.Errorf("remove what is kept elsewhere by now: %w", err)
		}
	}
	klog.FromContext(ctx).Info("Took over the authority of an earlier version", "dir", k.dir, "missing", missing)
	return id, identityFile, nil
}
