#!/usr/bin/env bash
# rustdoc as `cargo test --doc` calls it: documents the crate from the libraries that are built, with
# warnings as errors, and then runs its doc tests. `cargo doc` would check every dependency again.
set -euo pipefail
rustdoc=$(rustc --print sysroot)/bin/rustdoc
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/doc-of-built

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
