#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Proves that the cluster which up.sh brought up has what our tests take for
# granted of a node: pulls, image volumes, logs, exec, the pod network, projected
# tokens, restricted pods, memory limits, quick restarts. Prints one line each.
set -uo pipefail
. "$(dirname "$0")/env.sh"

NAMESPACE=cluster-check
failed=0
kubectl() { command kubectl --namespace "$NAMESPACE" "$@"; }

# check WHAT COMMAND...
check() {
  local what=$1 output
  shift
  if output=$("$@" 2>&1); then
    say "ok    $what"
  else
    failed=$((failed + 1))
    say "FAIL  $what: $output"
  fi
}

# pod NAME ARGUMENTS [VOLUMES MOUNTS]: a podtool pod that keeps every rule of the
# restricted Pod Security Standard. The latter three are JSON lists.
pod() {
  kubectl create -f - <<-END
	apiVersion: v1
	kind: Pod
	metadata: {name: $1}
	spec:
	  restartPolicy: ${RESTART:-Never}
	  dnsPolicy: Default
	  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
	  volumes: ${3:-[]}
	  containers:
	  - name: podtool
	    image: $REGISTRY/podtool:1
	    imagePullPolicy: Always
	    args: $2
	    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
	    resources: {requests: {memory: 16Mi}, limits: {memory: 64Mi}}
	    volumeMounts: ${4:-[]}
	END
}

# succeeds NAME WORD ARGUMENTS...: a pod (see above) ends well, its log has WORD.
succeeds() {
  local name=$1 word=$2
  shift 2
  pod "$name" "$@" &&
    kubectl wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=40s "pod/$name" >/dev/null &&
    kubectl logs "$name" | grep -F -- "$word" && return
  kubectl logs "$name"
  kubectl get events --field-selector "involvedObject.name=$name" -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}'
  return 1
}

# An image that holds files only: no program, and no user to run one.
push_files() {
  local work
  work=$(mktemp -d) && mkdir "$work/sub" && echo one >"$work/a.yaml" && echo two >"$work/sub/b.yaml" &&
    tar -C "$work" --owner=0 --group=0 -cf "$work.tar" . &&
    crane append --oci-empty-base -f "$work.tar" -t "$REGISTRY/cluster-check:1"
  local result=$?
  rm -rf "$work" "$work.tar"
  return $result
}

not_writable() {
  pod volume-write '[write, /data/x]' "$VOLUME" '[{name: v, mountPath: /data}]' &&
    kubectl wait --for=jsonpath='{.status.phase}'=Failed --timeout=40s pod/volume-write >/dev/null &&
    kubectl logs volume-write | grep -F "read-only file system"
}

execs() {
  kubectl wait --for=condition=Ready --timeout=40s pod/pause >/dev/null &&
    [ "$(kubectl exec pause -- /podtool echo from inside)" = "from inside" ]
}

# restarted N: the pod has been started again N times.
restarted() { [ "$(kubectl get pod restart -o 'jsonpath={.status.containerStatuses[0].restartCount}')" -ge "$1" ]; }
restarts_quickly() {
  RESTART=Always pod restart '[write, /]' && (wait_for "four restarts" 30 restarted 4)
}

VOLUME="[{name: v, image: {reference: '$REGISTRY/cluster-check:1', pullPolicy: Always}}]"
TOKEN='[{name: t, projected: {sources: [{serviceAccountToken: {path: token, audience: "https://kubernetes.default.svc", expirationSeconds: 600}}]}}]'
DISCOVERED=/apis/apps/v1 # which any identity may read, but nobody without one

trap 'command kubectl delete namespace $NAMESPACE --ignore-not-found --wait=false >/dev/null' EXIT
command kubectl delete namespace $NAMESPACE --ignore-not-found >/dev/null
command kubectl create namespace $NAMESPACE >/dev/null || exit 1
kubectl label namespace $NAMESPACE pod-security.kubernetes.io/enforce=restricted >/dev/null
wait_for "service account" 30 kubectl get serviceaccount default

check "a pod's image is pulled, it runs, and its log is read" succeeds echo "hello" '[echo, hello]'
check "an image of files only is pushed" push_files
check "it mounts as a volume" succeeds volume "/data/sub/b.yaml" '[cat, /data]' "$VOLUME" '[{name: v, mountPath: /data}]'
check "a path of it mounts" succeeds volume-path "/data/b.yaml" '[cat, /data]' "$VOLUME" '[{name: v, mountPath: /data, subPath: sub}]'
check "that volume is read-only" not_writable
check "a pod reaches the Kubernetes API with its own token" succeeds api apps "[get, $DISCOVERED]"
check "a projected token is good there too" succeeds token apps "[get, $DISCOVERED, /t/token]" "$TOKEN" '[{name: t, mountPath: /t}]'
check "a long-running pod starts" pod pause '[pause]'
check "exec works" execs
check "a container that fails starts again within seconds" restarts_quickly

[ $failed = 0 ] || die "$failed checks failed"
say "all checks passed"
