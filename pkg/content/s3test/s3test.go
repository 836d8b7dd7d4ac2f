// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package s3test runs a real S3 server inside a test: versitygw over a folder, with TLS
// by an authority of its own and credentials of its own. "make s3" builds it.
package s3test

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/pki"
)

const (
	program  = "versitygw"
	validity = 24 * time.Hour
	// startTime is how long the server may take to answer.
	startTime = 30 * time.Second
	pollEvery = 20 * time.Millisecond
)

// Server is an S3 server that lives as long as the test.
type Server struct {
	// Endpoint is its address.
	Endpoint string
	// CAFile is the certificate of its authority.
	CAFile string
	// Folder has one folder for each bucket, and a file for each object in that.
	Folder string
	// Environ are the variables of the environment from which a client of AWS learns the credentials.
	Environ []string

	dir, address   string
	access, secret string
	disk           int64 // 0 for that of Folder
	buckets        []string
	process        *exec.Cmd
	log            *os.File
}

// Start starts a server, whose objects go with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, 0)
}

// StartSmall starts a server with a disk of so many bytes, in memory, which nobody else sees:
// Folder stays empty here, and the disk has the buckets that are named.
// The test is skipped where this user may not mount one.
func StartSmall(t testing.TB, disk int64, buckets ...string) *Server {
	t.Helper()
	return start(t, disk, buckets...)
}

func start(t testing.TB, disk int64, buckets ...string) *Server {
	t.Helper()
	dir := t.TempDir()
	s := &Server{
		Folder: filepath.Join(dir, "buckets"), CAFile: filepath.Join(dir, "ca.crt"),
		dir: dir, access: rand.Text(), secret: rand.Text(), disk: disk, buckets: buckets,
	}
	s.Environ = []string{
		"AWS_ACCESS_KEY_ID=" + s.access, "AWS_SECRET_ACCESS_KEY=" + s.secret, "AWS_EC2_METADATA_DISABLED=true",
		// What the user has for real.
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_PROFILE=", "AWS_CA_BUNDLE=",
	}
	if err := s.prepare(); err != nil {
		t.Fatal(err)
	}
	s.Run(t)
	t.Cleanup(func() { s.Kill(t) })
	return s
}

func (s *Server) prepare() error {
	if err := os.MkdirAll(s.Folder, 0o700); err != nil {
		return err
	}
	authority, err := pki.NewAuthority("s3test", validity)
	if err != nil {
		return err
	}
	cert, key, err := authority.Serving(nil, []net.IP{net.IPv4(127, 0, 0, 1)}, validity)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"ca.crt": authority.CertPEM, "tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(s.dir, name), text, 0o600); err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.address = listener.Addr().String()
	s.Endpoint = "https://" + s.address
	return listener.Close()
}

// Run starts the server again after Kill, at the same address and with what it had.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	path, err := find()
	if err != nil {
		t.Fatal(err)
	}
	s.log, err = os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	s.process = s.command(path, "--port", s.address, "--quiet",
		"--cert", filepath.Join(s.dir, "tls.crt"), "--key", filepath.Join(s.dir, "tls.key"), "posix", s.Folder)
	s.process.Dir = s.dir
	s.process.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s.access, "ROOT_SECRET_KEY="+s.secret)
	s.process.Stdout, s.process.Stderr = s.log, s.log
	err = s.process.Start()
	if s.disk > 0 && (errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSPC)) {
		s.process = nil
		t.Skipf("this machine gives no user namespace: %v", errors.Join(err, s.log.Close()))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.wait(); err != nil {
		s.Kill(t)
		log, _ := os.ReadFile(s.log.Name())
		t.Fatalf("%v: %s", err, log)
	}
}

// command runs the server, with a small disk in namespaces of its own.
func (s *Server) command(args ...string) *exec.Cmd {
	if s.disk == 0 {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	const script = `mount -t tmpfs -o size="$1" none "$2" && for b in $3; do mkdir "$2/$b" || exit; done && shift 3 && exec "$@"`
	size := strconv.FormatInt(s.disk, 10)
	cmd := exec.Command("sh", append([]string{"-c", script, "sh", size, s.Folder, strings.Join(s.buckets, " ")}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig:   syscall.SIGKILL,
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	return cmd
}

// Kill ends the server as kill -9 does.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if s.process == nil {
		return
	}
	if err := s.process.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = s.process.Wait() // it was killed
	s.process = nil
	if err := s.log.Close(); err != nil {
		t.Error(err)
	}
}

// wait returns when the server answers.
func (s *Server) wait() error {
	pem, err := os.ReadFile(s.CAFile)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: startTime}
	for began := time.Now(); ; time.Sleep(pollEvery) {
		resp, err := client.Get(s.Endpoint)
		if err == nil {
			return resp.Body.Close()
		}
		if time.Since(began) > startTime {
			return fmt.Errorf("%s does not answer: %w", program, err)
		}
	}
}

// Bucket makes a bucket, if it is not there, and returns the URL of a content store in it.
func (s *Server) Bucket(t testing.TB, name, prefix string) *url.URL {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(s.Folder, name), 0o700); err != nil {
		t.Fatal(err)
	}
	query := url.Values{"endpoint": {s.Endpoint}, "use_path_style": {"true"}, "ca-file": {s.CAFile}}
	if prefix != "" {
		query.Set("prefix", prefix)
	}
	return &url.URL{Scheme: "s3", Host: name, RawQuery: query.Encode()}
}

// Setenv gives the credentials to this process for the time of the test.
func (s *Server) Setenv(t testing.TB) {
	t.Helper()
	for _, entry := range s.Environ {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(name, value)
	}
}

// find returns the program, in the folder that RUKPAK_BIN names, or else in _output/bin.
func find() (string, error) {
	folder := os.Getenv("RUKPAK_BIN")
	if folder == "" {
		root, err := moduleRoot()
		if err != nil {
			return "", err
		}
		folder = filepath.Join(root, "_output", "bin")
	}
	path, err := exec.LookPath(filepath.Join(folder, program))
	if err != nil {
		return "", fmt.Errorf("an S3 server is needed, which \"make s3\" builds: %w", err)
	}
	return path, nil
}

// moduleRoot is the next folder above the tests with a go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no go.mod above the tests")
		}
		dir = parent
	}
}
