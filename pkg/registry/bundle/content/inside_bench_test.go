// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// BenchmarkFile reads a file of 20 KiB out of a bundle of 100 MiB, and the bundle. Times-less and times-less-cpu
// are what the whole takes for what the file takes, of both sides, since they are one process.
func BenchmarkFile(b *testing.B) {
	const files, size = 5120, 20 << 10
	// What is logged would stand amid the figures.
	klog.SetLogger(klog.Logger{})
	defer klog.ClearLogger()
	w := newWorldOf(b)
	w.classes["raw"].Limits = nil
	w.addUpload("app")
	noise := rand.NewChaCha8([32]byte{})
	contents := map[string]string{}
	for i := range files {
		body := make([]byte, size)
		if _, err := noise.Read(body); err != nil {
			b.Fatal(err)
		}
		contents[fmt.Sprintf("dir-%02d/file-%04d", i%64, i)] = string(body)
	}
	if got := w.do(http.MethodPut, "app", archive(b, contents)); got.code != http.StatusCreated {
		b.Fatalf("PUT: %d %s", got.code, got.body)
	}
	client := w.server.Client()
	read := func(path string) int64 {
		res, err := client.Get(w.server.URL + "/" + path)
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{res.Body}, make([]byte, 256<<10))
		if err != nil || res.StatusCode != http.StatusOK {
			b.Fatalf("%d after %d bytes: %v", res.StatusCode, n, err)
		}
		_ = res.Body.Close()
		return n
	}
	measure := func(times int, path func(int) string, least int64) (wall, used time.Duration) {
		began, before := time.Now(), cpu(b)
		for i := range times {
			if n := read(path(i)); n < least {
				b.Fatalf("%d bytes", n)
			}
		}
		return time.Since(began) / time.Duration(times), (cpu(b) - before) / time.Duration(times)
	}
	const many = 200
	var fileWall, fileCPU, wholeWall, wholeCPU time.Duration
	for b.Loop() {
		wall, used := measure(many, func(i int) string { n := i * 7919 % files; return fmt.Sprintf("app/dir-%02d/file-%04d", n%64, n) }, size)
		fileWall, fileCPU = fileWall+wall, fileCPU+used
		wall, used = measure(2, func(int) string { return "app" }, files*size)
		wholeWall, wholeCPU = wholeWall+wall, wholeCPU+used
	}
	n := float64(b.N)
	b.ReportMetric(fileWall.Seconds()*1e3/n, "ms/file")
	b.ReportMetric(wholeWall.Seconds()*1e3/n, "ms/whole")
	b.ReportMetric(wholeWall.Seconds()/fileWall.Seconds(), "times-less")
	b.ReportMetric(wholeCPU.Seconds()/fileCPU.Seconds(), "times-less-cpu")
}

// BenchmarkList reads the list of 50,000 files, as it is and compressed.
func BenchmarkList(b *testing.B) {
	klog.SetLogger(klog.Logger{})
	defer klog.ClearLogger()
	w := manyFiles(b, 50_000)
	for _, encoding := range []string{"identity", "gzip"} {
		b.Run(encoding, func(b *testing.B) {
			w.t = b
			n, before := 0, cpu(b)
			for b.Loop() {
				n = len(w.do(http.MethodGet, "app/?recursive=true", nil, "Accept-Encoding", encoding).body)
			}
			b.ReportMetric(float64(n)/1e6, "MB")
			b.ReportMetric((cpu(b)-before).Seconds()*1e3/float64(b.N), "cpu-ms/op")
		})
	}
}
