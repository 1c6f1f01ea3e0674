#!/usr/bin/env bash
# Brings NVIDIA's Sanitizer (14 MB, under NVIDIA's licence) with its headers: for `gpuwhy probe run --sanitizer=FILE` where
# CUDA's toolkit is not installed, and for the tests that compare our layouts with the headers; without it they skip
# themselves. Prints where it lies. Needs python3 with pip, no GPU and no root.
#
# It is taken from the Python package that NVIDIA publishes and lies in the cache, not in the tree.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/sanitizer
if [ ! -f "$cache/lib/libsanitizer-public.so" ]; then
    mkdir -p "$cache"
    place=$(mktemp -d "$cache/download.XXXXXX")
    trap 'rm -rf "$place"' EXIT
    python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
        --dest "$place" -r scripts/sanitizer.txt
    python3 -m zipfile --extract "$place"/*.whl "$place"
    mkdir -p "$cache/lib"
    cp -r "$place/nvidia/cu13/include" "$cache/"
    # The library starts its helpers from beside it.
    mv "$place"/nvidia/cu13/lib/*.so "$cache/lib/"
fi
echo "$cache/lib/libsanitizer-public.so"
