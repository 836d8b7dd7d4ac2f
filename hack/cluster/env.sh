# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=bash disable=SC2034
# What the scripts of this folder share: paths, versions, addresses. To be
# sourced. Everything that is written stands below _output, or where
# RUKPAK_CLUSTER_DIR says.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
HERE=$ROOT/hack/cluster
BIN=$ROOT/_output/bin
RUN=$(realpath -m "${RUKPAK_CLUSTER_DIR:-$ROOT/_output/cluster}") # all that the running cluster writes

KUBE_VERSION=v1.37.2
CONTAINERD_VERSION=v2.4.2
RUNC_VERSION=1.5.3

# The node's address is that of the bridge that its pods hang on: always the
# same, so that certificates last, and never loopback, which kube-apiserver
# refuses to advertise.
NODE=rukpak-node
BRIDGE=rukpak0
NODE_IP=10.244.0.1
POD_CIDR=10.244.0.0/24
SERVICE_CIDR=10.96.0.0/16
KUBERNETES_IP=10.96.0.1
APISERVER_PORT=6443
ETCD_PORT=2379
ETCD_PEER_PORT=2380
REGISTRY=127.0.0.1:5000

export KUBECONFIG=$RUN/kubeconfig
export CONTAINERD_ADDRESS=$RUN/containerd.sock CONTAINERD_NAMESPACE=k8s.io # for ctr
export PATH=$BIN:/usr/local/go/bin:$PATH
PLATFORM=linux/$(go env GOARCH) # of this machine
# The same as in the Makefile, so that both fill one build cache.
export GOFLAGS='-buildvcs=false -trimpath'

STARTED=$(date +%s%N)

# say WORD...: a line of progress, with the seconds since the script began.
say() {
  local ms=$((($(date +%s%N) - STARTED) / 1000000))
  printf '[%3d.%d s] %s\n' $((ms / 1000)) $((ms % 1000 / 100)) "$*"
}

# die WORD...: the end, with the reason.
die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# wait_for WHAT SECONDS COMMAND...: until the command succeeds, or die.
wait_for() {
  local what=$1 tries=$(($2 * 10)) i
  shift 2
  for ((i = 0; i < tries; i++)); do
    if "$@" >/dev/null 2>&1; then
      say "$what"
      return
    fi
    sleep 0.1
  done
  die "waited $((tries / 10)) s in vain for: $what"
}

# pid_of NAME: the process of a component, if it is still the one that up.sh
# started: a number alone may by now belong to somebody else.
pid_of() {
  local pid argv0
  pid=$(cat "$RUN/pid/$1" 2>/dev/null) && [ -n "$pid" ] || return 1
  read -r -d '' argv0 2>/dev/null <"/proc/$pid/cmdline" || return 1
  [ "$argv0" = "$BIN/$(program_of "$1")" ] && echo "$pid"
}

# lock: one script at a time brings the cluster up or down; the others wait.
# Descriptor 9 must be closed in whatever lives on.
lock() {
  mkdir -p "$ROOT/_output"
  exec 9>"$ROOT/_output/cluster.lock"
  flock 9
}

# program_of NAME: the program that a component is.
program_of() {
  case $1 in
  registry) echo crane ;;
  *) echo "$1" ;;
  esac
}
