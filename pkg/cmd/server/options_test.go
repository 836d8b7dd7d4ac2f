// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// parse returns the options as the command line sets them, complete.
func parse(t *testing.T, arguments ...string) (*Options, error) {
	t.Helper()
	o := NewOptions()
	var sets cliflag.NamedFlagSets
	o.AddFlags(&sets)
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	for _, fs := range sets.FlagSets {
		flags.AddFlagSet(fs)
	}
	if err := flags.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	if err := o.Complete(flags.Changed); err != nil {
		t.Fatal(err)
	}
	return o, o.Validate()
}

func TestValidate(t *testing.T) {
	const image = "--unpack-image=registry.example/rukpak"
	for name, test := range map[string]struct {
		arguments []string
		want      []string // parts of the error; none is wanted if empty
	}{
		"in a cluster":                   {arguments: []string{image}},
		"standalone":                     {arguments: []string{"--standalone"}},
		"an external etcd":               {arguments: []string{image, "--etcd-servers=https://etcd:2379"}},
		"no image":                       {want: []string{"--unpack-image"}},
		"no workers":                     {arguments: []string{image, "--unpack-workers=0"}, want: []string{"--unpack-workers: 0"}},
		"no backoff":                     {arguments: []string{image, "--unpack-backoff=0s"}, want: []string{"--unpack-backoff: 0s"}},
		"a negative cap":                 {arguments: []string{image, "--unpack-backoff-cap=-1s"}, want: []string{"--unpack-backoff-cap: -1s"}},
		"no slow backoff":                {arguments: []string{image, "--unpack-backoff-slow=0s"}, want: []string{"--unpack-backoff-slow: 0s"}},
		"a platform":                     {arguments: []string{image, "--default-platform=linux/arm64"}},
		"no platform":                    {arguments: []string{image, "--default-platform=arm64"}, want: []string{"--default-platform", "linux/arm64"}},
		"credentials that are not there": {arguments: []string{image, "--direct-registry-config=/nowhere/config.json"}, want: []string{"--direct-registry-config", "/nowhere/config.json"}},
		"authorities that are none":      {arguments: []string{image, "--direct-ca-file=options_test.go"}, want: []string{"--direct-ca-file", "no certificate"}},
		"plain http with a URL":          {arguments: []string{image, "--direct-plain-http=http://registry.example"}, want: []string{"--direct-plain-http", "HOST:PORT"}},
		"no collection":                  {arguments: []string{image, "--content-gc-interval=0s"}, want: []string{"--content-gc-interval: 0s"}},
		"no grace":                       {arguments: []string{image, "--content-gc-grace=-1m"}, want: []string{"--content-gc-grace: -1m"}},
		"a loss that is accepted":        {arguments: []string{image, "--accept-data-loss=0123456789abcdef"}},
		"a loss without its token":       {arguments: []string{image, "--accept-data-loss=true"}}, // the refusal says which is wanted
		"a port that cannot be":          {arguments: []string{image, "--secure-port=70000"}, want: []string{"--secure-port"}},
		"no port":                        {arguments: []string{image, "--secure-port=0"}, want: []string{"--secure-port: 0 serves nothing"}},
		"everything at once":             {arguments: []string{"--unpack-workers=-1", "--content-gc-grace=0s"}, want: []string{"--unpack-image", "--unpack-workers: -1", "--content-gc-grace"}},
		"an external etcd, half named":   {arguments: []string{image, "--etcd-servers=https://etcd:2379", "--storage-backend=paper"}, want: []string{"--storage-backend"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, test.arguments...)
			if len(test.want) == 0 && err != nil {
				t.Errorf("got %v", err)
			}
			for _, part := range test.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want it to name %s", err, part)
				}
			}
		})
	}
}

