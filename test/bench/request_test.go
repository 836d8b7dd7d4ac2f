// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// requests is how many GETs all clients of a round make together.
const requests = 400

// opponent is what small content is compared with.
type opponent struct {
	way    string
	ours   target
	than   string
	client *http.Client
	url    string
	size   int64
}

// requestFigures are latency and throughput of GETs of small content.
func (s *scope) requestFigures(c content, bare bareServer) []figure {
	s.Helper()
	bytes := strconv.FormatInt(c.size, 10)
	opponents := []opponent{
		{"through kube-apiserver", s.through, "GET of a ConfigMap of that size, there", s.through.client, s.configMap(), -1},
		{"through kube-apiserver", s.through, "bare Go TLS server, the same way", bare.through.client, bare.through.content(s.ns, "blobs", bytes), c.size},
		{"straight", s.direct, "bare Go TLS server, the same way", bare.direct.client, bare.direct.content(s.ns, "blobs", bytes), c.size},
	}
	var figures []figure
	for _, o := range opponents {
		for _, clients := range []int{1, 8} {
			figures = append(figures, s.against(c, o, clients)...)
		}
	}
	return figures
}

func (s *scope) against(c content, o opponent, clients int) []figure {
	s.Helper()
	var latency, rate [2][]float64
	measure := func(side int, client *http.Client, url string, size int64) func(int) {
		return func(round int) {
			each, all := s.readers(client, url, size, clients, requests/clients)
			if round >= 0 {
				latency[side] = append(latency[side], median(each).Seconds()*1e3)
				rate[side] = append(rate[side], float64(len(each))/all.Seconds())
			}
		}
	}
	alternate(rounds(s.T, requestRounds),
		measure(0, o.ours.client, o.ours.content(s.ns, "bundles", c.name), c.size),
		measure(1, o.client, o.url, o.size))
	name := fmt.Sprintf("GET of 20 KiB %s, clients: %d", o.way, clients)
	return []figure{
		compared(name+", p50", "ms", latency[0], o.than, latency[1], ""),
		compared(name, "1/s", rate[0], o.than, rate[1], ""),
	}
}

func median(d []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(d))[len(d)/2]
}

// configMap makes a ConfigMap of the size of small content and returns its URL.
func (s *scope) configMap() string {
	s.Helper()
	_, err := s.kube.CoreV1().ConfigMaps(s.ns).Create(s.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Data:       map[string]string{"noise": strings.Repeat("0123456789abcdef", smallSize/16)},
	}, metav1.CreateOptions{})
	s.must(err)
	return s.through.base + "/api/v1/namespaces/" + s.ns + "/configmaps/small"
}
