#!/usr/bin/env bash
# Verdicts about kernels that wait for a few of their blocks, by the device probe `tail` in a recorded program, over the
# stand-in of the driver that executes kernels: TRIALS (10) each of uneven blocks, more work for all of them, and
# no change; onset, length and sizes are random. Writes bench/results/probe-verdicts.json.
#
#   bench/probe-verdicts.sh GPUWHY
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
# The same sets of packages as scripts/gpu-pack.sh builds, so that nothing is built twice.
cargo build --quiet --release --locked --package gpuwhy --package gpuwhy-bench --package gpuwhy-probe --bins
cargo build --quiet --release --locked --package gpuwhy-inject --package gpuwhy-interpose --package gpuwhy-standin \
    --package gpuwhy-testkit
exec python3 bench/probe_verdicts.py "$1" "$target/release"
