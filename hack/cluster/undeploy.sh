#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Takes away what deploy.sh deployed, data and all; the cluster stays up.
set -euo pipefail
. "$(dirname "$0")/env.sh"

[ ! -e "$RUN/deploy/kustomization.yaml" ] || "$ROOT/artifacts/deploy/uninstall.sh" "$RUN/deploy"
rm -rf "$RUN/deploy" "$RUN/volumes"
say "undeployed"
