// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server is the command rukpak-apiserver: from flags to a running server.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json

	"rukpak.io/apiserver/pkg/admission"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/apiserver"
	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/unpack/pod"
	"rukpak.io/apiserver/pkg/unpack/queue"
)

const (
	// etcdPrefix is where the API's objects are.
	etcdPrefix = "/registry/rukpak.io"
	// referencePrefix is where the records of content are: outside of what the API's watch caches see.
	referencePrefix = "/rukpak.io/content"
	// defaultPort is one that control planes of private clusters can reach, since metrics are read there.
	defaultPort = 10250
	// watchTermination is how long the end of the server takes at most to end the watches.
	watchTermination = 10 * time.Second
	// standalonePort is one that no kubelet listens on.
	standalonePort = 6444
)

// Options are the flags of the server.
type Options struct {
	// Recommended are the flags that API servers have in common.
	Recommended *genericoptions.RecommendedOptions
	// ServerRun are the flags of the generic server.
	ServerRun *genericoptions.ServerRunOptions
	// Logs are the flags of logging.
	Logs *logs.Options

	// DataDir holds the embedded etcd, the content, and certificates.
	DataDir string
	// Standalone runs without a cluster.
	Standalone bool
	// ServiceName and Namespace are where the server's Service and Secret are.
	ServiceName, Namespace string
	// APIAudiences are the audiences that tokens may have, beside the API server's own.
	APIAudiences []string
	// Certificates are the flags of the authorities.
	Certificates CertificateOptions
	// Unpack are the flags of the reconciler.
	Unpack UnpackOptions
	// Direct are the flags of how the server itself pulls images.
	Direct DirectOptions
	// Stores are where content is kept, each NAME=URL.
	Stores []string
	// Collect are the flags of the collector.
	Collect CollectOptions
	// Scrub are the flags of the scrubbers.
	Scrub ScrubOptions
	// Space are the flags that bound what is stored.
	Space SpaceOptions
	// AcceptDataLoss is the token of a loss that is accepted.
	AcceptDataLoss string
	// Transfers are the flags of reading content.
	Transfers TransferOptions
	// UploadExpiry is how long an upload in parts is kept that does not go on.
	UploadExpiry time.Duration

	storeURLs storeURLs // from Stores
}

// UnpackOptions are the flags of the reconciler.
type UnpackOptions struct {
	Image       string
	AllowDirect bool
	Workers     int
	Limits      queue.Limits
	BackoffBase time.Duration
	BackoffCap  time.Duration
	BackoffSlow time.Duration
	ImageGrace  time.Duration
	// PullQPS and PullBurst are what a kubelet lets pods pull. A PullQPS of 0 means any number.
	PullQPS, PullBurst int
	// Platform is that of images for bundles and classes that name none.
	Platform string
}

// limits are those of all places. A namespace has half of its own at first: what hangs in a namespace of which nothing is known yet takes
// room on the nodes from all others for as long as a pull that stands.
func (o *UnpackOptions) limits() queue.Limits {
	l := o.Limits
	l.First = max(l.PerNamespace/2, 1)
	return l
}

// CollectOptions are the flags of the collector.
type CollectOptions struct {
	Interval time.Duration
	Grace    time.Duration
}

