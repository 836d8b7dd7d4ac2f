#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Builds the programs of the local cluster from Go modules into _output/bin.
# What is there already, and newer than its sources, is left alone.
#
#   build.sh kube   kube-apiserver, etcd, kubectl and crane: what the
#                   integration tests need. Any user may do it.
#   build.sh        those of a node too (containerd, runc, CNI plugins), and the
#                   Debian packages that building and running them takes: root.
set -euo pipefail
. "$(dirname "$0")/env.sh"

# build NAME MODULE PACKAGE [LDFLAGS [TAGS [CGO_ENABLED]]]
build() {
  [ ! -x "$BIN/$1" ] || [ -n "$(find "$HERE/tools/$2" -type f -newer "$BIN/$1")" ] || return 0
  say "building $1"
  (cd "$HERE/tools/$2" && CGO_ENABLED=${6:-0} go build -ldflags "-s -w ${4:-}" -tags "${5:-}" -o "$BIN/$1" "$3")
  touch "$BIN/$1" # go leaves alone what it would write the same
}

kube_ldflags() {
  local package
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf ' -X %s.gitVersion=%s' "$package" "$KUBE_VERSION"
    printf ' -X %s.gitMajor=1 -X %s.gitMinor=37 -X %s.gitTreeState=clean' "$package" "$package" "$package"
  done
}

build_kube() {
  local name
  build kube-allinone allinone . "$(kube_ldflags)"
  for name in etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet remove-pods; do
    ln -sfn kube-allinone "$BIN/$name"
  done
  build crane node github.com/google/go-containerregistry/cmd/crane
}

build_node() {
  local containerd=github.com/containerd/containerd/v2 cni=github.com/containernetworking/plugins/plugins
  local version="-X $containerd/version.Version=$CONTAINERD_VERSION" plugin
  build podtool podtool .
  # The three snapshotters left out want C headers; overlayfs is all we use.
  build containerd node $containerd/cmd/containerd "$version" "no_btrfs no_devmapper no_zfs"
  build containerd-shim-runc-v2 node $containerd/cmd/containerd-shim-runc-v2 "$version"
  build ctr node $containerd/cmd/ctr "$version"
  build runc node github.com/opencontainers/runc "-X main.version=$RUNC_VERSION" seccomp 1
  for plugin in main/bridge main/loopback ipam/host-local meta/portmap; do
    build "cni/${plugin##*/}" node "$cni/$plugin"
  done
}

install_packages() {
  local missing=() program package
  while read -r program package; do
    command -v "$program" >/dev/null || missing+=("$package")
  done <<-END
	conntrack conntrack
	curl curl
	gcc gcc
	ip iproute2
	iptables iptables
	nft nftables
	openssl openssl
	pkg-config pkg-config
	ss iproute2
	sysctl procps
	END
  [ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
  [ -e /usr/include/seccomp.h ] || missing+=(libseccomp-dev)
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}"
  local install=(apt-get install -y -qq --no-install-recommends "${missing[@]}")
  export DEBIAN_FRONTEND=noninteractive
  "${install[@]}" >/dev/null 2>&1 || { apt-get update -qq && "${install[@]}" >/dev/null; }
}

command -v go >/dev/null || die "Go is not installed: see https://go.dev/doc/install"
mkdir -p "$BIN"
case ${1:-all} in
kube) build_kube ;;
all)
  [ "$(id -u)" = 0 ] || die "must be root to install packages and to run a node"
  install_packages
  build_kube
  build_node
  ;;
*) die "usage: build.sh [kube]" ;;
esac
