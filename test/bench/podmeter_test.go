// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"rukpak.io/apiserver/pkg/unpack/contract"
)

// meterInterval is how often the pods of a measurement are looked at. Their control groups are there for some time after the last
// of their processes has ended, which is when the CPU time is whole.
const meterInterval = 5 * time.Millisecond

// podUse is what the pods that came during a measurement took.
type podUse struct {
	// cpu is that of all processes, those of the container runtime in the pod's control group included. 0 is not known.
	cpu time.Duration
	// memory is the most that one process of the unpack program had resident, MiB. 0 is not known.
	memory float64
}

// measurePods runs something, and measures the pods that come to this node meanwhile. It reads the control groups that a kubelet
// with the driver cgroupfs makes, of either version.
func measurePods(run func()) podUse {
	old := map[string]bool{}
	for _, group := range podGroups() {
		old[group] = true
	}
	done, result := make(chan struct{}), make(chan podUse)
	go func() {
		tick := time.NewTicker(meterInterval)
		defer tick.Stop()
		cpu, memory := map[string]time.Duration{}, 0.0
		for {
			for _, group := range podGroups() {
				if !old[group] {
					cpu[group] = max(cpu[group], groupCPU(group))
					memory = max(memory, programMemory(group))
				}
			}
			select {
			case <-done:
				sum := podUse{memory: memory}
				for _, c := range cpu {
					sum.cpu += c
				}
				result <- sum
				return
			case <-tick.C:
			}
		}
	}()
	stopped := false
	stop := func() podUse { stopped = true; close(done); return <-result }
	defer func() {
		if !stopped { // run has ended the test
			stop()
		}
	}()
	run()
	return stop()
}

// podGroups are the control groups of the pods on this node.
func podGroups() []string {
	for _, root := range []string{"/sys/fs/cgroup/cpuacct/kubepods", "/sys/fs/cgroup/kubepods"} {
		if _, err := os.Stat(root); err != nil {
			continue
		}
		var groups []string
		for _, pattern := range []string{"pod*", "*/pod*"} {
			found, err := filepath.Glob(filepath.Join(root, pattern))
			if err == nil { // the pattern is well formed
				groups = append(groups, found...)
			}
		}
		return groups
	}
	return nil
}

// groupCPU is the CPU time of a control group, 0 when it is gone.
func groupCPU(group string) time.Duration {
	if data, err := os.ReadFile(filepath.Join(group, "cpuacct.usage")); err == nil {
		return time.Duration(numberIn(string(data)))
	}
	data, err := os.ReadFile(filepath.Join(group, "cpu.stat"))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(data), "usage_usec ")
	return time.Duration(numberIn(after)) * time.Microsecond
}

// programMemory is the most that a process of the unpack program in a pod had resident so far, MiB.
func programMemory(group string) float64 {
	most := 0.0
	lists, err := filepath.Glob(filepath.Join(group, "*", "cgroup.procs"))
	if err != nil {
		return 0
	}
	for _, list := range lists {
		pids, err := os.ReadFile(list)
		if err != nil {
			continue // it has ended meanwhile
		}
		for _, pid := range strings.Fields(string(pids)) {
			status, err := os.ReadFile("/proc/" + pid + "/status")
			if err != nil || !strings.HasPrefix(string(status), "Name:\t"+filepath.Base(contract.Program)+"\n") {
				continue
			}
			_, after, _ := strings.Cut(string(status), "VmHWM:")
			most = max(most, float64(numberIn(after))/1024)
		}
	}
	return most
}

// numberIn is the number at the front of a text, 0 when there is none.
func numberIn(text string) int64 {
	words := strings.Fields(text)
	if len(words) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(words[0], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