func init() {
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	recommended := genericoptions.NewRecommendedOptions(etcdPrefix, apiserver.Codecs.LegacyCodec(v1alpha1.SchemeGroupVersion))
	recommended.Etcd.StorageConfig.EncodeVersioner = runtime.NewMultiGroupVersioner(v1alpha1.SchemeGroupVersion, schema.GroupKind{Group: v1alpha1.GroupName})
	// Whether etcd answers is no reason to kill the server, nor to take it out of its Service once it was reached: see checkEtcd.
	recommended.Etcd.SkipHealthEndpoints = true
	// Each bundle that goes waits for etcd, and for the records of its content. With one at a time a thousand of them took longer than the minute
	// that a request has.
	recommended.Etcd.DeleteCollectionWorkers = 4
	// One connection of HTTP/2 would carry all of a kube-apiserver's requests, one behind the other.
	recommended.SecureServing.DisableHTTP2Serving = true
	recommended.SecureServing.BindPort = defaultPort
	run := genericoptions.NewServerRunOptions()
	// Without it the end of the server waits a minute for watches, which never end by themselves.
	run.ShutdownWatchTerminationGracePeriod = watchTermination
	admission.Register(recommended.Admission.Plugins)
	recommended.Admission.RecommendedPluginOrder = admission.Order(recommended.Admission.RecommendedPluginOrder)
	return &Options{
		Recommended:  recommended,
		ServerRun:    run,
		Logs:         logs.NewOptions(),
		DataDir:      "/var/lib/rukpak-apiserver",
		ServiceName:  "rukpak-apiserver",
		Namespace:    defaultNamespace(),
		APIAudiences: []string{"https://kubernetes.default.svc", "https://kubernetes.default.svc.cluster.local"},
		Certificates: newCertificateOptions(),
		Unpack: UnpackOptions{
			Limits:  queue.Limits{Total: 64, PerNamespace: 16, Share: 16},
			PullQPS: 5, PullBurst: 10,
			Workers: 8, BackoffBase: 5 * time.Second, BackoffCap: 5 * time.Minute, BackoffSlow: 30 * time.Minute, ImageGrace: 20 * time.Second,
			Platform: platform.Own().String(),
		},
		Transfers:    defaultTransferOptions(),
		Collect:      CollectOptions{Interval: time.Minute, Grace: 10 * time.Minute},
		UploadExpiry: 24 * time.Hour,
		Scrub:        ScrubOptions{Interval: 7 * 24 * time.Hour, Rate: 8},
		Space:        newSpaceOptions(),
	}
}

func defaultNamespace() string {
	if ns := os.Getenv("POD_NAMESPACE"); ns != "" {
		return ns
	}
	return "rukpak-system"
}

