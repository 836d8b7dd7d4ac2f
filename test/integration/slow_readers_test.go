// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/test/integration/harness"
)

const (
	// slowReadersVariable is how many slow readers there are, in place of slowReaders, and slowSecondsVariable how long they read.
	slowReadersVariable = "RUKPAK_SLOW_READERS"
	slowSecondsVariable = "RUKPAK_SLOW_SECONDS"
	slowReaders         = 200
	slowSeconds         = 5
	// slowRate is that of each, in bytes a second.
	slowRate = 1024
	// memoryOfReader bounds what a slow reader costs the server, and memoryOfOthers what the other reads do.
	memoryOfReader = 256 << 10
	memoryOfOthers = 64 << 20
)

// Many readers that are slow cost little, are not cut off, and leave the server to others.
func TestManySlowReaders(t *testing.T) {
	readers := fromEnvironment(t, slowReadersVariable, slowReaders)
	seconds := fromEnvironment(t, slowSecondsVariable, slowSeconds)
	s := must(harness.StartStandalone(t.Context(), shared.Programs, t.TempDir()))(t)
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	})
	client := must(s.Client())(t).RukpakV1alpha1().Bundles("default")
	archives := map[string][]byte{"large": canonical(t, noise("data", 41, 16<<20)), "small": canonical(t, noise("data", 42, 20<<10))}
	for name, archive := range archives {
		must(client.Create(t.Context(), uploadBundle(name, "raw"), metav1.CreateOptions{}))(t)
		must(client.PutContent(t.Context(), name, bytes.NewReader(archive), typed.PutContentOptions{}))(t)
	}
	idle := residentMemory(t, s.PID())

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var (
		running     sync.WaitGroup
		begun, took atomic.Int64
		config      = must(clientcmd.BuildConfigFromFlags("", s.Kubeconfig()))(t)
	)
	for range readers {
		running.Go(func() {
			if err := readSlowly(ctx, config, &begun, &took); err != nil && ctx.Err() == nil {
				t.Errorf("a slow reader was cut off: %v", err)
			}
		})
	}
	eventually(t, "all have begun", func() string {
		if n := begun.Load(); n < int64(readers) {
			return fmt.Sprintf("%d of %d", n, readers)
		}
		return ""
	})
	var latency []time.Duration
	most := idle
	for end := time.After(time.Duration(seconds) * time.Second); ; {
		began := time.Now()
		content := must(client.GetContent(t.Context(), "small", typed.GetContentOptions{Patience: -1}))(t)
		if got := must(io.ReadAll(content))(t); !bytes.Equal(got, archives["small"]) {
			t.Fatal("another reader got other content")
		}
		if err := content.Close(); err != nil {
			t.Fatal(err)
		}
		latency = append(latency, time.Since(began))
		most = max(most, residentMemory(t, s.PID()))
		select {
		case <-end:
		case <-time.After(10 * time.Millisecond):
			continue
		}
		break
	}
	slices.Sort(latency)
	each := (most - idle) / int64(readers)
	t.Logf("%d slow readers: memory %d MiB, %d MiB before, %d KiB each; %d bytes read; a small content in %v (p50), %v (p99) of %d reads",
		readers, most>>20, idle>>20, each>>10, took.Load(), latency[len(latency)/2], latency[len(latency)*99/100], len(latency))
	if bound := int64(readers)*memoryOfReader + memoryOfOthers; most-idle > bound {
		t.Errorf("%d bytes more than idle; %d at most are expected", most-idle, bound)
	}
	stop()
	running.Wait()
}

// readSlowly reads large content at slowRate until ctx ends.
func readSlowly(ctx context.Context, config *rest.Config, begun, took *atomic.Int64) error {
	config = rest.CopyConfig(config)
	dialer := &net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 16<<10) }); e != nil {
			return e
		}
		return err
	}}
	// A dialer of its own is a connection of its own.
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, address)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+contentPath("default", "large"), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", resp.Status)
	}
	begun.Add(1)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for buffer := make([]byte, slowRate); ; {
		n, err := io.ReadFull(resp.Body, buffer)
		took.Add(int64(n))
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func fromEnvironment(t *testing.T, variable string, usual int) int {
	t.Helper()
	n, err := strconv.Atoi(orElse(os.Getenv(variable), strconv.Itoa(usual)))
	if err != nil || n < 1 {
		t.Fatalf("%s: %q is no number", variable, os.Getenv(variable))
	}
	return n
}

// residentMemory is that of a process, in bytes.
func residentMemory(t *testing.T, pid int) int64 {
	t.Helper()
	for line := range strings.Lines(string(must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t))) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return must(strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64))(t) << 10
		}
	}
	t.Fatal("the memory of the server is not known")
	return 0
}
