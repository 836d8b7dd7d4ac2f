#!/usr/bin/env bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Builds the archives of the kubectl plugin and its krew manifest into a folder. The same sources, and the same versions of Go and gzip, give
# the same bytes.
# usage: hack/krew.sh FOLDER VERSION URL, where URL is that of the folder that the archives will be in.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$1 version=$2 url=$3
platforms=${KREW_PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64}
mkdir -p "$out"
entries=
for platform in $platforms; do
  os=${platform%/*} arch=${platform#*/} program=kubectl-bundle
  [ "$os" != windows ] || program=kubectl-bundle.exe
  work=$(mktemp -d)
  GOOS=$os GOARCH=$arch go build -ldflags "-s -w -X rukpak.io/apiserver/pkg/cmd/bundle.release=$version" -o "$work/$program" ./cmd/kubectl-bundle
  cp LICENSE artifacts/krew/kubectl_complete-bundle "$work"
  archive=kubectl-bundle_${os}_${arch}.tar.gz
  tar -C "$work" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -c . | gzip -n9 > "$out/$archive"
  rm -rf "$work"
  entries+="  - selector:
      matchLabels:
        os: $os
        arch: $arch
    uri: $url/$archive
    sha256: $(sha256sum "$out/$archive" | cut -d' ' -f1)
    bin: $program
"
done
while IFS= read -r line; do
  case $line in
  @PLATFORMS@) printf '%s' "$entries" ;;
  *) printf '%s\n' "${line/@VERSION@/$version}" ;;
  esac
done < artifacts/krew/bundle.yaml > "$out/bundle.yaml"
