#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Brings up a single-node Kubernetes on this machine: control plane, kubelet,
# containerd and kube-proxy as plain processes, no Docker. To run again is cheap:
# what is built, written or running already is left alone, what has died is
# started, what would be started otherwise than it was is started again.
# down.sh undoes it all. Must be root.
set -euo pipefail
. "$(dirname "$0")/env.sh"
. "$HERE/pki.sh"
. "$HERE/config.sh"

[ "$(id -u)" = 0 ] || die "must be root to run a node"
# sockaddr_un has 108 bytes, one of them for the end; a longer path fails in the
# middle of a program, in words that do not say so.
longest=$CONTAINERD_ADDRESS.ttrpc
[ ${#longest} -lt 108 ] || die "$longest is too long for a unix socket (${#longest} bytes, at most 107): set RUKPAK_CLUSTER_DIR to a shorter path"

# stop NAME: ends a component, and waits until it is gone.
stop() {
  local pid
  pid=$(pid_of "$1") || return 0
  kill "$pid"
  wait_for "stopped $1" 30 eval '! pid_of '"$1"
}

# wait_for_port PORT NAME: until nobody listens on it: a process that has just ended
# may do so for a moment longer.
wait_for_port() {
  local i
  for ((i = 0; i < 20; i++)); do
    [ -n "$(ss -Hltn "sport = :$1")" ] || return 0
    sleep 0.1
  done
  die "something else listens on port $1, which $2 needs"
}

# start NAME PORTS ARGUMENT...: unless it runs already, with these arguments and
# this configuration. PORTS (comma-separated, may be empty) are those it will
# listen on: a stranger on one of them is named here, not in some log.
start() {
  local name=$1 ports=$2 stamp port program
  shift 2
  stamp=$({ printf '%s\n' "$@" && find "$RUN" -maxdepth 1 -name "$name.*" -type f -exec cat {} +; } | sha256sum)
  if pid_of "$name" >/dev/null; then
    [ "$stamp" != "$(cat "$RUN/pid/$name.stamp" 2>/dev/null)" ] || return 0
    stop "$name"
  fi
  for port in ${ports//,/ }; do wait_for_port "$port" "$name"; done
  program=$(program_of "$name")
  setsid "$BIN/$program" "$@" >>"$RUN/log/$name.log" 2>&1 </dev/null 9>&- &
  echo $! >"$RUN/pid/$name"
  echo "$stamp" >"$RUN/pid/$name.stamp"
  say "started $name"
}

# What the kubelet, kube-proxy and we change on the machine is written down
# first, for down.sh.
remember_machine() {
  local setting
  [ -e "$RUN/sysctl.saved" ] || {
    for setting in net.ipv4.ip_forward vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops \
      kernel.keys.root_maxkeys kernel.keys.root_maxbytes; do
      echo "$setting=$(sysctl -n $setting)"
    done >"$RUN/sysctl.tmp"
    mv "$RUN/sysctl.tmp" "$RUN/sysctl.saved"
  }
  [ -e "$RUN/nft.saved" ] || {
    nft list tables >"$RUN/nft.tmp"
    mv "$RUN/nft.tmp" "$RUN/nft.saved"
  }
}

make_bridge() {
  sysctl -qw net.ipv4.ip_forward=1
  ip link show "$BRIDGE" >/dev/null 2>&1 || ip link add "$BRIDGE" type bridge
  [[ $(ip addr show dev "$BRIDGE") == *" $NODE_IP/"* ]] || ip addr add "$NODE_IP/24" dev "$BRIDGE"
  ip link set "$BRIDGE" up
}

start_storage() {
  start registry "${REGISTRY##*:}" registry serve --address $REGISTRY --disk "$RUN/registry"
  # The data are for tests: not worth an fsync.
  start etcd $ETCD_PORT,$ETCD_PEER_PORT --name rukpak --data-dir "$RUN/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:$ETCD_PORT --advertise-client-urls http://127.0.0.1:$ETCD_PORT \
    --listen-peer-urls http://127.0.0.1:$ETCD_PEER_PORT --initial-advertise-peer-urls http://127.0.0.1:$ETCD_PEER_PORT \
    --initial-cluster rukpak=http://127.0.0.1:$ETCD_PEER_PORT
}

start_apiserver() {
  local pki=$RUN/pki
  start kube-apiserver $APISERVER_PORT --etcd-servers=http://127.0.0.1:$ETCD_PORT \
    --bind-address=$NODE_IP --advertise-address=$NODE_IP --secure-port=$APISERVER_PORT \
    --service-cluster-ip-range=$SERVICE_CIDR --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --admission-control-config-file="$RUN/kube-apiserver.admission.yaml" \
    --allow-privileged=true --client-ca-file="$pki/ca.crt" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --kubelet-client-certificate="$pki/apiserver-kubelet-client.crt" --kubelet-client-key="$pki/apiserver-kubelet-client.key" \
    --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$pki/sa.pub" --service-account-signing-key-file="$pki/sa.key" \
    --requestheader-client-ca-file="$pki/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group \
    --requestheader-username-headers=X-Remote-User \
    --proxy-client-cert-file="$pki/front-proxy-client.crt" --proxy-client-key-file="$pki/front-proxy-client.key" \
    --enable-aggregator-routing=true
}

# The controller manager's high rates: at its own 20 a second the default service
# account, without which no pod is admitted, is five seconds late.
start_controllers() {
  local pki=$RUN/pki config
  config=$pki/controller-manager.kubeconfig
  start kube-controller-manager 10257 --kubeconfig="$config" --authentication-kubeconfig="$config" --authorization-kubeconfig="$config" \
    --bind-address=127.0.0.1 --leader-elect=false --kube-api-qps=500 --kube-api-burst=1000 --use-service-account-credentials=true \
    --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" --service-cluster-ip-range=$SERVICE_CIDR
  config=$pki/scheduler.kubeconfig
  start kube-scheduler 10259 --kubeconfig="$config" --authentication-kubeconfig="$config" --authorization-kubeconfig="$config" \
    --bind-address=127.0.0.1 --leader-elect=false
}

start_node() {
  start kubelet 10250,10248 --config="$RUN/kubelet.yaml" --kubeconfig="$RUN/pki/node.kubeconfig" --root-dir="$RUN/kubelet" \
    --cert-dir="$RUN/pki" --hostname-override=$NODE --node-ip=$NODE_IP
  kubectl get clusterrolebinding rukpak-node-proxier >/dev/null 2>&1 ||
    kubectl create clusterrolebinding rukpak-node-proxier --clusterrole=system:node-proxier --user=system:kube-proxy >/dev/null
  start kube-proxy 10249,10256 --config="$RUN/kube-proxy.yaml"
}

# push_image NAME ENTRYPOINT: podtool as an image, unless the registry has it.
# (The registry forgets manifests, not blobs, when it is started again.)
push_image() {
  ! crane digest "$REGISTRY/$1:1" >/dev/null 2>&1 || return 0
  "$ROOT/hack/image/build.sh" "$RUN/image/$1" "$REGISTRY/$1:1" "$2" "$PLATFORM" "$BIN/podtool" >/dev/null
  crane push "$RUN/image/$1" "$REGISTRY/$1:1" >/dev/null 2>>"$RUN/log/images.log" || die "could not push $1: see $RUN/log/images.log"
  say "pushed $REGISTRY/$1:1"
}

node_ready() {
  [ "$(kubectl get node $NODE -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]
}

lock
"$HERE/build.sh"
mkdir -p "$RUN"/{pid,log,registry}
make_pki
write_config
remember_machine
make_bridge
start_storage
start_apiserver
start containerd "" --config "$RUN/containerd.toml"
wait_for "registry answers" 10 curl -fsS "http://$REGISTRY/v2/"
push_image pause '["/podtool","pause"]'
push_image podtool '["/podtool"]'
wait_for "containerd answers" 20 ctr version
wait_for "kube-apiserver is ready" 60 kubectl get --raw /readyz
start_controllers
start_node
wait_for "node is ready" 60 node_ready
wait_for "pods are admitted" 30 kubectl get serviceaccount default
say "up: export KUBECONFIG=$KUBECONFIG PATH=$BIN:\$PATH"
