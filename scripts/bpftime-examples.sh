#!/usr/bin/env bash
# What the verifier says of each program in the GPU examples of bpftime (github.com/eunomia-bpf/bpftime), which are compiled as
# they are: bpftime-examples.sh CHECKOUT GPUWHY. Needs clang and libbpf's headers (libbpf-dev), no GPU.
set -euo pipefail
checkout=$1 gpuwhy=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
find "$checkout/example/gpu" -name '*.bpf.c' | sort | while read -r source; do
    name=${source#"$checkout/example/gpu/"}
    if clang -O2 -g -target bpf -mcpu=v3 -D__TARGET_ARCH_x86 -I "$checkout/third_party/vmlinux/x86" -c "$source" \
        -o "$folder/program.o" 2>"$folder/said"; then
        "$gpuwhy" probe check "$folder/program.o" 2>&1 | grep -v '^  a thread' | sed "s|^|$name: |" || true
    else
        echo "$name: clang: $(grep error "$folder/said" | head -n 1)"
    fi
done
