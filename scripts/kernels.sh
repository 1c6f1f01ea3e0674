#!/usr/bin/env bash
# Compiles some 70 kernels of CUDA and Triton for the tests of the simulator (crates/gpubpf), and what they
# must compute by NumPy. Needs python3 (3.10 to 3.13, x86-64) with pip and 300 MB of downloads, no GPU and
# no root. Everything lies in the cache; without it those tests skip themselves.
#
# scripts/kernels.sh golden   writes those anew that lie in the tree, in crates/gpubpf/tests/kernels
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy
python=$cache/kernels-venv/bin/python
if ! cmp --silent scripts/kernels.txt "$cache/kernels-venv/.made"; then
    rm -rf "$cache/kernels-venv"
    python3 -m venv "$cache/kernels-venv"
    "$python" -m pip install --quiet --no-deps --require-hashes --only-binary :all: -r scripts/kernels.txt
    cp scripts/kernels.txt "$cache/kernels-venv/.made"
fi
if [ "${1:-}" = golden ]; then
    "$python" scripts/kernels.py crates/gpubpf/tests/kernels basic reduce gemm calls
    exit 0
fi
place=$(mktemp -d "$cache/kernels.XXXXXX")
trap 'rm -rf "$place"' EXIT
TRITON_CACHE_DIR=$place/triton "$python" scripts/kernels.py "$place/made"
rm -rf "$cache/kernels"
mv "$place/made" "$cache/kernels"
echo "kernels: $(find "$cache/kernels" -name '*.case' | wc -l) in $cache/kernels"
