// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Listener is told that there is other content. After an error it is told again.
type Listener interface {
	Changed(ctx context.Context, digest string) error
}

// tellTime bounds one request to a listener.
const tellTime = 10 * time.Second

// URL is told by a POST without a body, whose header Bundle-Digest has the digest. It has to answer with 2xx.
type URL string

// Changed sends the request.
func (u URL) Changed(ctx context.Context, digest string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, string(u), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Bundle-Digest", digest)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	// What it says beside the code is of no interest.
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 256))
		return fmt.Errorf("POST %s: %s: %s", u, resp.Status, text)
	}
	return nil
}

// Process is told by a signal. Its ID is in a file, which it writes itself; both containers have to share their process
// namespace and their user.
type Process struct {
	PIDFile string
	Signal  syscall.Signal
}

// Changed sends the signal.
func (p Process) Changed(context.Context, string) error {
	text, err := os.ReadFile(p.PIDFile)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return fmt.Errorf("%s: %q is no process ID", p.PIDFile, text)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	if err := process.Signal(p.Signal); err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	return nil
}
