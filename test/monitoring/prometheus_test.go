// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	imagename "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
	"rukpak.io/apiserver/test/integration/harness"
)

// prometheusVariable is where Prometheus is, which `make alerts` builds. Without it what follows is skipped.
const prometheusVariable = "RUKPAK_PROMETHEUS"

// dataless is what has no series here, since no reader is refused. All other queries of the dashboard find something.
const dataless = "rukpak_content_readers_refused_total"

// depends are alerts that the machine can have fire.
var depends = []string{"RukpakStoreFilling", "RukpakStoreFull"}

// TestPrometheus has a Prometheus scrape a server as servicemonitor.yaml says, and look at the rules and the dashboard.
func TestPrometheus(t *testing.T) {
	program := os.Getenv(prometheusVariable)
	if program == "" {
		t.Skipf("%s is not set: `make alerts` builds Prometheus, which takes minutes", prometheusVariable)
	}
	server := startServer(t)
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	p := startPrometheus(t, program, server)

	for query, want := range map[string]string{
		`up{job="rukpak"}`: "1", `up{job="nobody"}`: "0", `rukpak_build_info`: "1",
		`job_instance:rukpak_past:known30m`: "1", `job_instance:rukpak_past:known1h`: "1", `job_instance:rukpak_past:known1d`: "1",
		`job:rukpak_content_read_damaged:increase1d`: "0",
	} {
		harness.Eventually(t, query, func() string {
			if got := p.query(t, query); !slices.Equal(got, []string{want}) {
				return fmt.Sprintf("it is %q, want %s", got, want)
			}
			return ""
		})
	}

	want := 0
	for _, group := range readRules(t).Spec.Groups {
		want += len(group.Rules)
	}
	harness.Eventually(t, "all rules are well, and no alert fires", func() string {
		rules, alerts := p.rules(t)
		for _, r := range rules {
			if r.Health != "ok" || r.LastError != "" {
				return fmt.Sprintf("%s is %s: %s", r.Name, r.Health, r.LastError)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(alerts)) {
			if alerts[name] != "inactive" && !slices.Contains(depends, name) {
				return name + " is " + alerts[name]
			}
		}
		if len(rules) != want {
			return fmt.Sprintf("there are %d rules of %d", len(rules), want)
		}
		return ""
	})
	unpack(t, client)
	// Both are born with their first count.
	for _, result := range []string{"succeeded", "failed"} {
		query := `sum(job_result_reason:rukpak_unpack_attempts:increase1h{result="` + result + `"}) >= 1`
		harness.Eventually(t, query, p.holds(t, query))
	}
	harness.Eventually(t, "the label namespace is that of bundles", p.holds(t, `rukpak_content_namespace_bytes{namespace="default"} > 0`))
	damage(t, client, server.Dir)
	harness.Eventually(t, "damaged content is told of", p.is(t, "RukpakContentDamaged", "firing"))
	t.Run("Dashboard", p.dashboard)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "a server that is gone is told of", p.is(t, "RukpakAbsent", "pending"))
}

// startServer starts a server of its own, without a cluster.
func startServer(t *testing.T) *harness.Server {
	t.Helper()
	program := filepath.Join(t.TempDir(), "rukpak-apiserver")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, root+"/cmd/rukpak-apiserver").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s, err := harness.StartStandalone(t.Context(), harness.Programs{Server: program}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(s.Log())
		}
	})
	return s
}