func TestComplete(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		port      int
		address   net.IP
		direct    bool
		cluster   bool
	}{
		"standalone, on another port":  {arguments: []string{"--standalone", "--secure-port=7000"}, port: 7000, address: net.IPv4(127, 0, 0, 1), direct: true},
		"standalone, for everybody":    {arguments: []string{"--standalone", "--bind-address=0.0.0.0"}, port: 6444, address: net.IPv4zero, direct: true},
		"in a cluster, direct allowed": {arguments: []string{"--allow-direct"}, port: 10250, address: net.IPv4zero, direct: true, cluster: true},
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := parse(t, test.arguments...)
			serving := o.Recommended.SecureServing
			if serving.BindPort != test.port || !serving.BindAddress.Equal(test.address) {
				t.Errorf("it serves on %s:%d", serving.BindAddress, serving.BindPort)
			}
			if o.Unpack.AllowDirect != test.direct || (o.Recommended.CoreAPI != nil) != test.cluster || o.Recommended.Features.EnablePriorityAndFairness != test.cluster {
				t.Errorf("direct %v, core API %v, fairness %v", o.Unpack.AllowDirect, o.Recommended.CoreAPI, o.Recommended.Features.EnablePriorityAndFairness)
			}
			if !serving.DisableHTTP2Serving {
				t.Error("it serves HTTP/2")
			}
		})
	}
	o, _ := parse(t, "--data-dir=here")
	if !filepath.IsAbs(o.DataDir) || filepath.Base(o.DataDir) != "here" {
		t.Errorf("the data dir is %s", o.DataDir)
	}
	if o.Collect.Grace < 10*time.Minute {
		t.Errorf("the grace period is %v by default", o.Collect.Grace)
	}
}

func TestDefaultNamespace(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "elsewhere")
	if got := NewOptions().Namespace; got != "elsewhere" {
		t.Errorf("got %s", got)
	}
	t.Setenv("POD_NAMESPACE", "")
	if got := NewOptions().Namespace; got != "rukpak-system" {
		t.Errorf("got %s", got)
	}
}

func TestCommand(t *testing.T) {
	cmd := NewCommand(t.Context())
	cmd.SetArgs([]string{"--unpack_workers=0", "--unpack-image=x", "--data-dir", t.TempDir()})
	cmd.SilenceErrors = true
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "--unpack-workers: 0") {
		t.Errorf("got %v", err)
	}
	cmd = NewCommand(t.Context())
	cmd.SilenceErrors = true
	cmd.SetArgs([]string{"surplus"})
	if err := cmd.Execute(); err == nil {
		t.Error("arguments are passed over in silence")
	}
}

func TestVersion(t *testing.T) {
	before := version
	t.Cleanup(func() { version = before })
	for set, want := range map[string][2]string{"v1.2.3": {"1", "2"}, "v1.3.0-rc.1": {"1", "3"}, "devel": {"", ""}} {
		version = set
		info := ownVersion{}.Info()
		if info.GitVersion != set || info.Major != want[0] || info.Minor != want[1] || info.GoVersion == "" || !strings.Contains(info.Platform, "/") {
			t.Errorf("%s: %+v", set, info)
		}
	}
}

func TestLogsMayBeJSON(t *testing.T) {
	o, err := parse(t, "--standalone", "--logging-format=json")
	if err != nil {
		t.Fatal(err)
	}
	if errs := logsapi.Validate(o.Logs, utilfeature.DefaultFeatureGate, nil); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}

// Whoever looks after a server finds each flag that is ours on a page.
func TestFlagsAreDocumented(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	var text strings.Builder
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(raw)
	}
	var sets cliflag.NamedFlagSets
	NewOptions().AddFlags(&sets)
	for _, name := range []string{"rukpak", "certificates", "unpack", "content", "transfers"} {
		sets.FlagSet(name).VisitAll(func(f *pflag.Flag) {
			if !regexp.MustCompile("--" + f.Name + "[^-a-z]").MatchString(text.String()) {
				t.Errorf("no page of docs tells of --%s", f.Name)
			}
		})
	}
}
