// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/content/bucket"
)

// azureFake answers what a copy asks of Azure: what there is to copy, the copy, and who asks.
type azureFake struct {
	t      *testing.T
	size   int64
	status int // of a copy, 0 if it succeeds
	// asked is how a copy was asked for, source and token what for.
	asked, source, token string
}

func (f *azureFake) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h := req.Header
	switch {
	case req.URL.Path == "/identity":
		fmt.Fprintf(w, `{"access_token": "lent", "expires_on": "%d", "resource": %q, "token_type": "Bearer"}`, time.Now().Add(time.Hour).Unix(), req.URL.Query().Get("resource"))
	case req.Method == http.MethodHead:
		w.Header().Set("Content-Length", strconv.FormatInt(f.size, 10))
		now := time.Now().UTC().Format(http.TimeFormat)
		for name, value := range map[string]string{"Last-Modified": now, "X-Ms-Creation-Time": now, "Etag": `"1"`, "Content-Type": "application/octet-stream"} {
			w.Header().Set(name, value)
		}
	case req.Method != http.MethodPut || !strings.HasSuffix(req.URL.Path, "/container/to"):
		f.t.Errorf("%s %s is not what a copy asks for", req.Method, req.URL)
	case f.status != 0:
		w.WriteHeader(f.status)
	default:
		f.source, f.token = h.Get("X-Ms-Copy-Source"), h.Get("X-Ms-Copy-Source-Authorization")
		code := http.StatusAccepted
		switch {
		case h.Get("X-Ms-Requires-Sync") == "true":
			f.asked = "Copy Blob From URL"
		case h.Get("X-Ms-Blob-Type") != "":
			f.asked, code = "Put Blob From URL", http.StatusCreated
		default:
			f.asked = "Copy Blob"
		}
		w.Header().Set("X-Ms-Copy-Status", "success")
		w.WriteHeader(code)
	}
}

// A copy is done when the request is, whatever its size, and the service may read what it copies, whatever the credential.
func TestAzureCopies(t *testing.T) {
	const lent = "AZURE_STORAGE_SAS_TOKEN"
	for name, test := range map[string]struct {
		size   int64
		env    map[string]string
		asked  string
		signed string // is in the address of the source
		token  string
	}{
		"with a key": {5 << 20, map[string]string{"AZURE_STORAGE_KEY": base64.StdEncoding.EncodeToString([]byte("key"))}, "Copy Blob From URL", "&sp=r&", ""},
		"with a connection string": {5 << 20, map[string]string{
			"AZURE_STORAGE_CONNECTION_STRING": "AccountName=account;AccountKey=a2V5;BlobEndpoint=https://ADDRESS/account",
		}, "Copy Blob From URL", "&sp=r&", ""},
		"with a signature":          {256 << 20, map[string]string{lent: "sp=racwdl&sig=secret"}, "Copy Blob From URL", "sig=secret", ""},
		"with an identity":          {5 << 20, nil, "Copy Blob From URL", "", "Bearer lent"},
		"of more, with a key":       {256<<20 + 1, map[string]string{"AZURE_STORAGE_KEY": base64.StdEncoding.EncodeToString([]byte("key"))}, "Put Blob From URL", "&sp=r&", ""},
		"of more, with an identity": {5000 << 20, nil, "Put Blob From URL", "", "Bearer lent"},
		"of more, with a signature": {257 << 20, map[string]string{lent: "sp=racwdl&sig=secret"}, "Put Blob From URL", "sig=secret", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := &azureFake{t: t, size: test.size}
			s, stop := f.open(t, test.env)
			if err := s.Copy(t.Context(), "to", "from", test.size); err != nil {
				t.Fatal(err)
			}
			source, err := url.Parse(f.source)
			if err != nil || f.asked != test.asked || f.token != test.token || !strings.HasSuffix(source.Path, "/account/container/from") || !strings.Contains(source.RawQuery, test.signed) {
				t.Errorf("%s of %q with %q", f.asked, f.source, f.token)
			}
			if test.signed == "" && source.RawQuery != "" {
				t.Errorf("the source is %q", f.source)
			}
			f.status = http.StatusForbidden
			if err := s.Copy(t.Context(), "to", "from", test.size); err == nil || strings.Contains(err.Error(), "sig=") {
				t.Errorf("a copy that is refused: %v", err)
			}
			stop()
			if err := s.Copy(t.Context(), "to", "from", test.size); err == nil || strings.Contains(err.Error(), "sig=") {
				t.Errorf("without a server: %v", err)
			}
		})
	}
}

// open opens a store in the fake, with the credentials that the environment has.
func (f *azureFake) open(t *testing.T, env map[string]string) (s *bucket.Store, stop func()) {
	t.Helper()
	server := httptest.NewTLSServer(f)
	t.Cleanup(server.Close)
	identity := httptest.NewServer(f) // an agent on the same machine, without TLS
	t.Cleanup(identity.Close)
	for _, name := range []string{
		"AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_CLIENT_ID", "AZURE_TENANT_ID",
		"AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_TOKEN_CREDENTIALS",
	} {
		t.Setenv(name, strings.ReplaceAll(env[name], "ADDRESS", server.Listener.Addr().String()))
		if env[name] == "" {
			// To the library there is a difference. Setenv restores what was there.
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("IDENTITY_ENDPOINT", identity.URL+"/identity")
	t.Setenv("IDENTITY_HEADER", "x")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	parameters := url.Values{"storage_account": {"account"}, "domain": {server.Listener.Addr().String()}, "ca-file": {ca}}
	s = open(t, &url.URL{Scheme: "azblob", Host: "container", RawQuery: parameters.Encode()}, bucket.Options{Pause: time.Millisecond})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, server.Close
}
