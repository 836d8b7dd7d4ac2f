#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Takes rukpak-apiserver out of the cluster that kubectl is set to, with all bundles and
# their content.
#
#   uninstall.sh [--export DIR] [OVERLAY]
#
# OVERLAY is the kustomization that was applied; the folder of this script if it is not
# named. --export first writes all classes and bundles, and the content of each, to DIR,
# and goes no further if something of that fails.
set -euo pipefail

api=v1alpha1.rukpak.io
ours=rukpak-system/rukpak-apiserver

die() {
  echo "uninstall: $*" >&2
  exit 1
}

# objects RESOURCE...: as they can be created again. As a list of this API's group, which a server that
# stands alone knows as well.
objects() {
  kubectl get "$@" -o yaml | sed '1s|^apiVersion: v1$|apiVersion: rukpak.io/v1alpha1|' | grep -vE '^    (uid|resourceVersion|creationTimestamp|generation): '
}

export_all() {
  local dir=$1 namespace name digest file all
  mkdir -p "$dir"
  objects provisionerclasses.rukpak.io >"$dir/classes.yaml"
  objects bundles.rukpak.io --all-namespaces >"$dir/bundles.yaml"
  # Not in a process substitution, whose failure nobody would see.
  all=$(kubectl get bundles.rukpak.io --all-namespaces \
    -o 'jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name} {.status.content.digest}{"\n"}{end}')
  while read -r namespace name digest; do
    [ -n "$digest" ] || continue
    mkdir -p "$dir/$namespace"
    file=$dir/$namespace/$name.tar.gz
    # Below watch/, where kube-apiserver does not end it after a minute.
    kubectl get --raw "/apis/rukpak.io/v1alpha1/watch/namespaces/$namespace/bundles/$name/content" >"$file"
    [ "sha256:$(sha256sum <"$file" | cut -d' ' -f1)" = "$digest" ] ||
      die "the content of bundle $namespace/$name is not $digest: nothing was taken away"
  done <<<"$all"
}

export_to=
if [ "${1:-}" = --export ]; then
  export_to=${2:?--export needs a folder}
  shift 2
fi
overlay=${1:-$(dirname "$0")}
[ -e "$overlay/kustomization.yaml" ] || die "$overlay is no kustomization"

owner=$(kubectl get apiservice "$api" --ignore-not-found -o 'jsonpath={.spec.service.namespace}/{.spec.service.name}')
case $owner in
"" | "$ours") ;;
/) die "APIService $api has no service: kube-apiserver serves the API itself, from a CustomResourceDefinition. Leaving everything alone" ;;
*) die "APIService $api belongs to $owner, not to $ours. Leaving everything alone" ;;
esac

[ -z "$export_to" ] || export_all "$export_to"

# First. While it points at a server that is gone, the deletion of every namespace of the
# cluster waits for it, that of rukpak-system too.
kubectl delete apiservice "$api" --ignore-not-found
kubectl delete -k "$overlay" --ignore-not-found
# Their owners cannot be asked for any more, so nobody else takes them away.
kubectl delete pods --all-namespaces --ignore-not-found -l app.kubernetes.io/managed-by=rukpak-apiserver,rukpak.io/bundle-uid
