#!/usr/bin/env bash
# 1,000 programs that our object lives in are killed at random moments while a collector attends
# (crates/inject/tests/kills.rs); writes bench/results/kills.json.
#
#   bench/kills.sh    KILLS=1000 SEED=1
set -euo pipefail
cd "$(dirname "$0")/.."
kills=${KILLS:-1000} seed=${SEED:-1}
raw=$(mktemp)
trap 'rm -f "$raw"' EXIT
GPUWHY_KILLS=$kills GPUWHY_KILLS_SEED=$seed GPUWHY_KILLS_JSON=$raw \
    cargo test --locked --package gpuwhy-inject --test kills
python3 bench/kills.py "${1:--}" "$raw" "bench/kills.sh, KILLS=$kills SEED=$seed"
