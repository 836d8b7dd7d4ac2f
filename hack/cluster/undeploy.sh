#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Takes away what deploy.sh deployed, data and all; the cluster stays up.
set -euo pipefail
. "$(dirname "$0")/env.sh"

# First, or the deletion of every namespace would wait for an API that is gone.
kubectl delete apiservice v1alpha1.rukpak.io --ignore-not-found
[ ! -e "$RUN/deploy/kustomization.yaml" ] || kubectl delete -k "$RUN/deploy" --ignore-not-found
# Secrets and claims that no manifest names go with the namespace.
rm -rf "$RUN/deploy" "$RUN/volumes"
say "undeployed"
