#!/usr/bin/env bash
# Every order of events in small models of what threads and processes share: the ring of `wire` and
# how it comes and goes, and what `inject` locks. Loom's atomics stand in the place of the language's.
#
# One line a model: its name and outcome. LOOM_MAX_PREEMPTIONS, LOOM_LOG: see loom.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="--cfg loom ${RUSTFLAGS:-}"
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/loom

# Only the library: its other tests are of another world.
cargo test --quiet --locked --profile loom --target-dir "$target" --lib \
    --package gpuwhy-wire --package gpuwhy-inject models -- --test-threads "$(nproc)" "$@"
