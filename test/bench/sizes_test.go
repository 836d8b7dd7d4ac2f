// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sizesVariable says how much the images hold whose bundles are measured: a list of quantities.
const sizesVariable = "RUKPAK_BENCH_SIZES"

// size is how much an image holds.
type size struct {
	name  string
	bytes int64
}

func (s *scope) sizes() []size {
	s.Helper()
	text := os.Getenv(sizesVariable)
	if text == "" {
		text = "20Ki,1Mi,5Mi"
	}
	var sizes []size
	for item := range strings.SplitSeq(text, ",") {
		q, err := resource.ParseQuantity(item)
		if err != nil || q.Value() < 1 {
			s.Fatalf("%s: %q is no list of sizes", sizesVariable, text)
		}
		sizes = append(sizes, size{item + "B", q.Value()})
	}
	return sizes
}

// sizeFigures are those of bundles of each size, against a bare pod with the same image volume.
func (s *scope) sizeFigures() []figure {
	s.Helper()
	var figures []figure
	for i, size := range s.sizes() {
		image := s.push("size-"+strings.ToLower(size.name), v1.Config{}, noise(size.bytes, byte(i))...)
		figures = append(figures, s.sizeFigure(size, image, true)...)
		figures = append(figures, s.sizeFigure(size, image, false)...)
		s.forget(image)
	}
	return figures
}

// noise is files that do not compress, of so many bytes together.
func noise(bytes int64, seed byte) []file {
	random := rand.NewChaCha8([32]byte{seed})
	each := max(bytes/100, 2<<10)
	var files []file
	for ; bytes > 0; bytes -= each {
		data := make([]byte, min(bytes, each))
		_, _ = random.Read(data) // it never fails
		files = append(files, file{fmt.Sprintf("noise/%03d", len(files)), 0o644, data})
	}
	return files
}

// sizeRun is what one side of a figure comes to.
type sizeRun struct{ seconds, server, pod, memory []float64 }

// sizeFigure measures bundles of one image, which the node has already, or has to pull. Where a figure cannot be read on the
// node it is left out.
func (s *scope) sizeFigure(size size, image string, present bool) []figure {
	s.Helper()
	bundles := s.rukpak.RukpakV1alpha1().Bundles(s.ns)
	program := s.serverImage()
	state := "present"
	if !present {
		state = "pulled"
	}
	var ours, bare sizeRun
	measure := func(to *sizeRun, round int, run func(name string)) {
		if !present && s.forget(image) == 0 {
			s.Fatalf("the node did not have %s: was that the name under which it was pulled?", image)
		}
		name := fmt.Sprintf("%s-%s-%d", strings.ToLower(size.name), state, round+1)
		before, err := s.metric("process_cpu_seconds_total")
		s.must(err)
		used := measurePods(func() { run(name) })
		after, err := s.metric("process_cpu_seconds_total")
		s.must(err)
		if round >= 0 {
			to.server, to.pod, to.memory = append(to.server, after-before), append(to.pod, used.cpu.Seconds()), append(to.memory, used.memory)
		}
	}
	alternate(rounds(s.T, sizeRounds), func(round int) {
		measure(&ours, round, func(name string) { s.keep(&ours.seconds, round, s.bundleReady(name, image)) })
		s.must(bundles.DeleteCollection(s.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	}, func(round int) {
		measure(&bare, round, func(name string) { s.keep(&bare.seconds, round, s.podSucceeded(name, program, image)) })
	})
	const than = "bare pod with the same image volume, to Succeeded"
	goal := ""
	if size.bytes <= 5<<20 {
		goal = "≤ 0.6"
	}
	name := fmt.Sprintf("Bundle of %s, image %s", size.name, state)
	figures := []figure{
		compared(name+", to Ready, p50", "s", ours.seconds, than, bare.seconds, goal),
		late(name+", to Ready", "s", ours.seconds, than, bare.seconds),
		{Name: name + ", CPU of the server", Unit: "s", Ours: over(ours.server)},
	}
	if least(ours.pod) > 0 && least(bare.pod) > 0 {
		figures = append(figures, compared(name+", CPU of the pod", "s", ours.pod, than, bare.pod, ""))
	}
	if least(ours.memory) > 0 {
		figures = append(figures, figure{Name: name + ", memory of the pod at most (RSS)", Unit: "MiB", Ours: over(ours.memory)})
	}
	if size.bytes >= 64<<20 {
		most := s.peak(func() { s.bundleReady("peak", image) })
		s.must(bundles.DeleteCollection(s.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
		figures = append(figures, figure{Name: name + ", memory of the server at most (RSS)", Unit: "MiB", Ours: over([]float64{most})})
	}
	return figures
}

// forget takes an image from the node, with its layers, so that the next pod has to pull it. It returns how many names the image had.
func (s *scope) forget(image string) int {
	s.Helper()
	_, digest, _ := strings.Cut(image, "@")
	names := strings.Fields(s.ctr("images", "list", "--quiet", "target.digest=="+digest))
	if len(names) > 0 {
		s.ctr(append([]string{"images", "remove", "--sync"}, names...)...)
	}
	return len(names)
}

// ctr asks the container runtime of the local cluster's node.
func (s *scope) ctr(args ...string) string {
	s.Helper()
	socket := filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "containerd.sock")
	command := exec.CommandContext(s.Context(), "ctr", append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...)
	var complaint strings.Builder
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		s.Fatalf("ctr %s: %v: %s", strings.Join(args, " "), err, complaint.String())
	}
	return string(out)
}
