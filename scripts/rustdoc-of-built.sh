#!/usr/bin/env bash
# rustdoc as `cargo test --doc` calls it: documents the crate from the libraries that are built, with
# warnings as errors, and then runs its doc tests. `cargo doc` would check every dependency again.
# rustdoc-of-built.sh programs: documents all programs, as scripts/clippy-of-ours.sh saw them compiled.
set -euo pipefail
rustdoc=$(rustc --print sysroot)/bin/rustdoc
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$built/doc-of-built

# What rustc was told of the program, as far as rustdoc understands it.
program() {
    local kept=$1 args=() environment=() skip= arg
    # A program has no others that use it: all of it is documented, as by `cargo doc`.
    ! grep -qzx bin "$kept" || args+=(--document-private-items)
    while IFS= read -r -d '' arg; do
        if [ -n "$skip" ]; then skip=; continue; fi
        case $arg in
            --out-dir|-C) skip=1 ;;
            --emit=*|--error-format=*|--json=*|-C*) ;;
            *) args+=("$arg") ;;
        esac
    done <"$kept"
    mapfile -d '' environment <"$kept.env"
    echo "${kept##*/}"
    env "${environment[@]}" "$rustdoc" "${args[@]}" -D warnings --out-dir "$out"
}
if [ "${1:-}" = programs ]; then
    count=0
    for kept in "$built"/debug/compiled/*.env; do
        program "${kept%.env}"
        count=$((count + 1))
    done
    echo "$count programs documented"
    exit
fi

args=()
skip=
for arg in "$@"; do
    if [ -n "$skip" ]; then skip=; continue; fi
    case $arg in
        --test) tests=1 ;;
        --test-args|--test-run-directory|--test-builder|--test-runtool) skip=1 ;;
        --test-args=*|--test-run-directory=*|--no-run) ;;
        *) args+=("$arg") ;;
    esac
done
# Cargo also asks for the version.
[ -z "${tests:-}" ] || "$rustdoc" "${args[@]}" -D warnings --out-dir "$out"
exec "$rustdoc" "$@"
