#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Deploys our image (_output/image/rukpak-apiserver, by `make image`) to the cluster
# that up.sh brought up, and waits until its API is there. It is deployed by digest:
# to run again with a new image rolls the server, with the same one changes nothing.
#
#   deploy.sh       one replica with a volume (artifacts/deploy/local)
#   deploy.sh ha    three replicas and three members of etcd (artifacts/deploy/local-ha)
#
# What the other of the two has deployed is taken away first, data and all.
set -euo pipefail
. "$(dirname "$0")/env.sh"

case ${1:-single} in
single) source=local workload=statefulset/rukpak-apiserver other=deployment/rukpak-apiserver ;;
ha) source=local-ha workload=deployment/rukpak-apiserver other=statefulset/rukpak-apiserver ;;
*) die "usage: deploy.sh [ha]" ;;
esac
layout=$ROOT/_output/image/rukpak-apiserver
overlay=$RUN/deploy
volumes=$RUN/volumes
api=v1alpha1.rukpak.io

# failed: what the cluster has to say, and the end.
failed() {
  {
    kubectl -n rukpak-system get pods -o wide
    kubectl -n rukpak-system get events --sort-by=.lastTimestamp | tail -n 10
    kubectl -n rukpak-system logs "$workload" --tail=30
    kubectl get apiservice $api -o 'jsonpath={range .status.conditions[*]}{.type}: {.reason}: {.message}{"\n"}{end}'
  } >&2
  die "$1"
}

# push NAME LAYOUT: pushes an image, and prints its entry in a kustomization.
push() {
  local pushed
  pushed=$(crane push "$2" "$REGISTRY/${1##*/}:latest" 2>"$RUN/log/push.log") || die "could not push the image: see $RUN/log/push.log"
  printf -- '- {name: %s, newName: %s, digest: "%s"}\n' "$1" "$REGISTRY/${1##*/}" "${pushed##*@}"
}

# volume NAME FOLDER: makes the folder of a PersistentVolume, and prints the patch that says where it is.
volume() {
  install -d -m 0700 -o 65532 -g 65532 "$volumes/$2"
  cat <<-END
	- patch: |-
	    {apiVersion: v1, kind: PersistentVolume, metadata: {name: $1}, spec: {hostPath: {path: "$volumes/$2"}}}
	END
}

[ -e "$layout/index.json" ] || die "no image in $layout: run make image"
! kubectl -n rukpak-system get "$other" >/dev/null 2>&1 || "$HERE/undeploy.sh"
images=$(push rukpak-apiserver "$layout")
if [ $source = local-ha ]; then
  # It is large: half a minute where nothing has changed.
  [ "$RUN/image/etcd.tar" -nt "$BIN/etcd" ] || "$ROOT/hack/image/build.sh" "$RUN/image/etcd" etcd:latest '["/etcd"]' "$PLATFORM" "$BIN/etcd" >/dev/null
  images+=$'\n'$(push registry.k8s.io/etcd "$RUN/image/etcd")
  # A Job cannot be changed, and one that has ended stays for a minute.
  kubectl -n rukpak-system delete job rukpak-etcd-certs --ignore-not-found >/dev/null
  patches=$(for i in 0 1 2; do volume rukpak-etcd-$i rukpak-etcd-$i; done)
else
  patches=$(volume rukpak-apiserver-data rukpak-apiserver)
fi
say "pushed the images"

mkdir -p "$overlay"
cat >"$overlay/kustomization.yaml" <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- $(realpath --relative-to="$overlay" "$ROOT/artifacts/deploy/$source")
images:
$images
patches:
$patches
END
kubectl apply -k "$overlay" >"$RUN/log/apply.log" || die "could not apply $overlay: see $RUN/log/apply.log"
say "applied"
kubectl -n rukpak-system rollout status "$workload" --timeout=240s >/dev/null || failed "the server does not get ready"
say "the server is ready"
kubectl wait --for=condition=Available --timeout=60s apiservice/$api >/dev/null || failed "the API is not available"
# Available can be the word of a moment ago, when the server was another one.
wait_for "its API answers" 60 kubectl get --raw /apis/rukpak.io/v1alpha1

cat <<END

The cluster is up and serves rukpak.io/v1alpha1. To try it:

export KUBECONFIG=$KUBECONFIG PATH=$BIN:\$PATH
kubectl api-resources --api-group=rukpak.io
kubectl get provisionerclasses

# an image of a manifest, as a Bundle
mkdir -p /tmp/first/manifests && kubectl create configmap hello --from-literal=to=you --dry-run=client -o yaml >/tmp/first/manifests/hello.yaml
tar -C /tmp/first -cf /tmp/first.tar . && crane append --oci-empty-base -f /tmp/first.tar -t $REGISTRY/first:1
kubectl apply -f - <<EOF
{apiVersion: rukpak.io/v1alpha1, kind: Bundle, metadata: {name: first, namespace: default},
 spec: {provisionerClassName: plain, source: {type: Image, image: {reference: "$REGISTRY/first@\$(crane digest $REGISTRY/first:1)"}}}}
EOF
kubectl wait --for=condition=Ready bundle/first
kubectl get --raw /apis/rukpak.io/v1alpha1/namespaces/default/bundles/first/content | tar tz

make cluster-down takes it all away.
END
