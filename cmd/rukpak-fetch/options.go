// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/fetch"
	"rukpak.io/apiserver/pkg/tarball"
)

// options are what the command line says.
type options struct {
	namespace, name, dir string

	follow     bool
	timeout    time.Duration
	poll       time.Duration
	keep       int
	grace      time.Duration
	maxBytes   int64
	direct     bool
	tokenFile  string
	address    string
	kubeconfig string
	tellURLs   []string
	pidFile    string
	signal     string
}

func parse(args []string, usage io.Writer) (*options, error) {
	o := &options{}
	flags := pflag.NewFlagSet("rukpak-fetch", pflag.ContinueOnError)
	flags.SetOutput(usage)
	flags.Usage = func() {
		fmt.Fprintf(usage, "Puts the content of a bundle into a volume.\n\n  rukpak-fetch [flags] [NAMESPACE/]NAME DIR\n  rukpak-fetch check DIR\n\n%s", flags.FlagUsages())
	}
	flags.BoolVar(&o.follow, "follow", false, "Put each content that the bundle gets into the volume, in place of ending after the first.")
	flags.DurationVar(&o.timeout, "timeout", 0, "How long to wait for content at most, without --follow. 0 is without a bound.")
	flags.DurationVar(&o.poll, "poll-interval", bundleclient.DefaultPollInterval, "How often to ask for new content where the bundle may not be watched.")
	flags.IntVar(&o.keep, "keep", 1, "How many contents to keep beside the current one, however old they are.")
	flags.DurationVar(&o.grace, "grace", time.Minute, "How long to keep a content at least after it was replaced.")
	flags.Int64Var(&o.maxBytes, "max-bytes", 0, "How many bytes the content may have, as a tar. 0 is without a bound.")
	flags.BoolVar(&o.direct, "direct", false, "Go straight to the server where that is possible, in place of through kube-apiserver.")
	flags.StringVar(&o.tokenFile, "direct-token-file", "", "The token for the server itself, of the audience rukpak.io. Without one it is that for kube-apiserver.")
	flags.StringVar(&o.address, "direct-address", "", "Where the server's Service is reached, HOST:PORT, in place of by its name: for clusters without DNS.")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "How to reach Kubernetes. Without it KUBECONFIG and ~/.kube/config are looked at, and then it is reached as pods do.")
	flags.StringArrayVar(&o.tellURLs, "notify-url", nil, "A URL to POST to after each change, until it answers with 2xx. May be repeated.")
	flags.StringVar(&o.pidFile, "signal-pid-file", "", "A file with the ID of a process to signal after each change.")
	flags.StringVar(&o.signal, "signal", "HUP", "The signal.")
	logging := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(logging)
	flags.AddGoFlag(logging.Lookup("v"))
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() != 2 {
		return nil, errors.New("the bundle and the folder are to be given; --help says more")
	}
	o.dir = flags.Arg(1)
	return o, o.bundle(flags.Arg(0))
}

// bundle takes the name of the bundle apart.
func (o *options) bundle(text string) error {
	namespace, name, found := strings.Cut(text, "/")
	if !found {
		var err error
		if namespace, _, err = o.config().Namespace(); err != nil {
			return fmt.Errorf("the namespace of bundle %q: %w", text, explained(err))
		}
		name = text
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%q is not [NAMESPACE/]NAME", text)
	}
	o.namespace, o.name = namespace, name
	return nil
}

// listeners are who is told of changes.
func (o *options) listeners() ([]fetch.Listener, error) {
	var all []fetch.Listener
	for _, url := range o.tellURLs {
		all = append(all, fetch.URL(url))
	}
	if o.pidFile != "" {
		sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(o.signal), "SIG"))
		if sig == syscall.Signal(0) {
			return nil, fmt.Errorf("--signal: %q is no signal", o.signal)
		}
		all = append(all, fetch.Process{PIDFile: o.pidFile, Signal: sig})
	}
	return all, nil
}

// config is how Kubernetes is reached: as kubectl does, which without a kubeconfig is as pods do.
func (o *options) config() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
}

// explained says what to do where config found nothing.
func explained(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("this is no pod, and there is no kubeconfig: name one with --kubeconfig or KUBECONFIG")
	}
	return err
}

// client reaches the bundle.
func (o *options) client() (*bundleclient.Client, error) {
	config, err := o.config().ClientConfig()
	if err != nil {
		return nil, explained(err)
	}
	config.UserAgent = "rukpak-fetch"
	opts := bundleclient.Options{PollInterval: o.poll, MaxBackoff: max(o.poll, bundleclient.DefaultMinBackoff)}
	if !o.direct {
		return bundleclient.NewForConfig(config, opts)
	}
	route, err := bundleclient.NewRoute(config, bundleclient.RouteOptions{TokenFile: o.tokenFile, Address: o.address})
	if err != nil {
		return nil, err
	}
	return bundleclient.New(route, opts), nil
}

// run fetches.
func (o *options) run(ctx context.Context) (err error) {
	client, err := o.client()
	if err != nil {
		return err
	}
	listeners, err := o.listeners()
	if err != nil {
		return err
	}
	if o.timeout > 0 && !o.follow {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("no content of bundle %s/%s was in place within %s", o.namespace, o.name, o.timeout))
		defer cancel()
	}
	volume, err := fetch.OpenVolume(ctx, o.dir, fetch.VolumeOptions{Keep: o.keep, Grace: o.grace, Limits: tarball.Limits{Bytes: o.maxBytes}})
	if err != nil {
		return o.ended(ctx, err)
	}
	defer func() { err = errors.Join(err, volume.Close()) }()
	f := &fetch.Fetch{Client: client, Namespace: o.namespace, Name: o.name, Volume: volume, Tell: listeners, LookInterval: o.poll}
	if !o.follow {
		return f.Once(ctx)
	}
	return o.ended(ctx, f.Follow(ctx))
}

// ended is what err comes to: who follows until it is told to end has done so then, whatever it was about to do.
func (o *options) ended(ctx context.Context, err error) error {
	if o.follow && ctx.Err() != nil {
		return nil
	}
	return err
}
