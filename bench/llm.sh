#!/usr/bin/env bash
# What spans and batches of LLM engines cost them: llm.sh GPUWHY. ROUNDS (15) sets how many processes are measured.
#
# With a real engine (`make llm-env`) also what it loses while it is recorded, in ENGINE_ROUNDS (3) rounds of six blocks of
# ENGINE_BLOCK (20) s, for each number of ENGINE_CLIENTS (1,8,32) and each of ENGINE_SIZES of model (tiny small); at the middle
# number of clients also while py-spy reads stacks. Needs root then.
set -euo pipefail
cd "$(dirname "$0")/.."
gpuwhy=$(realpath "$1")
target=${CARGO_TARGET_DIR:-target}
cargo build --release --locked --quiet --package gpuwhy-python --lib
cargo build --release --locked --quiet --package gpuwhy-wire --example listen
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
scripts/wheel.py "$target/release/libgpuwhy_python.so" "$folder" >/dev/null
PY_SPY=$(bench/py-spy.sh)
export PY_SPY
python3 bench/llm.py "$gpuwhy" "$folder/gpuwhy-python" "$(realpath "$target/release/examples/listen")"
