# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=bash
# Configuration files of the cluster's programs. To be sourced; write_config
# writes those that would change.

# put FILE: standard input becomes its content; a file that has it already is
# not touched, for kube-proxy exits when its file is.
put() {
  local content
  content=$(cat)
  [ -e "$1" ] && [ "$(cat "$1")" = "$content" ] || printf '%s\n' "$content" >"$1"
}

# Where it is not plain containerd: all its state is below $RUN, hence imports
# and opt too; registries on loopback are spoken to by http, for config_path is
# an empty folder; restrict_oom_score_adj is for machines whose root may not
# lower a score (containers, some virtual machines), where no pod would start.
containerd_config() {
  put "$RUN/containerd.toml" <<-END
	version = 4
	root = "$RUN/containerd/root"
	state = "$RUN/containerd/state"
	imports = []
	disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
	[plugins.'io.containerd.server.v1.grpc']
	  address = "$CONTAINERD_ADDRESS"
	[plugins.'io.containerd.server.v1.ttrpc']
	  address = "$CONTAINERD_ADDRESS.ttrpc"
	[plugins.'io.containerd.internal.v1.opt']
	  path = "$RUN/containerd/opt"
	[plugins.'io.containerd.cri.v1.images']
	  snapshotter = "overlayfs"
	  [plugins.'io.containerd.cri.v1.images'.pinned_images]
	    sandbox = "$REGISTRY/pause:1"
	  [plugins.'io.containerd.cri.v1.images'.registry]
	    config_path = "$RUN/containerd/certs.d"
	[plugins.'io.containerd.cri.v1.runtime']
	  restrict_oom_score_adj = true
	  netns_mounts_under_state_dir = true
	  ignore_deprecation_warnings = ["io.containerd.deprecation/cgroup-v1"]
	  [plugins.'io.containerd.cri.v1.runtime'.cni]
	    bin_dirs = ["$BIN/cni"]
	    conf_dir = "$RUN/cni"
	  [plugins.'io.containerd.cri.v1.runtime'.containerd]
	    default_runtime_name = "runc"
	    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
	      runtime_type = "io.containerd.runc.v2"
	      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
	        BinaryName = "$BIN/runc"
	        SystemdCgroup = false
	        Root = "$RUN/runc"
	END
}

cni_config() {
  put "$RUN/cni/10-rukpak.conflist" <<-END
	{"cniVersion": "1.0.0", "name": "rukpak", "plugins": [
	  {"type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "ipMasq": true, "hairpinMode": true,
	   "ipam": {"type": "host-local", "dataDir": "$RUN/cni-ipam", "routes": [{"dst": "0.0.0.0/0"}],
	            "ranges": [[{"subnet": "$POD_CIDR", "gateway": "$NODE_IP"}]]}},
	  {"type": "portmap", "capabilities": {"portMappings": true}}]}
	END
}

# The priority classes of the system take a quota of the namespace, as on GKE.
admission_config() {
  put "$RUN/kube-apiserver.admission.yaml" <<-END
	apiVersion: apiserver.config.k8s.io/v1
	kind: AdmissionConfiguration
	plugins:
	- name: ResourceQuota
	  configuration:
	    apiVersion: apiserver.config.k8s.io/v1
	    kind: ResourceQuotaConfiguration
	    limitedResources:
	    - resource: pods
	      matchScopes:
	      - {scopeName: PriorityClass, operator: In, values: [system-cluster-critical, system-node-critical]}
	END
}

# A container that was killed starts again after a second at most, so that tests
# can kill the server often. Images are pulled beside one another, so that a registry which
# a test lets hang holds up nobody else. cgroup v1 is allowed where the machine has no v2.
kubelet_config() {
  put "$RUN/kubelet.yaml" <<-END
	apiVersion: kubelet.config.k8s.io/v1beta1
	kind: KubeletConfiguration
	address: $NODE_IP
	tlsCertFile: $RUN/pki/kubelet-serving.crt
	tlsPrivateKeyFile: $RUN/pki/kubelet-serving.key
	authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $RUN/pki/ca.crt}}
	authorization: {mode: Webhook}
	containerRuntimeEndpoint: unix://$CONTAINERD_ADDRESS
	cgroupDriver: cgroupfs
	failCgroupV1: false
	failSwapOn: false
	podLogsDir: $RUN/pod-logs
	volumePluginDir: $RUN/kubelet-plugins
	resolvConf: /etc/resolv.conf
	evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
	imageGCHighThresholdPercent: 99
	imageGCLowThresholdPercent: 98
	syncFrequency: 10s
	serializeImagePulls: false
	crashLoopBackOff: {maxContainerRestartPeriod: 1s}
	END
}

proxy_config() {
  put "$RUN/kube-proxy.yaml" <<-END
	apiVersion: kubeproxy.config.k8s.io/v1alpha1
	kind: KubeProxyConfiguration
	mode: nftables
	hostnameOverride: $NODE
	clusterCIDR: $POD_CIDR
	clientConnection: {kubeconfig: $RUN/pki/proxy.kubeconfig}
	healthzBindAddress: 127.0.0.1:10256
	metricsBindAddress: 127.0.0.1:10249
	conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
	END
}

write_config() {
  mkdir -p "$RUN"/{cni,containerd/certs.d}
  containerd_config
  cni_config
  admission_config
  kubelet_config
  proxy_config
}
