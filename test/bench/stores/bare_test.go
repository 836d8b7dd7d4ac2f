// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/pki"
	"rukpak.io/apiserver/test/integration/harness"
)

// bareServer is what reads are compared with.
type bareServer struct {
	tls, files target
	dir        string // of the files
}

func startBare(t *testing.T) bareServer {
	t.Helper()
	b := bareServer{dir: t.TempDir()}
	program := filepath.Join(t.TempDir(), "bare")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../bare").CombinedOutput(); err != nil {
		t.Fatalf("build the bare server: %v: %s", err, out)
	}
	authority, err := pki.NewAuthority("bench", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.Serving([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.CertPEM)
	var addresses []string
	for range 2 {
		port, err := harness.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", port))
	}
	process, err := harness.StartProgram("bare", filepath.Join(shared.dir, "bare.log"), program, []string{
		"BARE_CERT=" + string(cert), "BARE_KEY=" + string(key), "BARE_ADDRESS=" + addresses[0],
		"BARE_FILES_ADDRESS=" + addresses[1], "BARE_FILES=" + b.dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Kill(); err != nil {
			t.Error(err)
		}
	})
	b.tls = target{"bare TLS", newClient(t, roots), "https://" + addresses[0], process}
	b.files = target{"http.FileServer", newClient(t, nil), "http://" + addresses[1], process}
	for _, w := range []target{b.tls, b.files} {
		eventually(t, "the bare server answers", func() error { return w.get(t.Context(), b.path(0), 0, make([]byte, 1)) })
		if w.name == b.files.name {
			break
		}
		if err := os.MkdirAll(filepath.Join(b.dir, filepath.Dir(b.path(0))), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.dir, b.path(0)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// path is that of a number of bytes, at the one with TLS.
func (b bareServer) path(size int) string { return "/apis/bare/v1/" + strconv.Itoa(size) + "/content" }

// file puts bytes where http.FileServer finds them, and returns their path.
func (b bareServer) file(t testing.TB, data []byte) string {
	t.Helper()
	name := strconv.Itoa(len(data))
	if err := os.WriteFile(filepath.Join(b.dir, name), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return "/" + name
}
