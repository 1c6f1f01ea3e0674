#!/usr/bin/env bash
# What seeing a process from inside costs it, and what its peers cost, in the same run: inject.sh GPUWHY.
#
# CPU time, no wall-clock time. All are rounds of processes that take turns; ROUNDS (15) sets how many.
set -euo pipefail
cd "$(dirname "$0")/.."
gpuwhy=$(realpath "$1")
target=${CARGO_TARGET_DIR:-target}
cargo build --release --locked --quiet --package gpuwhy-inject --package gpuwhy-standin --package gpuwhy-testkit
cargo build --release --locked --quiet --package gpuwhy-inject --example plugin_cost
cargo build --release --locked --quiet --package gpuwhy-wire --example ring_cost --example agent
exec python3 bench/inject.py "$gpuwhy" "$(realpath "$target/release")"
