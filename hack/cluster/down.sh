#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Stops the cluster that up.sh started and undoes what it changed on the machine.
# Its data go too; programs and Debian packages stay. Safe to run again, and when
# nothing is up.
set -uo pipefail
. "$(dirname "$0")/env.sh"

[ "$(id -u)" = 0 ] || die "must be root"
lock
[ -d "$RUN" ] || { say "down: nothing was up"; exit 0; }

# stop NAME...: all at once, then waits for all; what does not go is killed.
stop() {
  local name pid left
  for name in "$@"; do pid=$(pid_of "$name") && kill "$pid"; done
  for _ in {1..150}; do
    left=()
    for name in "$@"; do pid=$(pid_of "$name") && left+=("$pid"); done
    [ ${#left[@]} -gt 0 ] || break
    sleep 0.1
  done
  [ ${#left[@]} -eq 0 ] || { say "had to kill ${left[*]}"; kill -9 "${left[@]}"; }
}

remove_pods() {
  [ -S "$CONTAINERD_ADDRESS" ] && pid_of containerd >/dev/null || return 0
  timeout 100 remove-pods "$CONTAINERD_ADDRESS"
}

# A shim whose pod could not be removed: known by its program and our socket.
kill_shims() {
  local process
  for process in /proc/[0-9]*; do
    tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep -q "^$BIN/containerd-shim-runc-v2 .*$CONTAINERD_ADDRESS" && kill -9 "${process#/proc/}"
  done
}

mounts_below_run() { awk -v run="$RUN/" 'index($5, run) == 1 {print $5}' /proc/self/mountinfo; }

unmount() {
  local mount
  mounts_below_run | sort -r | while read -r mount; do umount -l "$mount"; done
}

# What kube-proxy, the kubelet and the CNI plugins put into netfilter, and the
# empty base tables of iptables that were not there before.
clean_netfilter() {
  local family table iptables
  [ -e "$RUN/nft.saved" ] || return 0
  for family in ip ip6; do nft delete table $family kube-proxy 2>/dev/null; done
  for iptables in iptables ip6tables; do
    for table in nat filter mangle; do
      $iptables-save -t $table 2>/dev/null | grep -Eq 'KUBE-|CNI-' || continue
      $iptables-save -t $table | grep -Ev 'KUBE-|CNI-' | $iptables-restore
    done
  done
  nft list tables | grep -vxFf "$RUN/nft.saved" | while read -r _ family table; do
    nft list table "$family" "$table" | grep -Eqv '^(table|[[:space:]]*chain|[[:space:]]*type|[[:space:]]*}|[[:space:]]*$|#)' ||
      nft delete table "$family" "$table"
  done
  rm "$RUN/nft.saved"
}

restore_settings() {
  local setting
  [ -e "$RUN/sysctl.saved" ] || return 0
  while read -r setting; do sysctl -qw "$setting"; done <"$RUN/sysctl.saved"
  rm "$RUN/sysctl.saved"
}

# Folders whose names are fixed in Kubernetes and containerd, as far as nothing
# else is in them.
remove_fixed_folders() {
  local cgroup
  for cgroup in /sys/fs/cgroup/kubepods /sys/fs/cgroup/*/kubepods; do
    [ -d "$cgroup" ] && find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null
  done
  find /run/kubelet /var/lib/kubelet/device-plugins -type s -delete 2>/dev/null
  find /var/log/containers -lname "$RUN/*" -delete 2>/dev/null
  rm -f /var/lib/kubelet/device-plugins/DEPRECATION /var/lib/cni/results/rukpak-*
  rmdir /var/log/containers /var/log/pods /run/kubelet/* /run/kubelet /var/lib/kubelet/device-plugins /var/lib/kubelet \
    /var/lib/cni/results /var/lib/cni/cache /var/lib/cni /run/containerd/s /run/containerd /run/netns 2>/dev/null
}

stop kubelet # first, or it would make the pods again
remove_pods || say "some pods could not be removed in order; going on"
stop kube-proxy kube-scheduler kube-controller-manager kube-apiserver containerd registry
stop etcd
kill_shims
unmount
clean_netfilter
ip link del "$BRIDGE" 2>/dev/null
restore_settings
remove_fixed_folders
[ -z "$(mounts_below_run)" ] || die "mounts are left below $RUN: not removing it"
rm -rf "$RUN" || die "could not remove $RUN"
say "down"
