#!/usr/bin/env bash
# Brings NVIDIA's run time of CUDA (2 MB, under NVIDIA's licence), shared and static, for the test that asks whether
# its functions of the driver are ours; without it the test skips itself. Needs python3 with pip, no GPU and no root.
#
# It is taken from the Python package that NVIDIA publishes and lies in the cache, not in the tree.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/cudart
if [ -f "$cache/libcudart_static.a" ]; then
    echo "$cache"
    exit 0
fi
mkdir -p "$cache"
place=$(mktemp -d "$cache/download.XXXXXX")
trap 'rm -rf "$place"' EXIT
python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
    --dest "$place" -r scripts/cudart.txt
python3 -m zipfile --extract "$place"/*.whl "$place"
mv "$place/nvidia/cu13/lib/libcudart.so.13" "$cache/"
mv "$place/nvidia/cu13/lib/libcudart_static.a" "$cache/"
echo "$cache"
