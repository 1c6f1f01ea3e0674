#!/usr/bin/env bash
# Builds what scripts/gpu-check.sh runs into target/gpu, for a machine that has a GPU and no cargo.
#
# All of it is stripped, 64 MiB at most, and needs the C library of this machine or a later one.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
into=target/gpu

cargo build --release --locked --package gpuwhy --package gpuwhy-inject --package gpuwhy-testkit --package gpuwhy-standin
cargo build --release --locked --package gpuwhy-wire --example agent
cargo build --release --locked --package gpuwhy-inject --example nccl_driver
cargo build --release --locked --package gpuwhy-collect --example nvml_cost
rm -rf "$into"
mkdir -p "$into/lib"
for file in gpuwhy gpuwhy-testkit libgpuwhy_inject.so libgpuwhy_standin.so \
            examples/agent examples/nccl_driver examples/nvml_cost; do
    strip --strip-debug -o "$into/$(basename $file)" "$target/release/$file"
done
chmod 755 "$into"/*
cc -O2 -shared -fPIC -I crates/wire/include bench/gpu/mark.c -o "$into/libgpuwhy_mark.so"
# What a bare machine may lack; gpu-check uses them only where it does.
ldd "$into/gpuwhy" | awk '$1 ~ /^lib(elf|z|zstd)\.so/ { print $3 }' | xargs -r cp -L --target-directory "$into/lib"
echo "$(git rev-parse --short=12 HEAD)$([ -z "$(git status --porcelain -uno)" ] || echo +)" >"$into/commit"
size=$(du -sm "$into" | cut -f1)
echo "gpu-pack: $into, $size MiB"
if [ "$size" -gt 60 ]; then
    echo "gpu-pack: that is too much to carry" >&2
    exit 1
fi
