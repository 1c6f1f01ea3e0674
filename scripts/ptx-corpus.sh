#!/usr/bin/env bash
# Makes a corpus of real kernels as PTX, for tests and `make bench-probes`: scripts/ptx-corpus.sh [DIR].
#
# Kernels of CUTLASS, CUB, Liger and flash-linear-attention are compiled from packages of PyPI, each by its
# hash (scripts/ptx-corpus.txt, 310 MB), with nvcc and Triton from there; no GPU, no torch, no root. The
# texts lie in the cache and not in the tree: they are their authors' (licences beside the packages' names).
# What comes out is compared with bench/probes/corpus.sha256; BLESS=1 writes that list anew.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy
into=$(realpath -m "${1:-$cache/ptx-corpus}")
tools=$cache/ptx-tools
compare() { (cd "$into" && sha256sum --quiet --check "$here/bench/probes/corpus.sha256"); }

if [ -z "${BLESS:-}" ] && [ -d "$into" ] && compare >/dev/null 2>&1; then
    echo "ptx-corpus: $into is complete"
    exit 0
fi
if ! cmp --silent scripts/ptx-corpus.txt "$tools/.made"; then
    rm -rf "$tools"
    mkdir -p "$tools"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    echo "ptx-corpus: fetching the compilers and packages into $tools"
    python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
        --dest "$scratch" -r scripts/ptx-corpus.txt
    for wheel in "$scratch"/*.whl; do
        python3 -m zipfile --extract "$wheel" "$tools"
    done
    find "$tools/nvidia/cu13/bin" "$tools/nvidia/cu13/nvvm/bin" "$tools/triton/backends/nvidia/bin" -type f -exec chmod +x {} +
    cp scripts/ptx-corpus.txt "$tools/.made"
fi

mkdir -p "$into"
rm -f "$into"/*.ptx
# From within, so that the paths in the text do not depend on where it lies.
cd "$tools"
mkdir -p probes
cp "$here"/bench/probes/*.cu "$here/crates/gpubpf/include/gpuwhy_tracepoint.h" probes/
for source in "$here"/bench/probes/*.cu; do
    name=$(basename "$source" .cu)
    # What nvcc makes of ours lies in crates/gpubpf/tests/modules.
    [ "$name" != own ] || continue
    arch=sm_90
    [ "$name" != cutlass_sm80 ] || arch=sm_80
    echo "ptx-corpus: nvcc $name"
    nvidia/cu13/bin/nvcc -std=c++17 -arch="$arch" --expt-relaxed-constexpr --diag-suppress=20012,177,2908 \
        -I probes -I cutlass_library/source/include -ptx "probes/$name.cu" -o "$into/$name.ptx"
done
echo "ptx-corpus: Triton"
scratch_cache=$(mktemp -d)
TRITON_CACHE_DIR=$scratch_cache python3 "$here/bench/probes/triton_kernels.py" "$tools" "$into"
rm -rf "$scratch_cache"

cd "$into"
if [ -n "${BLESS:-}" ]; then
    # nvcc puts a number of the process into the names of CUB's module.
    sha256sum ./*.ptx | grep -v cccl >"$here/bench/probes/corpus.sha256"
fi
# Another release of Python or another path may make another text of the same kernels: it is used, and told.
compare || echo "ptx-corpus: these differ from bench/probes/corpus.sha256" >&2
echo "ptx-corpus: $(grep -h '\.entry' ./*.ptx | wc -l) kernels in $into"
