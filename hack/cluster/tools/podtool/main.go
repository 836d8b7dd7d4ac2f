// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Podtool is the program of the local cluster's own images: the sandbox process
// of every pod ("pause"), and what check.sh proves from inside a pod.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"

var errUsage = errors.New("usage: podtool pause | echo WORD... | cat DIR... | write FILE | get PATH [TOKENFILE]")

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "podtool:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	command, args := args[0], args[1:]
	switch {
	case command == "pause" && len(args) == 0:
		pause()
		return nil
	case command == "echo":
		fmt.Println(strings.Join(args, " "))
		return nil
	case command == "cat" && len(args) > 0:
		return cat(args)
	case command == "write" && len(args) == 1:
		return os.WriteFile(args[0], []byte("written\n"), 0o644)
	case command == "get" && len(args) == 1:
		return get(args[0], serviceAccount+"token")
	case command == "get" && len(args) == 2:
		return get(args[0], args[1])
	}
	return errUsage
}

// pause waits for a signal to end, and reaps meanwhile what a pod with one
// process namespace for all its containers leaves to its first process.
func pause() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

// cat prints every regular file below the given folders, each after its path.
func cat(roots []string) error {
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Printf("--- %s\n%s", path, content)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// get reads a path of the Kubernetes API as a pod does: at the address in the
// environment, with the cluster's CA and a bearer token from tokenFile.
func get(path, tokenFile string) (err error) {
	ca, err := os.ReadFile(serviceAccount + "ca.crt")
	if err != nil {
		return err
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return errors.New("the service account's CA holds no certificate")
	}
	host := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	req, err := http.NewRequest(http.MethodGet, "https://"+host+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	if _, err := io.Copy(os.Stdout, res.Body); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", path, err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", path, res.Status)
	}
	return nil
}
