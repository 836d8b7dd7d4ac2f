// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	startTimeout = 2 * time.Minute
	stopTimeout  = time.Minute
	probePause   = 100 * time.Millisecond
	// shownLog is how much of the server's log stands in an error, in bytes.
	shownLog = 4 << 10
)

// server is the child process.
type server struct {
	cmd        *exec.Cmd
	log        *os.File
	kubeconfig string
	before     os.FileInfo // the kubeconfig of an earlier run; nil if there is none
	done       chan struct{}
	err        error // of the process; set when done is closed
}

// startServer starts the server. Its log goes to a file of the data dir.
func startServer(o options) (*server, error) {
	s := &server{kubeconfig: filepath.Join(o.dataDir, "kubeconfig"), done: make(chan struct{})}
	var err error
	if s.before, err = os.Stat(s.kubeconfig); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("look for an earlier kubeconfig: %w", err)
	}
	if s.log, err = os.Create(filepath.Join(o.dataDir, "server.log")); err != nil {
		return nil, fmt.Errorf("make the server's log: %w", err)
	}
	s.cmd = exec.Command(o.server, "--standalone", "--data-dir", o.dataDir, "--secure-port", strconv.Itoa(o.port))
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	// Ctrl-C goes to all of the terminal's group; this process decides when the server ends.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		s.log.Close()
		return nil, fmt.Errorf("start %s: %w", o.server, err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.done)
	}()
	return s, nil
}

// ready waits until the server has written a kubeconfig and says that it is ready.
func (s *server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the server was not ready in time"))
	defer cancel()
	ticker := time.NewTicker(probePause)
	defer ticker.Stop()
	for {
		last := s.probe(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-s.done:
			return s.died()
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%w: %w%s", context.Cause(ctx), last, s.tail())
			}
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

var errNoKubeconfig = errors.New("no kubeconfig has been written")

func (s *server) probe(ctx context.Context) error {
	now, err := os.Stat(s.kubeconfig)
	if err != nil || s.before != nil && os.SameFile(s.before, now) {
		return errNoKubeconfig
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz answers %s", resp.Status)
	}
	return nil
}

// died says why a server ended that nobody stopped.
func (s *server) died() error {
	why := "it exited"
	if s.err != nil {
		why = s.err.Error()
	}
	return fmt.Errorf("the server ended by itself: %s%s", why, s.tail())
}

// tail returns the end of the log, for an error.
func (s *server) tail() string {
	size, err := s.log.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	from := max(0, size-shownLog)
	text := make([]byte, size-from)
	if _, err := s.log.ReadAt(text, from); err != nil {
		return ""
	}
	if from > 0 {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return fmt.Sprintf("\nits log, %s, ends with:\n%s", s.log.Name(), text)
}

// stop ends the server and waits for it. One that has ended already is no error here.
func (s *server) stop() error {
	defer s.log.Close()
	select {
	case <-s.done:
		return nil
	default:
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the server: %w", err)
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
		if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill the server: %w", err)
		}
		<-s.done
		return fmt.Errorf("the server did not stop within %s and was killed%s", stopTimeout, s.tail())
	}
	if s.err != nil {
		return fmt.Errorf("the server did not stop cleanly: %w%s", s.err, s.tail())
	}
	return nil
}
