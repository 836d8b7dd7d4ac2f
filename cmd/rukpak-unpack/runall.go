// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"rukpak.io/apiserver/pkg/unpack/contract"
)

// atOnce is how many of several bundles are packed and sent at the same time. While the server stores one the
// next can be read; more would take more memory than a pod for one bundle needs.
const atOnce = 2

// readJobs reads the configurations that the environment holds, one for each bundle.
func readJobs(getenv func(string) string) ([]config, error) {
	var jobs []contract.Job
	if err := json.Unmarshal([]byte(getenv(contract.EnvJobs)), &jobs); err != nil {
		return nil, fmt.Errorf("%s: %w", contract.EnvJobs, err)
	}
	if len(jobs) == 0 {
		return nil, fmt.Errorf("%s names no bundle", contract.EnvJobs)
	}
	configs := make([]config, len(jobs))
	for i, job := range jobs {
		own := map[string]string{contract.EnvURL: job.URL, contract.EnvRoot: job.Root, contract.EnvPath: job.Path, contract.EnvTraceParent: job.TraceParent}
		c, err := readConfig(func(name string) string {
			if value, ok := own[name]; ok {
				return value
			}
			return getenv(name)
		})
		if err != nil {
			return nil, fmt.Errorf("%s, entry %d: %w", contract.EnvJobs, i, err)
		}
		configs[i] = c
	}
	return configs, nil
}

// runAllCommand packs and sends what the environment names for several bundles and returns the exit code: 0 when all
// was taken. What fails for one of them is no reason to leave out another.
func runAllCommand(ctx context.Context, getenv func(string) string, report func(contract.Report)) int {
	configs, err := readJobs(getenv)
	if err != nil {
		report(contract.Report{Reason: contract.ReasonInvalidConfiguration, Message: err.Error()})
		return 1
	}
	ctx, cancel := context.WithTimeout(ctx, configs[0].timeout)
	defer cancel()
	client := newClient(configs[0]) // the server, and what is trusted, are the same for all
	defer client.CloseIdleConnections()
	failures := runAll(ctx, client, configs)
	if len(failures) == 0 {
		return 0
	}
	report(summary(failures, len(configs)))
	return 1
}

// runAll runs each configuration and returns what failed, by its URL.
func runAll(ctx context.Context, client *http.Client, configs []config) map[string]*failure {
	var (
		mu       sync.Mutex
		failures = map[string]*failure{}
		work     sync.WaitGroup
	)
	next := make(chan config)
	for range min(atOnce, len(configs)) {
		work.Go(func() {
			for c := range next {
				// What is tried again is no news yet.
				if f := try(ctx, client, c, func(contract.Report) {}); f != nil {
					mu.Lock()
					failures[c.url] = f
					mu.Unlock()
				}
			}
		})
	}
	for _, c := range configs {
		next <- c
	}
	close(next)
	work.Wait()
	return failures
}

// summary is the report about several failures: the reason of one, and the words of all as far as they fit.
func summary(failures map[string]*failure, of int) contract.Report {
	var words []string
	reason := ""
	for url, f := range failures {
		reason = f.reason
		words = append(words, url+": "+f.Error())
	}
	slices.Sort(words)
	return contract.Report{Reason: reason, Message: fmt.Sprintf("%d of %d bundles: %s", len(failures), of, strings.Join(words, "; "))}
}
