#!/usr/bin/env bash
# rustdoc as `cargo test --doc` calls it: documents the crate from the libraries that are built, with
# warnings as errors, and then runs its doc tests. `cargo doc` would check every dependency again.
# rustdoc-of-built.sh programs: documents all programs, as scripts/clippy-of-ours.sh saw them compiled.
set -euo pipefail
rustdoc=$(rustc --print sysroot)/bin/rustdoc
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$built/doc-of-built

# Adds what a document needs of the arguments to `args`: neither options like the first pattern, which a value follows,
# nor those like the second one.
add_args() {
    local with_value=$1 others=$2 skip= arg
    shift 2
    for arg; do
        if [ -n "$skip" ]; then
            skip=
        elif [[ $arg == $with_value ]]; then
            skip=1
        elif [[ $arg != $others ]]; then
            args+=("$arg")
        fi
    done
}

# document [COMMAND...]: which runs it.
document() { "$@" "$rustdoc" "${args[@]}" -D warnings --out-dir "$out"; }

# Documents a program by what rustc was told of it.
program() {
    local kept=$1 args=() told environment
    echo "${kept##*/}"
    mapfile -d '' told <"$kept"
    mapfile -d '' environment <"$kept.env"
    # A program has no others that use it: all of it is documented, as by `cargo doc`.
    ! grep -qzx bin "$kept" || args+=(--document-private-items)
    add_args '@(--out-dir|-C)' '@(--emit=*|--error-format=*|--json=*|-C*)' "${told[@]}"
    document env "${environment[@]}"
}
if [ "${1:-}" = programs ]; then
    count=0
    for kept in "$built/debug/compiled$PWD"/*.env; do
        program "${kept%.env}"
        count=$((count + 1))
    done
    echo "$count programs documented"
    exit
fi

# Cargo also asks for the version.
if [[ " $* " == *" --test "* ]]; then
    args=()
    add_args '--test-@(args|run-directory|builder|runtool)' '@(--test|--test-args=*|--test-run-directory=*|--no-run)' "$@"
    document
fi
exec "$rustdoc" "$@"
