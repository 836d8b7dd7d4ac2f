#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Builds a container image out of static programs, with neither Docker nor a
# registry. The same programs give the same bytes and so the same digest,
# wherever and whenever this runs. The result is an OCI image layout (OCI image
# spec v1.1), which `crane push` takes, and as LAYOUT.tar `docker load`,
# `kind load image-archive` and `ctr images import`.
#
#   build.sh LAYOUT NAME ENTRYPOINT PROGRAM...
#
# LAYOUT is the folder to write, NAME what LAYOUT.tar calls the image, ENTRYPOINT
# the JSON list of the command; the programs come to lie at the image's root.
set -euo pipefail

[ $# -ge 4 ] || { echo "usage: build.sh LAYOUT NAME ENTRYPOINT PROGRAM..." >&2; exit 2; }
layout=$1 name=$2 entrypoint=$3
shift 3
arch=$(go env GOARCH)
epoch=1970-01-01T00:00:00Z

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/layout/blobs/sha256"

digest() { sha256sum "$1" | cut -d' ' -f1; }

# blob FILE MEDIATYPE: files it under its digest, prints its OCI descriptor.
blob() {
  local hex
  hex=$(digest "$1")
  printf '"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%d' "$2" "$hex" "$(stat -c %s "$1")"
  mv "$1" "$work/layout/blobs/sha256/$hex"
}

# Nothing of this machine enters the layer: not the time, the user or the umask.
members=()
for program in "$@"; do members+=(-C "$(realpath "$(dirname "$program")")" "$(basename "$program")"); done
tar --format=ustar --dereference --owner=0 --group=0 --numeric-owner --mode=0555 --mtime=@0 -cf "$work/layer.tar" "${members[@]}"
diff_id=$(digest "$work/layer.tar")
gzip -n -c "$work/layer.tar" >"$work/layer.tar.gz"
layer=$(blob "$work/layer.tar.gz" layer.v1.tar+gzip)

printf '{"created":"%s","architecture":"%s","os":"linux","config":{"User":"65532:65532","Entrypoint":%s,"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
  "$epoch" "$arch" "$entrypoint" "$diff_id" >"$work/config.json"
config=$(blob "$work/config.json" config.v1+json)

printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{%s},"layers":[{%s}]}' \
  "$config" "$layer" >"$work/manifest.json"
manifest=$(blob "$work/manifest.json" manifest.v1+json)

# Runtimes read the image's name from one annotation, other tools its tag from the other.
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{%s,"annotations":{"io.containerd.image.name":"%s","org.opencontainers.image.ref.name":"%s"},"platform":{"architecture":"%s","os":"linux"}}]}' \
  "$manifest" "$name" "${name##*:}" "$arch" >"$work/layout/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$work/layout/oci-layout"

rm -rf "$layout" "$layout.tar"
mkdir -p "$(dirname "$layout")"
tar --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$work/layout" -cf "$layout.tar" .
chmod 0755 "$work/layout"
mv "$work/layout" "$layout"
