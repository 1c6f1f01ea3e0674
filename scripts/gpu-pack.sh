#!/usr/bin/env bash
# Builds what scripts/gpu-check.sh runs into target/gpu, for a machine that has a GPU and no cargo.
#
# All of it is stripped, 64 MiB at most, and needs the C library of this machine or a later one.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
into=target/gpu

# As `make release` builds them, so that nothing is built twice.
cargo build --release --locked --package gpuwhy --package gpuwhy-bench --package gpuwhy-probe --bins
cargo build --release --locked --package gpuwhy-inject --package gpuwhy-interpose --package gpuwhy-standin --package gpuwhy-testkit
cargo build --release --locked --package gpuwhy-wire --example agent
cargo build --release --locked --package gpuwhy-inject --example nccl_driver
cargo build --release --locked --package gpuwhy-collect --example nvml_cost
cargo build --release --locked --package gpuwhy-standin --example nvidiactl
rm -rf "$into"
mkdir -p "$into/lib"
for file in gpuwhy gpuwhy-testkit gpuwhy-probe libgpuwhy_inject.so libgpuwhy_standin.so libgpuwhy_interpose.so \
            examples/agent examples/nccl_driver examples/nvml_cost examples/libnvidiactl.so; do
    strip --strip-debug -o "$into/$(basename $file)" "$target/release/$file"
done
chmod 755 "$into"/*
# What gpu-probe-check runs: programs, kernels, and probes for them.
cc -O2 -Wall -o "$into/gpuprobe" bench/gpu/probe.c -ldl
cc -O2 -Wall -o "$into/loads" crates/probe/tests/programs/loads.c -ldl
mkdir "$into/kernels"
cp bench/gpu/{clocks,paging}.ptx bench/probes/steal.ptx crates/gpubpf/tests/kernels/{basic,gemm}.ptx crates/gpubpf/tests/fatbin/{kernels.ptx,zstd.fatbin,lz4.fatbin} \
    "$into/kernels"
for tool in counts returns tail blocks work reversed longest sequential hot; do
    "$target/release/gpuwhy-probe" new --tool "$tool" "$into/kernels/$tool" >/dev/null
    make --silent -C "$into/kernels/$tool"
    mv "$into/kernels/$tool/probe.bpf.o" "$into/kernels/$tool.bpf.o"
    rm -r "$into/kernels/$tool"
done
clang -O2 -g -target bpf -I crates/gpubpf/include -c crates/gpubpf/tests/programs/nothing.bpf.c -o "$into/kernels/nothing.bpf.o"
for place in array per_sm_array block_array host_array; do
    clang -O2 -g -target bpf -I crates/gpubpf/include -DPLACE="GPU_${place^^}" -c bench/gpu/placement.bpf.c \
        -o "$into/kernels/placement.$place.bpf.o"
done
# Machine code without PTX, NVIDIA's Sanitizer, and what its assembler makes of the functions that are called.
sanitizer=$(scripts/sanitizer.sh)
scripts/ptxas.sh >/dev/null
ptxas=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/ptxas/ptxas
mkdir "$into/sanitizer"
cp "$sanitizer" "$into/sanitizer"
cp bench/gpu/ptxas.sh "$into"
for name in kernels basic; do
    "$ptxas" -arch=sm_90 "$into/kernels/$name.ptx" -o "$into/kernels/${name/kernels/alone}.sm_90.cubin"
done
machine=$(mktemp -d)
ln -s "$PWD/$into/libgpuwhy_standin.so" "$machine/libcuda.so.1"
mkdir "$machine/devices"
for tool in nothing counts; do
    # The stand-in takes no machine code: what was assembled for it is kept, and that is all.
    GPUWHY_PTXAS=$ptxas GPUWHY_STANDIN=$machine/devices GPUWHY_STANDIN_EXECUTES=1 LD_LIBRARY_PATH=$machine \
        GPUWHY_STANDIN_SOURCE=$into/kernels/kernels.ptx GPUWHY_INTERPOSE=$into/libgpuwhy_interpose.so "$into/gpuwhy-probe" run --no-cache \
        --object "$into/kernels/$tool.bpf.o" --sanitizer="$into/libgpuwhy_standin.so" --ptxas "$into/ptxas.sh" \
        -- "$into/loads" dlsym module "$into/kernels/alone.sm_90.cubin" _Z4copyPKfPf >/dev/null 2>&1
done
rm -r "$machine"
[ "$(ls "$into/kept" | wc -l)" = 2 ] || { echo "gpu-pack: no functions were assembled" >&2; exit 1; }
# The vectors need a folder that is not in the tree; without it that part fails and says so.
GPUWHY_MODULES=$PWD/$into/kernels cargo test --release --locked --quiet --package gpuwhy-gpubpf --test it \
    the_suite_is_written >/dev/null
cc -O2 -shared -fPIC -I crates/wire/include bench/gpu/mark.c -o "$into/libgpuwhy_mark.so"
# What a bare machine may lack; gpu-check uses them only where it does.
ldd "$into/gpuwhy" | awk '$1 ~ /^lib(elf|z|zstd)\.so/ { print $3 }' | xargs -r cp -L --target-directory "$into/lib"
others=(:!bench/results :!docs)
echo "$(git rev-parse --short=12 HEAD)$([ -z "$(git status --porcelain -uno -- . "${others[@]}")" ] || echo +)" >"$into/commit"
size=$(du -sm "$into" | cut -f1)
echo "gpu-pack: $into, $size MiB"
if [ "$size" -gt 63 ]; then
    echo "gpu-pack: that is too much to carry" >&2
    exit 1
fi
