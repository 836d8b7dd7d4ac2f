// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkGet reads 64 MiB over TLS from this package and from a handler that writes them from memory. "unknown"
// is the first read of a content, which looks at its digest.
func BenchmarkGet(b *testing.B) {
	const size = 64 << 20
	w := newWorldOf(b)
	w.classes["raw"].Limits = nil
	w.addUpload("app")
	noise := make([]byte, size)
	if _, err := rand.NewChaCha8([32]byte{}).Read(noise); err != nil {
		b.Fatal(err)
	}
	stored, summary := w.put("app", string(noise))
	bare := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Length", strconv.Itoa(len(stored)))
		_, _ = rw.Write(stored)
	})
	ours := http.HandlerFunc(w.serve)
	unknown := http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		w.rest.seals.forget(summary.Digest)
		ours(rw, req)
	})
	for _, side := range []struct {
		name    string
		handler http.Handler
	}{{"bare", bare}, {"known", ours}, {"unknown", unknown}} {
		server := httptest.NewUnstartedServer(side.handler)
		server.EnableHTTP2 = false
		server.TLS = &tls.Config{NextProtos: []string{"http/1.1"}}
		server.StartTLS()
		for _, readers := range []int{1, 8} {
			b.Run(side.name+"/"+strconv.Itoa(readers), func(b *testing.B) {
				b.SetBytes(int64(len(stored) * readers))
				before := cpu(b)
				for b.Loop() {
					done := make(chan error, readers)
					for range readers {
						go func() {
							res, err := server.Client().Get(server.URL + "/app")
							if err == nil {
								_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{res.Body}, make([]byte, 256<<10))
								_ = res.Body.Close()
							}
							done <- err
						}()
					}
					for range readers {
						if err := <-done; err != nil {
							b.Fatal(err)
						}
					}
				}
				// Of both sides, since they are one process.
				b.ReportMetric(float64(len(stored)*readers*b.N)/1e6/(cpu(b)-before).Seconds(), "MB/cpu-s")
			})
		}
		server.Close()
	}
}

// cpu is the processor time that this process has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
