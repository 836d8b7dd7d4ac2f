// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// pollInterval is the pause between two looks at something that is waited for.
const pollInterval = 50 * time.Millisecond

// logTail is how many bytes of a log are shown in an error.
const logTail = 4096

// Process is a program that runs beside the tests.
type Process struct {
	// LogFile holds what the program writes to its standard output and error.
	LogFile string

	name  string
	cmd   *exec.Cmd
	ended chan struct{}
}

// StartProgram starts a program with these variables added to its environment. Its output is added to logFile.
// It dies with the test's own process.
func StartProgram(name, logFile, program string, env []string, args ...string) (*Process, error) {
	return startWith(name, logFile, program, append(os.Environ(), env...), args...)
}

// start starts a program, whose output is added to logFile. It dies with the test's own process.
func start(name, logFile, program string, args ...string) (*Process, error) {
	return startWith(name, logFile, program, nil, args...)
}

// startWith starts a program with an environment, that of this process if it is nil.
func startWith(name, logFile, program string, env []string, args ...string) (*Process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{LogFile: logFile, name: name, cmd: cmd, ended: make(chan struct{})}
	go func() {
		// How it ended is in its log.
		_ = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// PID is the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Kill ends the process as kill -9 does, and returns once it is gone. A process that has ended stays so.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.ended
	return nil
}

// Terminate asks the process to end, as a kubelet does, and returns once it is gone.
func (p *Process) Terminate(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("terminate %s: %w", p.name, err)
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s does not end: %w:\n%s", p.name, ctx.Err(), p.tail())
	}
}

// Log returns what the process has written.
func (p *Process) Log() string {
	raw, err := os.ReadFile(p.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// wait waits until check returns nil, ctx ends or the process does.
func (p *Process) wait(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.ended:
			return fmt.Errorf("%s ended before %s (%w):\n%s", p.name, what, err, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s: gave up waiting until %s (%w):\n%s", p.name, what, err, p.tail())
		}
	}
}

func (p *Process) tail() string {
	log := p.Log()
	return log[max(0, len(log)-logTail):]
}

// portTries is how often a program is started on other ports, when somebody was quicker to take one.
const portTries = 3

// onPorts runs begin with n free ports of the loopback address. Between the choice of a port and its use
// somebody else may take it: begin is run again with others then.
func onPorts(n int, begin func(ports []int) (*Process, error)) (*Process, error) {
	for try := 1; ; try++ {
		ports, err := freePorts(n)
		if err != nil {
			return nil, err
		}
		p, err := begin(ports)
		if err == nil || try == portTries || p == nil || !strings.Contains(p.Log(), "address already in use") {
			return p, err
		}
		if err := p.Kill(); err != nil {
			return nil, err
		}
	}
}

// FreePort returns a port of the loopback address on which nobody listens now.
func FreePort() (int, error) {
	ports, err := freePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}

// freePorts returns ports of the loopback address on which nobody listens.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		// Kept until all are found, so that they differ.
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
