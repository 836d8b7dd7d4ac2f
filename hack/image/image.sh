#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Builds our image, with an SBOM for each platform, from what `make build` and `make _output/bin/sbom`
# have built, and from programs that it compiles for the platforms that are not this machine's.
# LDFLAGS are those of `make build`. The last line is the image's digest.
#
#   image.sh LAYOUT VERSION PLATFORM...
set -euo pipefail
cd "$(dirname "$0")/../.."
layout=$1 version=$2
shift 2
here=$(go env GOHOSTOS)/$(go env GOHOSTARCH)
names=(rukpak-apiserver rukpak-unpack rukpak-fetch)

arguments=()
for platform in "$@"; do
  folder=./_output/bin
  if [ "$platform" != "$here" ]; then
    folder=./_output/image/programs/$platform
    mkdir -p "$folder"
    GOOS=${platform%/*} GOARCH=${platform#*/} go build -ldflags "$LDFLAGS" -o "$folder/" "${names[@]/#/./cmd/}"
  fi
  arguments+=("$platform" "${names[@]/#/$folder/}")
done
SBOM=./_output/bin/sbom VERSION=$version hack/image/build.sh "$layout" rukpak-apiserver:latest '["/rukpak-apiserver"]' "${arguments[@]}"
