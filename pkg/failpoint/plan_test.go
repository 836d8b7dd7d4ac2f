// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv("FAILPOINT_TEST_CHILD") != "" {
		Hit("content/after-write")
		Hit("content/after-write")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		text string
		want map[string]*point
		bad  bool
	}{
		{text: "", want: map[string]*point{}},
		{text: "content/after-write=exit@3; collect/after-mark=sleep(100ms);", want: map[string]*point{
			"content/after-write": {kind: "exit", at: 3}, "collect/after-mark": {kind: "sleep", wait: 100 * time.Millisecond}}},
		{text: "content/after-write=panic", want: map[string]*point{"content/after-write": {kind: "panic"}}},
		{text: "content/after-write", bad: true},
		{text: "content/after-wrote=exit", bad: true},
		{text: "content/after-write=exit@0", bad: true},
		{text: "content/after-write=exit@", bad: true},
		{text: "content/after-write=sleep", bad: true},
		{text: "content/after-write=sleep(soon)", bad: true},
		{text: "content/after-write=stop", bad: true},
	} {
		t.Run(tc.text, func(t *testing.T) {
			got, err := parse(tc.text)
			if (err != nil) != tc.bad {
				t.Fatalf("error %v, wanted one: %v", err, tc.bad)
			}
			if tc.bad {
				return
			}
			if len(got.points) != len(tc.want) {
				t.Fatalf("got %d points, want %d", len(got.points), len(tc.want))
			}
			for name, want := range tc.want {
				pt := got.points[name]
				if pt == nil || pt.kind != want.kind || pt.wait != want.wait || pt.at != want.at {
					t.Errorf("%s: got %+v", name, pt)
				}
			}
		})
	}
}

func TestExitComesAtTheHitThatIsNamed(t *testing.T) {
	for _, tc := range []struct {
		name, plan string
		killed     bool
	}{
		{"at the second of two", "content/after-write=exit@2", true},
		{"at the third of two", "content/after-write=exit@3", false},
		{"at another point", "content/after-create=exit", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "FAILPOINT_TEST_CHILD=1", "RUKPAK_FAILPOINTS="+tc.plan)
			err := cmd.Run()
			status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if !ok {
				t.Fatalf("no wait status: %v", err)
			}
			if killed := status.Signaled() && status.Signal() == syscall.SIGKILL; killed != tc.killed {
				t.Errorf("killed: %v (%v), want %v", killed, err, tc.killed)
			}
		})
	}
}

func TestAMisspeltPointEndsTheProcess(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FAILPOINT_TEST_CHILD=1", "RUKPAK_FAILPOINTS=content/nowhere=exit")
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != 2 {
		t.Fatalf("ended with %v", err)
	}
}

func TestPanic(t *testing.T) {
	p, err := parse("content/after-write=panic")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	p.hit("content/after-write", func() { t.Error("killed") })
}