// AddFlags adds all flags, in named sets.
func (o *Options) AddFlags(sets *cliflag.NamedFlagSets) {
	fs := sets.FlagSet("rukpak")
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir, "Folder of the embedded etcd, the content store and the certificates. One server at a time.")
	fs.BoolVar(&o.Standalone, "standalone", o.Standalone, "Run without a cluster: clients log in with the kubeconfig that is written to the data dir, and images are pulled by the server itself.")
	fs.StringVar(&o.ServiceName, "service-name", o.ServiceName, "Name of the Service in front of this server.")
	fs.StringVar(&o.Namespace, "service-namespace", o.Namespace, "Namespace of the Service, and of the Secret that holds the server's own authority. Defaults to POD_NAMESPACE from the environment.")
	fs.StringSliceVar(&o.APIAudiences, "api-audiences", o.APIAudiences, "Audiences that tokens may have when they come straight to this server, beside "+v1alpha1.TokenAudience+": those of the cluster's API server.")

	o.Certificates.addFlags(sets.FlagSet("certificates"))

	fs = sets.FlagSet("unpack")
	fs.StringVar(&o.Unpack.Image, "unpack-image", o.Unpack.Image, "Image of unpack pods: that of this server. Required in a cluster.")
	fs.BoolVar(&o.Unpack.AllowDirect, "allow-direct", o.Unpack.AllowDirect, "Let classes use the mode Direct, in which this server pulls images itself, with no credentials but its own (--direct-registry-config). Always on when standalone.")
	fs.IntVar(&o.Unpack.Limits.Total, "max-unpack-pods", o.Unpack.Limits.Total, "How many unpack pods, and pulls in mode Direct, there are at the same time. Other bundles wait; namespaces take turns.")
	fs.IntVar(&o.Unpack.Limits.PerNamespace, "max-unpack-pods-per-namespace", o.Unpack.Limits.PerNamespace, "How many of them one namespace has at the same time: half as many at first, more as they start, a quarter of them while they hang.")
	fs.IntVar(&o.Unpack.Limits.Share, "max-bundles-per-unpack-pod", o.Unpack.Limits.Share, "How many bundles of a namespace that wait together, and differ in nothing but their images, share an unpack pod. 1 gives each a pod of its own.")
	fs.IntVar(&o.Unpack.PullQPS, "kubelet-registry-pull-qps", o.Unpack.PullQPS, "How many images a kubelet pulls in a second (registryPullQPS of the KubeletConfiguration). Unpack pods are made no faster, since a kubelet refuses what is beyond for ten seconds. 0 means any number.")
	fs.IntVar(&o.Unpack.PullBurst, "kubelet-registry-burst", o.Unpack.PullBurst, "How many images a kubelet pulls in a row before that counts (registryBurst).")
	fs.IntVar(&o.Unpack.Workers, "unpack-workers", o.Unpack.Workers, "How many bundles are worked on at the same time.")
	fs.DurationVar(&o.Unpack.BackoffBase, "unpack-backoff", o.Unpack.BackoffBase, "Pause after the first failed attempt; it doubles with each further one.")
	fs.DurationVar(&o.Unpack.BackoffCap, "unpack-backoff-cap", o.Unpack.BackoffCap, "Longest pause between attempts up to the class's backoffLimit.")
	fs.DurationVar(&o.Unpack.BackoffSlow, "unpack-backoff-slow", o.Unpack.BackoffSlow, "Pause between attempts after the class's backoffLimit.")
	fs.DurationVar(&o.Unpack.ImageGrace, "unpack-image-grace", o.Unpack.ImageGrace, "How long a node may fail to pull an image before the attempt has failed.")

	fs.StringVar(&o.Unpack.Platform, "default-platform", o.Unpack.Platform, "Platform, linux/ARCHITECTURE, of images for bundles that name none and whose class chooses no nodes by architecture. By default that of the server: where its replicas can be on nodes of several architectures, set it.")
	o.Direct.addFlags(fs)

	fs = sets.FlagSet("content")
	fs.StringArrayVar(&o.Stores, "content-store", o.Stores, "A content store, NAME=URL; may be repeated. Classes choose by the name, and by default the one that is called "+v1alpha1.DefaultStore+". URL is file:///PATH for a folder, s3://, gs:// or azblob:// for a bucket, or etcd:?capacity=QUANTITY for the etcd of the API. By default "+v1alpha1.DefaultStore+" is a folder of the data dir.")
	fs.DurationVar(&o.Collect.Interval, "content-gc-interval", o.Collect.Interval, "Pause between two searches for content that nobody refers to.")
	fs.DurationVar(&o.Collect.Grace, "content-gc-grace", o.Collect.Grace, "How long content that nobody refers to is kept. Longer than any transfer.")
	fs.DurationVar(&o.UploadExpiry, "upload-expiry", o.UploadExpiry, "How long an upload in parts is kept that does not go on.")

	o.Scrub.addFlags(fs)
	o.Space.addFlags(fs, sets.FlagSet("etcd"))
	fs.StringVar(&o.AcceptDataLoss, "accept-data-loss", o.AcceptDataLoss, "The token that a refusal to serve names when etcd and the content stores do not fit together: what etcd has is what counts from then on. It is good for that loss alone.")
	o.Transfers.addFlags(sets.FlagSet("transfers"))

	o.Recommended.Etcd.AddFlags(sets.FlagSet("etcd"))
	o.Recommended.SecureServing.AddFlags(sets.FlagSet("secure serving"))
	o.Recommended.Authentication.AddFlags(sets.FlagSet("authentication"))
	o.Recommended.Authorization.AddFlags(sets.FlagSet("authorization"))
	o.Recommended.Audit.AddFlags(sets.FlagSet("auditing"))
	o.Recommended.Features.AddFlags(sets.FlagSet("features"))
	o.Recommended.CoreAPI.AddFlags(sets.FlagSet("core API"))
	o.Recommended.Admission.AddFlags(sets.FlagSet("admission"))
	o.Recommended.Traces.AddFlags(sets.FlagSet("traces"))
	o.ServerRun.AddUniversalFlags(sets.FlagSet("generic"))
	utilfeature.DefaultMutableFeatureGate.AddFlag(sets.FlagSet("features"))
	logsapi.AddFlags(o.Logs, sets.FlagSet("logs"))
}

// Complete fills in what follows from the other flags. changed tells which were given.
func (o *Options) Complete(changed func(string) bool) error {
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	o.DataDir = dir
	if !o.Standalone {
		return nil
	}
	o.Unpack.AllowDirect = true
	if !changed("secure-port") {
		o.Recommended.SecureServing.BindPort = standalonePort
	}
	if !changed("bind-address") {
		o.Recommended.SecureServing.BindAddress = net.IPv4(127, 0, 0, 1)
	}
	// Nobody collects what others own, so a deletion that waits for that would never end.
	o.Recommended.Etcd.EnableGarbageCollection = false
	o.Recommended.CoreAPI = nil
	o.Recommended.Features.EnablePriorityAndFairness = false
	o.Recommended.Authentication.RemoteKubeConfigFileOptional = true
	o.Recommended.Authentication.SkipInClusterLookup = true
	o.Recommended.Authorization.RemoteKubeConfigFileOptional = true
	return nil
}

