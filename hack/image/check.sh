#!/bin/bash
# Copyright The rukpak-apiserver Authors.
# SPDX-License-Identifier: Apache-2.0

# Fails unless the image that was built comes out the same, to the byte, from a copy of the sources in
# another folder, with other times, by a user with another umask. It compiles nothing anew that the build cache has,
# and links everything.
#
#   check.sh LAYOUT VERSION PLATFORM...
set -euo pipefail
cd "$(dirname "$0")/../.."
layout=$1 version=$2
shift 2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -c --exclude=./_output --exclude=./.git . | (umask 077 && tar -C "$work" --no-same-permissions --touch -x)
again=$work/_output/image/again
# make hands on what it was told itself, as IMAGE=/tmp/image, which here has to be another place.
(umask 077 && make -C "$work" --no-print-directory image VERSION="$version" PLATFORMS="$*" IMAGE="$again" BIN="$work/_output/bin" >"$work/log") ||
  { cat "$work/log" >&2; exit 1; }
if ! cmp "$layout.tar" "$again.tar"; then
  diff -rq "$layout" "$again" >&2 || true
  echo "the image is another one when it is built in another folder" >&2
  exit 1
fi
echo "the same image, built in another folder: $(sha256sum <"$layout.tar" | cut -d' ' -f1) is the archive of both"
