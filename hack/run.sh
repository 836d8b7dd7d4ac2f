#!/usr/bin/env bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Starts a standalone server and does the main job once in front of the user;
# Ctrl-C ends it. Arguments go to hack/demo: --once, --port, --data-dir.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:--buildvcs=false -trimpath}"
bin=_output/bin
mkdir -p "$bin"

make --no-print-directory --silent build
go build -ldflags '-s -w' -o "$bin/demo" ./hack/demo

kubectl=$bin/kubectl
if [ ! -x "$kubectl" ]; then
  if ! kubectl=$(command -v kubectl); then
    kubectl=$bin/kubectl
    echo "There is no kubectl on this machine; building one, which takes some minutes." >&2
    (cd hack/cluster/tools/allinone && go build -ldflags '-s -w' -o "../../../../$kubectl" k8s.io/kubernetes/cmd/kubectl)
  fi
fi
exec "$bin/demo" --kubectl "$kubectl" "$@"