// Validate returns what is wrong with the flags, all of it.
func (o *Options) Validate() error {
	var errs []error
	if len(o.Recommended.Etcd.StorageConfig.Transport.ServerList) > 0 {
		errs = append(errs, o.Recommended.Etcd.Validate()...)
	}
	errs = append(errs, o.Recommended.SecureServing.Validate()...)
	if o.Recommended.SecureServing.BindPort == 0 && o.Recommended.SecureServing.Listener == nil {
		errs = append(errs, errors.New("--secure-port: 0 serves nothing: name a port from 1 to 65535"))
	}
	errs = append(errs, o.Recommended.Authentication.Validate()...)
	errs = append(errs, o.Recommended.Authorization.Validate()...)
	errs = append(errs, o.Recommended.Audit.Validate()...)
	errs = append(errs, o.Recommended.Features.Validate()...)
	errs = append(errs, o.Recommended.CoreAPI.Validate()...)
	errs = append(errs, o.Recommended.Admission.Validate()...)
	errs = append(errs, o.Recommended.Traces.Validate()...)
	errs = append(errs, o.ServerRun.Validate()...)
	errs = append(errs, o.Certificates.validate(o.Recommended.SecureServing.ServerCert.CertKey.CertFile))
	if !o.Standalone && o.Unpack.Image == "" {
		errs = append(errs, errors.New("--unpack-image is required, unless --standalone"))
	}
	if o.Unpack.Workers < 1 {
		errs = append(errs, fmt.Errorf("--unpack-workers: %d is less than 1", o.Unpack.Workers))
	}
	for flag, n := range map[string]int{
		"max-unpack-pods": o.Unpack.Limits.Total, "max-unpack-pods-per-namespace": o.Unpack.Limits.PerNamespace,
		"max-bundles-per-unpack-pod": o.Unpack.Limits.Share, "kubelet-registry-burst": o.Unpack.PullBurst,
	} {
		if n < 1 {
			errs = append(errs, fmt.Errorf("--%s: %d is less than 1", flag, n))
		}
	}
	if n := o.Unpack.Limits.Share; n > pod.MaxMembers {
		errs = append(errs, fmt.Errorf("--max-bundles-per-unpack-pod: %d is more than %d", n, pod.MaxMembers))
	}
	if o.Unpack.PullQPS < 0 {
		errs = append(errs, fmt.Errorf("--kubelet-registry-pull-qps: %d is negative", o.Unpack.PullQPS))
	}
	for flag, d := range map[string]time.Duration{
		"unpack-backoff": o.Unpack.BackoffBase, "unpack-backoff-cap": o.Unpack.BackoffCap, "unpack-backoff-slow": o.Unpack.BackoffSlow,
		"content-gc-interval": o.Collect.Interval, "content-gc-grace": o.Collect.Grace, "upload-expiry": o.UploadExpiry,
	} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("--%s: %v is not positive", flag, d))
		}
	}
	if err := validatePlatform(o.Unpack.Platform); err != nil {
		errs = append(errs, err)
	}
	if err := o.Direct.validate(); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, o.Scrub.validate()...)
	errs = append(errs, o.Space.validate()...)
	errs = append(errs, o.Transfers.validate()...)
	stores, err := parseStores(o.Stores, o.DataDir)
	if err != nil {
		errs = append(errs, err)
	}
	o.storeURLs = stores
	return utilerrors.NewAggregate(errs)
}

// NewCommand returns the command. It ends when ctx does.
func NewCommand(ctx context.Context) *cobra.Command {
	o := NewOptions()
	cmd := &cobra.Command{
		Use:          apiserver.Name,
		Short:        "Serve the API group rukpak.io: bundles of content, read through the Kubernetes API",
		Version:      version,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.ServerRun.ComponentGlobalsRegistry.Set(); err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(o.Logs, utilfeature.DefaultFeatureGate); err != nil {
				return err
			}
			if err := o.Complete(cmd.Flags().Changed); err != nil {
				return err
			}
			if err := o.Validate(); err != nil {
				return err
			}
			return o.Run(cmd.Context())
		},
	}
	cmd.SetContext(ctx)
	var sets cliflag.NamedFlagSets
	o.AddFlags(&sets)
	for _, fs := range sets.FlagSets {
		cmd.Flags().AddFlagSet(fs)
	}
	cmd.Flags().SetNormalizeFunc(func(fs *pflag.FlagSet, name string) pflag.NormalizedName {
		return cliflag.WordSepNormalizeFunc(fs, name)
	})
	cliflag.SetUsageAndHelpFunc(cmd, sets, 0)
	return cmd
}
