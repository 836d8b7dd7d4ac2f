// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/bucket"
	"rukpak.io/apiserver/pkg/content/contenttest"
)

// gsKey names the program of a server that speaks the protocol of Google Cloud Storage: make gs.
const gsKey = "RUKPAK_GS_SERVER"

// Without calls that fail: the suite makes hundreds of them fail, and with this client's own ways of trying again it did not end
// within minutes.
func TestGS(t *testing.T) {
	program := os.Getenv(gsKey)
	if program == "" {
		t.Skipf("%s is not set: make gs", gsKey)
	}
	folder := t.TempDir()
	endpoint := startGS(t, program, folder)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", googleCredentials(t))
	places := 0
	contenttest.Run(t, func(t *testing.T) contenttest.Harness {
		places++
		name, prefix := fmt.Sprintf("bucket-%d", places), ""
		if places%2 == 0 {
			prefix = "a/folder"
		}
		resp, err := http.Post(endpoint+"/storage/v1/b?project=test", "application/json", strings.NewReader(fmt.Sprintf(`{"name": %q}`, name)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("make a bucket: %s, %v", resp.Status, err)
		}
		u := &url.URL{Scheme: "gs", Host: name, RawQuery: url.Values{"endpoint": {endpoint + "/storage/v1/"}, "prefix": {prefix}}.Encode()}
		return contenttest.Harness{
			Open: func(t *testing.T) (content.Store, func() error) {
				s := open(t, u, bucket.Options{})
				return s, s.Close
			},
			Borders: []int64{4 << 20, 8 << 20},
			Debris:  func(t *testing.T) []string { return debris(t, filepath.Join(folder, name), prefix) },
			Child: func(t *testing.T) *exec.Cmd {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), childURL+"="+u.String())
				return cmd
			},
		}
	})
}

// startGS starts the server over a folder, without TLS, and returns its address.
func startGS(t *testing.T, program, folder string) string {
	t.Helper()
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	endpoint := "http://" + address
	startEmulator(t, exec.Command(program, "-scheme=http", "-host=127.0.0.1", "-port="+port, "-public-host="+address,
		"-external-url="+endpoint, "-backend=filesystem", "-filesystem-root="+folder, "-log-level=error"), func() (io.Closer, error) {
		resp, err := http.Get(endpoint + "/storage/v1/b?project=test")
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	})
	return endpoint
}

// googleCredentials writes those of a service account, whose tokens a server of ours gives out.
func googleCredentials(t *testing.T) string {
	t.Helper()
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token": "test", "token_type": "Bearer", "expires_in": 3600}`)
	}))
	t.Cleanup(tokens.Close)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "test@example.com", "private_key_id": "1", "token_uri": tokens.URL,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "google.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
