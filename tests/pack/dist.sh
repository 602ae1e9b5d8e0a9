#!/bin/bash
# The release tarball of HEAD, made from a clone so that nothing else of the work tree gets in. With a FOLDER it is put there;
# without one it is tried: it builds as it is, without git and network, and the model that it decodes is right.
# Usage: tests/pack/dist.sh [FOLDER]
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git clone -q . "$work/clone"
mkdir -p "$work/clone/build-deps"
cp -r build-deps/cjson "$work/clone/build-deps/"
meson setup "$work/clone/build" "$work/clone" -Dcuda=disabled -Dtests=false > "$work/log"
meson dist -C "$work/clone/build" --no-tests >> "$work/log"
tarball=$(ls "$work"/clone/build/meson-dist/replayssm-*.tar.xz)
if [ $# -gt 0 ]; then
    mkdir -p "$1"
    cp "$tarball" "$1"
    exit 0
fi

tar -xf "$tarball" -C "$work"
source=$(ls -d "$work"/replayssm-*)
revision=$(git describe --always)
# Unoptimised: it has to build, and fast.
meson setup "$work/build" "$source" --buildtype=debug -Dcuda=disabled -Dtests=false >> "$work/log"
ninja -C "$work/build" plugin/replayssm.so examples/replayssm-run >> "$work/log" || { tail -n 40 "$work/log"; exit 1; }
"$work/build/examples/replayssm-run" "$source/configs/kimi-linear-48b-a3b.json" --tp 8 --batch 1 --steps 4 --check
grep -q "RSSM_GIT_REVISION \"$revision\"" "$work/build/plugin/revision.h" || { echo "the tarball does not know its revision, $revision"; exit 1; }
