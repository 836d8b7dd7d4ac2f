#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Builds a container image out of static programs, with neither Docker nor a
# registry. The same programs and the same version of gzip give the same bytes
# and so the same digest: folder, time, user and umask do not matter. The result
# is an OCI image layout (OCI image spec v1.1), which `crane push` takes, and as
# LAYOUT.tar `kind load image-archive`, `ctr images import` and, with the image
# store of containerd, `docker load`.
#
#   build.sh LAYOUT NAME ENTRYPOINT PLATFORM PROGRAM... [PLATFORM PROGRAM...]
#
# LAYOUT is the folder to write, NAME what LAYOUT.tar calls the image, ENTRYPOINT
# the JSON list of the command; the programs come to lie at the image's root. The
# layout holds one image index, with an image for each PLATFORM, as in linux/arm64.
#
# Where SBOM names a program (hack/sbom) its output for each image is attached to
# that: a manifest that refers to the image as its subject, so that registries list it among
# the image's referrers, and that stands in the index, so that it goes wherever that is copied.
# VERSION is the version that it tells.
set -euo pipefail
umask 022

[ $# -ge 5 ] || { echo "usage: build.sh LAYOUT NAME ENTRYPOINT PLATFORM PROGRAM... [PLATFORM PROGRAM...]" >&2; exit 2; }
layout=$1 name=$2 entrypoint=$3
shift 3
epoch=1970-01-01T00:00:00Z

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/layout/blobs/sha256"

digest() { sha256sum "$1" | cut -d' ' -f1; }

# blob FILE MEDIATYPE: files it under its digest, prints its OCI descriptor.
blob() {
  local hex
  hex=$(digest "$1")
  printf '"mediaType":"%s","digest":"sha256:%s","size":%d' "$2" "$hex" "$(stat -c %s "$1")"
  mv "$1" "$work/layout/blobs/sha256/$hex"
}

oci=application/vnd.oci.image cyclonedx=application/vnd.cyclonedx+json
images=() documents=()

# image PLATFORM PROGRAM...: makes the image of a platform, and its SBOM, and notes them for the index.
image() {
  local platform=$1 members=() program diff_id layer config manifest document
  shift
  # Nothing of this machine enters the layer: not the time, the user or the umask.
  for program in "$@"; do members+=(-C "$(realpath "$(dirname "$program")")" "$(basename "$program")"); done
  tar --format=ustar --dereference --owner=0 --group=0 --numeric-owner --mode=0555 --mtime=@0 -cf "$work/layer.tar" "${members[@]}"
  diff_id=$(digest "$work/layer.tar")
  gzip -n -c "$work/layer.tar" >"$work/layer.tar.gz"
  layer=$(blob "$work/layer.tar.gz" $oci.layer.v1.tar+gzip)

  printf '{"created":"%s","architecture":"%s","os":"%s","config":{"User":"65532:65532","Entrypoint":%s,"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$epoch" "${platform#*/}" "${platform%/*}" "$entrypoint" "$diff_id" >"$work/config.json"
  config=$(blob "$work/config.json" $oci.config.v1+json)

  printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":{%s},"layers":[{%s}]}' \
    $oci "$config" "$layer" >"$work/manifest.json"
  manifest=$(blob "$work/manifest.json" $oci.manifest.v1+json)
  images+=("{$manifest,\"platform\":{\"architecture\":\"${platform#*/}\",\"os\":\"${platform%/*}\"}}")
  [ -n "${SBOM:-}" ] || return 0

  # No platform is unknown/unknown, so no runtime takes the document for an image that it could run.
  "$SBOM" "${name%:*}" "${VERSION:?}" "$(grep -o 'sha256:[0-9a-f]*' <<<"$manifest")" "$platform" "$@" >"$work/sbom.json"
  printf '{}' >"$work/empty.json"
  printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","artifactType":"%s","config":{%s},"layers":[{%s}],"subject":{%s}}' \
    $oci $cyclonedx "$(blob "$work/empty.json" application/vnd.oci.empty.v1+json)" "$(blob "$work/sbom.json" $cyclonedx)" "$manifest" >"$work/manifest.json"
  document=$(blob "$work/manifest.json" $oci.manifest.v1+json)
  documents+=("{$document,\"artifactType\":\"$cyclonedx\",\"platform\":{\"architecture\":\"unknown\",\"os\":\"unknown\"}}")
}

while [ $# -gt 0 ]; do
  group=("$1")
  shift
  # A program is named by its path, which begins with a slash or a dot.
  while [ $# -gt 0 ] && [[ $1 == [/.]* ]]; do group+=("$1"); shift; done
  [ ${#group[@]} -gt 1 ] || { echo "build.sh: ${group[0]} has no program" >&2; exit 2; }
  image "${group[@]}"
done

all=$(IFS=,; echo "${images[*]}${documents:+,${documents[*]}}")
printf '{"schemaVersion":2,"mediaType":"%s.index.v1+json","manifests":[%s]}' $oci "$all" >"$work/index.json"
index=$(blob "$work/index.json" $oci.index.v1+json)
# Runtimes read the image's name from one annotation, other tools its tag from the other. containerd takes the name as it stands there, and
# a kubelet asks it for the full one.
full=$name
[[ $name == */* ]] || full=docker.io/library/$name
printf '{"schemaVersion":2,"mediaType":"%s.index.v1+json","manifests":[{%s,"annotations":{"io.containerd.image.name":"%s","org.opencontainers.image.ref.name":"%s"}}]}' \
  $oci "$index" "$full" "${name##*:}" >"$work/layout/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$work/layout/oci-layout"

rm -rf "$layout" "$layout.tar"
mkdir -p "$(dirname "$layout")"
tar --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime=@0 -C "$work/layout" -cf "$layout.tar" .
chmod 0755 "$work/layout"
mv "$work/layout" "$layout"
echo "$name $(grep -o 'sha256:[0-9a-f]*' <<<"$index")"