// create makes a bundle.
func create(t *testing.T, client clientset.Interface, name string, source v1alpha1.BundleSource) {
	t.Helper()
	bundle := &v1alpha1.Bundle{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.BundleSpec{ProvisionerClassName: "raw", Source: source}}
	if _, err := client.RukpakV1alpha1().Bundles("default").Create(t.Context(), bundle, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// unpack makes bundles of an image that is there and of one that is not.
func unpack(t *testing.T, client clientset.Interface) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	image, err := random.Image(1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	repository, err := imagename.NewRepository(strings.TrimPrefix(server.URL, "http://") + "/app")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(repository.Tag("v1"), image, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	for name, digest := range map[string]string{"there": digest.String(), "missing": "sha256:" + strings.Repeat("0", 64)} {
		image := &v1alpha1.ImageSource{Reference: repository.Digest(digest).Name()}
		create(t, client, name, v1alpha1.BundleSource{Type: v1alpha1.SourceTypeImage, Image: image})
	}
}

// damage stores content, changes a byte of it on the disk, and reads it.
func damage(t *testing.T, client clientset.Interface, dir string) {
	t.Helper()
	bundles, api := client.RukpakV1alpha1().Bundles("default"), client.RukpakV1alpha1().RESTClient()
	create(t, client, "app", v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload})
	const path = "/apis/rukpak.io/v1alpha1/namespaces/default/bundles/app/content"
	if err := api.Put().AbsPath(path).Body(archive(t)).SetHeader("Content-Type", "application/gzip").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	b, err := bundles.Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hex := strings.TrimPrefix(b.Status.Content.Digest, "sha256:")
	file := filepath.Join(dir, "content", "blobs", "sha256", hex[:2], hex)
	stored, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	stored[len(stored)/2] ^= 1
	if err := os.WriteFile(file, stored, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Get().AbsPath(path).MaxRetries(0).Do(t.Context()).Raw(); err == nil {
		t.Error("damaged content is served")
	}
}

// archive has a file that cannot be compressed.
func archive(t *testing.T) []byte {
	t.Helper()
	body := make([]byte, 200_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(body) // never an error
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	files := tar.NewWriter(compressed)
	if err := files.WriteHeader(&tar.Header{Name: "data", Mode: 0o644, Size: int64(len(body))}); err != nil {
		t.Fatal(err)
	}
	if _, err := files.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	if err := compressed.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// prometheus is a Prometheus that runs.
type prometheus struct {
	*harness.Process
	url string
}

// startPrometheus starts one that scrapes the server twice: as the job rukpak with the certificate of the server's kubeconfig, since
// a server alone knows no tokens, and as the job nobody without.
func startPrometheus(t *testing.T, program string, server *harness.Server) *prometheus {
	t.Helper()
	dir := t.TempDir()
	config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		t.Fatal(err)
	}
	monitor := endpoint(t)
	job := func(name string, tls map[string]any) map[string]any {
		tls["ca_file"], tls["server_name"] = "ca.crt", monitor.TLSConfig.ServerName
		return map[string]any{
			"job_name": name, "scheme": monitor.Scheme, "metrics_path": monitor.Path, "honor_labels": monitor.HonorLabels, "tls_config": tls,
			"static_configs": []any{map[string]any{
				"targets": []string{strings.TrimPrefix(server.URL, "https://")},
				"labels":  map[string]string{"namespace": "rukpak-system", "pod": "rukpak-apiserver-0"}, // as the operator adds them
			}},
		}
	}
	settings, err := yaml.Marshal(map[string]any{
		"global":     map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{"rules.yaml"},
		"scrape_configs": []any{
			job("rukpak", map[string]any{"cert_file": "client.crt", "key_file": "client.key"}), job("nobody", map[string]any{}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"prometheus.yaml": settings, "rules.yaml": ruleFile(t), "ca.crt": config.CAData, "client.crt": config.CertData, "client.key": config.KeyData,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	process, err := harness.StartProgram("prometheus", filepath.Join(dir, "prometheus.log"), program, nil,
		"--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(process.Log())
		}
	})
	p := &prometheus{process, "http://" + address}
	harness.Eventually(t, "Prometheus is ready", func() string {
		resp, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return resp.Status
		}
		return ""
	})
	return p
}

// monitored is how servicemonitor.yaml has the server scraped.
type monitored struct {
	Scheme, Path string
	HonorLabels  bool
	TLSConfig    struct{ ServerName string }
}

func endpoint(t *testing.T) monitored {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "artifacts/monitoring/servicemonitor.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		Spec struct{ Endpoints []monitored }
	}
	if err := yaml.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	if len(object.Spec.Endpoints) != 1 {
		t.Fatalf("there are %d endpoints", len(object.Spec.Endpoints))
	}
	return object.Spec.Endpoints[0]
}

// get asks the API of Prometheus, and decodes the data that it answers with.
func (p *prometheus) get(t *testing.T, path string, parameters url.Values, into any) {
	t.Helper()
	resp, err := http.Get(p.url + "/api/v1/" + path + "?" + parameters.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Warnings      []string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatalf("%s: %s: %v", path, resp.Status, err)
	}
	if answer.Status != "success" || len(answer.Warnings) > 0 {
		t.Fatalf("%s: %s: %s %q", parameters.Get("query"), resp.Status, answer.Error, answer.Warnings)
	}
	if err := json.Unmarshal(answer.Data, into); err != nil {
		t.Fatal(err)
	}
}

// state is a rule as Prometheus sees it.
type state struct{ Name, Type, Health, LastError, State string }

// rules returns all rules, and the states of the alerts.
func (p *prometheus) rules(t *testing.T) ([]state, map[string]string) {
	t.Helper()
	var data struct{ Groups []struct{ Rules []state } }
	p.get(t, "rules", nil, &data)
	var all []state
	alerts := map[string]string{}
	for _, group := range data.Groups {
		for _, r := range group.Rules {
			if all = append(all, r); r.Type == "alerting" {
				alerts[r.Name] = r.State
			}
		}
	}
	return all, alerts
}

func (p *prometheus) is(t *testing.T, alert, want string) func() string {
	return func() string {
		if _, alerts := p.rules(t); alerts[alert] != want {
			return fmt.Sprintf("%s is %s", alert, alerts[alert])
		}
		return ""
	}
}

func (p *prometheus) holds(t *testing.T, expr string) func() string {
	return func() string {
		if len(p.query(t, expr)) == 0 {
			return "it finds nothing"
		}
		return ""
	}
}

// query returns the values of an expression.
func (p *prometheus) query(t *testing.T, expr string) []string {
	t.Helper()
	var data struct{ Result []struct{ Value [2]any } }
	p.get(t, "query", url.Values{"query": {expr}}, &data)
	var values []string
	for _, r := range data.Result {
		values = append(values, fmt.Sprint(r.Value[1]))
	}
	return values
}

// dashboard asks for all that the dashboard asks for.
func (p *prometheus) dashboard(t *testing.T) {
	for _, panel := range dashboard(t) {
		for _, target := range panel.Targets {
			expr := strings.NewReplacer("$__rate_interval", "15s", "$__range", "1m").Replace(target.Expr)
			empty := strings.Contains(expr, dataless)
			t.Run(panel.Title, func(t *testing.T) {
				harness.Eventually(t, expr, func() string {
					now := time.Now().Unix()
					var data struct{ Result []any }
					p.get(t, "query_range", url.Values{"query": {expr}, "start": {fmt.Sprint(now - 60)}, "end": {fmt.Sprint(now)}, "step": {"1"}}, &data)
					if empty != (len(data.Result) == 0) {
						return fmt.Sprintf("%d series", len(data.Result))
					}
					return ""
				})
			})
		}
	}
}
