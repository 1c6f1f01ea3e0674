#!/usr/bin/env bash
# Brings NVIDIA's assembler for PTX (37 MB, under NVIDIA's licence) for the tests that assemble what
# `gpubpf` writes; without it they skip themselves. Needs python3 with pip, no GPU and no root.
#
# It is taken from the Python package that NVIDIA publishes and lies in the cache, not in the tree.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/ptxas
if [ -x "$cache/ptxas" ]; then
    "$cache/ptxas" --version | tail -n 2
    exit 0
fi
mkdir -p "$cache"
place=$(mktemp -d "$cache/download.XXXXXX")
trap 'rm -rf "$place"' EXIT
python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
    --dest "$place" -r scripts/ptxas.txt
python3 -m zipfile --extract "$place"/*.whl "$place"
chmod +x "$place/nvidia/cu13/bin/ptxas"
mv "$place/nvidia/cu13/bin/ptxas" "$cache/ptxas"
"$cache/ptxas" --version | tail -n 2
