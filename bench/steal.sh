#!/usr/bin/env bash
# Blocks that take their turns themselves beside blocks that the device hands out, in the simulator: cycles of a kernel whose
# blocks take different times, over the prologue that some of them have. Writes bench/results/steal.json.
#
#   bench/steal.sh GPUWHY
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --release --locked --package gpuwhy --package gpuwhy-bench --package gpuwhy-probe --bins
exec python3 bench/steal.py "$1" "${CARGO_TARGET_DIR:-target}/release"
