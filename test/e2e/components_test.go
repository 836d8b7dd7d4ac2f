// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/unpack/pod"
)

// What is killed besides components of the cluster, which are named as hack/cluster names them.
const (
	victimServer  = "server"
	victimPod     = "pod"         // the process in an unpack pod
	victimDeleted = "deleted pod" // an unpack pod, through the API
)

// components are the parts of the cluster that are killed. The registry is not: it would forget its images.
var components = []string{"kubelet", "containerd", "kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler"}

// killUntil kills one thing after the other, in a random order in which each has its turn, until a time comes.
// What does not come back by itself is started again.
func (s *scope) killUntil(end time.Time, random *rand.Rand, mean time.Duration) {
	s.Helper()
	victims := append([]string{victimServer, victimPod, victimDeleted}, components...)
	counts := map[string]int{}
	for turn := 0; ; turn++ {
		if turn%len(victims) == 0 {
			random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		}
		pause := time.Duration(random.Int64N(int64(2 * mean)))
		if time.Now().Add(pause).After(end) {
			break
		}
		time.Sleep(pause)
		victim := victims[turn%len(victims)]
		if err := s.kill(victim, random); err != nil {
			s.Logf("%s is not killed: %v", victim, err)
			continue
		}
		counts[victim]++
		if slices.Contains(components, victim) {
			s.startComponents()
		}
	}
	s.Logf("killed: %v", counts)
}

// kill kills something. What is not there to be killed, or cannot be found, is an error.
func (s *scope) kill(victim string, random *rand.Rand) error {
	switch victim {
	case victimServer:
		pid, err := s.process()
		if err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	case victimPod:
		return s.killProgram()
	case victimDeleted:
		return s.deletePod(random)
	}
	return killComponent(victim)
}

// killProgram kills an unpack program of the test's namespace. It runs for some hundredths of a second, mostly, so it is waited for.
func (s *scope) killProgram() error {
	pid := 0
	err := wait.PollUntilContextTimeout(s.ctx, 2*time.Millisecond, 2*time.Second, true, func(context.Context) (bool, error) {
		pid = unpackProgram(s.ns)
		return pid != 0, nil
	})
	if err != nil {
		return fmt.Errorf("no unpack program ran: %w", err)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// unpackProgram finds the process of an unpack pod that sends content to the bundles of a namespace, 0 for none. What has ended
// meanwhile is none.
func unpackProgram(namespace string) int {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0
	}
	for _, name := range names {
		// In mode ImageCopy it is called otherwise.
		if comm, err := os.ReadFile(name); err != nil || string(comm) != "rukpak-unpack\n" && string(comm) != "unpack\n" {
			continue
		}
		folder := filepath.Dir(name)
		environment, err := os.ReadFile(filepath.Join(folder, "environ"))
		if err != nil || !bytes.Contains(environment, []byte("/namespaces/"+namespace+"/bundles/")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(folder)); err == nil {
			return pid
		}
	}
	return 0
}

func (s *scope) deletePod(random *rand.Rand) error {
	list, err := s.kube.CoreV1().Pods(s.ns).List(s.ctx, metav1.ListOptions{LabelSelector: pod.LabelManagedBy + "=" + pod.ManagedBy})
	if err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return errors.New("there is none")
	}
	p := list.Items[random.IntN(len(list.Items))]
	err = s.kube.CoreV1().Pods(s.ns).Delete(s.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	if apierrors.IsNotFound(err) {
		return errors.New("it has gone meanwhile")
	}
	return err
}

// killComponent kills a process of the local cluster.
func killComponent(name string) error {
	data, err := os.ReadFile(filepath.Join(clusterFolder(), "pid", name))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return err
	}
	// A number alone may by now belong to somebody else.
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return err
	}
	if program, _, _ := bytes.Cut(command, []byte{0}); filepath.Base(string(program)) != name {
		return fmt.Errorf("process %d is %s", pid, program)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// clusterFolder is where the local cluster has its state.
func clusterFolder() string { return filepath.Dir(os.Getenv("KUBECONFIG")) }

// startComponents starts what does not run of the local cluster, and waits until it is ready.
func (s *scope) startComponents() {
	s.Helper()
	up := exec.CommandContext(s.ctx, "../../hack/cluster/up.sh")
	up.Env = append(os.Environ(), "RUKPAK_CLUSTER_DIR="+clusterFolder())
	if out, err := up.CombinedOutput(); err != nil {
		s.Fatalf("hack/cluster/up.sh: %v: %s", err, out)
	}
}

var goroutinesMetric = regexp.MustCompile(`(?m)^go_goroutines (\d+)`)

// goroutines is how many the server has.
func (s *scope) goroutines(scraper *http.Client) int {
	s.Helper()
	count := 0
	s.eventually("the server's metrics are read", func() error {
		code, body, err := ask(s.ctx, scraper, http.MethodGet, s.service().url+"/metrics", nil)
		if err != nil || code != http.StatusOK {
			return fmt.Errorf("%d: %w: %.200s", code, err, body)
		}
		found := goroutinesMetric.FindSubmatch(body)
		if found == nil {
			return fmt.Errorf("no go_goroutines in %.200s", body)
		}
		count, err = strconv.Atoi(string(found[1]))
		return err
	})
	return count
}
