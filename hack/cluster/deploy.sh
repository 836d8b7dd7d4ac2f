#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Deploys our image (_output/image/rukpak-apiserver, by `make image`) to the cluster
# that up.sh brought up, and waits until its API is there. It is deployed by digest:
# to run again with a new image rolls the server, with the same one changes nothing.
set -euo pipefail
. "$(dirname "$0")/env.sh"

layout=$ROOT/_output/image/rukpak-apiserver
repository=$REGISTRY/rukpak-apiserver
overlay=$RUN/deploy
volume=$RUN/volumes/rukpak-apiserver
api=v1alpha1.rukpak.io

# failed: what the cluster has to say, and the end.
failed() {
  {
    kubectl -n rukpak-system get pods -o wide
    kubectl -n rukpak-system get events --sort-by=.lastTimestamp | tail -n 10
    kubectl -n rukpak-system logs statefulset/rukpak-apiserver --tail=30
    kubectl get apiservice $api -o 'jsonpath={range .status.conditions[*]}{.type}: {.reason}: {.message}{"\n"}{end}'
  } >&2
  die "$1"
}

[ -e "$layout/index.json" ] || die "no image in $layout: run make image"
pushed=$(crane push "$layout" "$repository:latest" 2>"$RUN/log/push.log") || die "could not push the image: see $RUN/log/push.log"
digest=${pushed##*@}
say "pushed $repository@$digest"

install -d -m 0700 -o 65532 -g 65532 "$volume"
mkdir -p "$overlay"
cat >"$overlay/kustomization.yaml" <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- $(realpath --relative-to="$overlay" "$ROOT/artifacts/deploy/local")
images:
- name: rukpak-apiserver
  newName: $repository
  digest: $digest
patches:
- patch: |-
    apiVersion: v1
    kind: PersistentVolume
    metadata:
      name: rukpak-apiserver-data
    spec:
      hostPath:
        path: $volume
END
kubectl apply -k "$overlay" >"$RUN/log/apply.log" || die "could not apply $overlay: see $RUN/log/apply.log"
say "applied"
kubectl -n rukpak-system rollout status statefulset/rukpak-apiserver --timeout=150s >/dev/null || failed "the server does not get ready"
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
  mkdir -p /tmp/app/manifests && kubectl create configmap hello --from-literal=to=you --dry-run=client -o yaml >/tmp/app/manifests/hello.yaml
  tar -C /tmp/app -cf /tmp/app.tar . && crane append --oci-empty-base -f /tmp/app.tar -t $REGISTRY/app:1
  kubectl apply -f - <<EOF
  {apiVersion: rukpak.io/v1alpha1, kind: Bundle, metadata: {name: app, namespace: default},
   spec: {provisionerClassName: plain, source: {type: Image, image: {reference: "$REGISTRY/app@\$(crane digest $REGISTRY/app:1)"}}}}
  EOF
  kubectl wait --for=condition=Ready bundle/app
  kubectl get --raw /apis/rukpak.io/v1alpha1/namespaces/default/bundles/app/content | tar tz

make cluster-down takes it all away.
END
