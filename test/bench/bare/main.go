// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bare is what the server is measured against: net/http and crypto/tls with
// bytes from memory, and nothing else. It speaks HTTP/1.1 at BARE_ADDRESS (:8443), as the server
// does at its own, with the certificate and key in BARE_CERT and BARE_KEY (PEM). At BARE_FILES_ADDRESS,
// if that is given, it serves the folder BARE_FILES without TLS, with http.FileServer.
//
//	GET /apis/GROUP/VERSION            a list of no resources, which makes an APIService available
//	GET /apis/GROUP/VERSION/…/N/content   N bytes that do not compress, at most 80 MiB of them different
package main

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const most = 80 << 20

func main() {
	certificate, err := tls.X509KeyPair([]byte(os.Getenv("BARE_CERT")), []byte(os.Getenv("BARE_KEY")))
	if err != nil {
		log.Fatalf("BARE_CERT and BARE_KEY: %v", err)
	}
	if address := os.Getenv("BARE_FILES_ADDRESS"); address != "" {
		files := &http.Server{Addr: address, Handler: http.FileServer(http.Dir(os.Getenv("BARE_FILES"))), ReadHeaderTimeout: time.Minute}
		go func() { log.Fatal(files.ListenAndServe()) }()
	}
	server := &http.Server{
		Addr:              cmp.Or(os.Getenv("BARE_ADDRESS"), ":8443"),
		Handler:           newHandler(),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}},
		ReadHeaderTimeout: time.Minute,
		// A map without an entry is what keeps HTTP/2 off.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	log.Fatal(server.ListenAndServeTLS("", ""))
}

func newHandler() http.Handler {
	memory := make([]byte, most)
	if _, err := rand.NewChaCha8([32]byte{}).Read(memory); err != nil {
		log.Fatal(err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		parent, last := path.Split(req.URL.Path)
		if last != "content" {
			discovery(w, req)
			return
		}
		n, err := strconv.Atoi(path.Base(parent))
		if err != nil || n < 0 {
			http.Error(w, "no such number of bytes", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/gzip")
		w.Header().Set("Content-Length", strconv.Itoa(n))
		for ; n > 0; n -= most {
			// A reader that goes away is its own affair.
			if _, err := w.Write(memory[:min(n, most)]); err != nil {
				return
			}
		}
	})
}

// discovery answers for the root of a version, with no resources.
func discovery(w http.ResponseWriter, req *http.Request) {
	version, ok := strings.CutPrefix(req.URL.Path, "/apis/")
	if !ok || strings.Count(version, "/") != 1 {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version, APIResources: []metav1.APIResource{},
	})
}
