#!/usr/bin/env bash
# What probes cost in real kernels, by NVIDIA's assembler (crates/gpubpf/tests/it/corpus.rs); writes
# bench/results/probes.json. The kernels are those of scripts/ptx-corpus.sh, which is run first.
#
#   bench/probes.sh
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy
scripts/ptxas.sh >/dev/null
scripts/ptx-corpus.sh
raw=$(mktemp)
trap 'rm -f "$raw"' EXIT
GPUWHY_NVDISASM=$cache/ptx-tools/nvidia/cu13/bin/nvdisasm GPUWHY_CORPUS_JSON=$raw \
    cargo test --locked --package gpuwhy-gpubpf --test it corpus::
python3 bench/probes.py "${1:--}" "$raw" "make bench-probes, ptxas $("$cache/ptxas/ptxas" --version | grep -o 'V[0-9][0-9.]*')"
