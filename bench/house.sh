#!/usr/bin/env bash
# How the house is built, by `cargo xtask house`: sizes of crates, files and functions, circles between
# files, documented items, and the files that an addition of each kind touched; writes
# bench/results/house.json. Nothing is timed.
set -euo pipefail
cd "$(dirname "$0")/.."
raw=$(mktemp)
trap 'rm -f "$raw"' EXIT
cargo xtask house --json >"$raw"
python3 bench/house.py "${1:--}" "$raw"
