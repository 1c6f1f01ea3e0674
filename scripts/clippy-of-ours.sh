#!/usr/bin/env bash
# The compiler of our own crates (RUSTC_WORKSPACE_WRAPPER): clippy, so that everything is linted while it is compiled.
# How programs are compiled is kept beside them, so that `scripts/rustdoc-of-built.sh programs` can document them from the libraries
# that are built then.
set -euo pipefail
name= type= out= tests=
for ((i = 1; i <= $#; i++)); do
    next=$((i + 1))
    case ${!i} in
        --crate-name) name=${!next} ;;
        --crate-type) type=${!next} ;;
        --out-dir) out=${!next} ;;
        --test) tests=1 ;;
    esac
done
# Of several kinds of library the last one counts: what only other programs load is a program here.
if [[ $type == @(bin|cdylib) ]] && [ -z "$tests" ] && [[ $out == */deps ]]; then
    # Several clones may have one target directory.
    kept=${out%/deps}/compiled$PWD
    mkdir -p "$kept"
    env -0 | grep -zE '^(CARGO_(PKG|BIN|MANIFEST|CRATE)_|CARGO_MANIFEST_DIR=|OUT_DIR=)' >"$kept/$name.env"
    printf '%s\0' "${@:2}" >"$kept/$name"
fi
exec "${CLIPPY_DRIVER:-$("$1" --print sysroot)/bin/clippy-driver}" "$@"
