#!/bin/sh
# NVIDIA's assembler for `gpuwhy probe run --ptxas`, on a machine that lacks it: what it makes is kept in `kept` beside this file, by
# the hash of the text, when gpu-pack is built; on the machine with the GPU that is what comes out.
#
# Called as ptxas --compile-as-tools-patch -arch=ARCH -o OUT IN. GPUWHY_PTXAS: the assembler, where there is one.
set -eu
kept=$(dirname "$0")/kept
for word; do
    case $word in
        -arch=*) arch=${word#-arch=} ;;
        *) in=$word ;;
    esac
done
name=$kept/$arch.$(sha256sum <"$in" | cut -c1-16)
if [ ! -f "$name" ]; then
    if [ -z "${GPUWHY_PTXAS:-}" ]; then
        echo "nothing was kept for this text and $arch" >&2
        exit 1
    fi
    mkdir -p "$kept"
    "$GPUWHY_PTXAS" --compile-as-tools-patch "-arch=$arch" -o "$name" "$in"
fi
cp "$name" "$4"
