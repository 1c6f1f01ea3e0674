#!/usr/bin/env bash
# Small faults are put into the code, one at a time, and the tests of the crate are asked whether they see
# them (cargo-mutants); writes bench/results/mutants.json after each shard, and goes on where it ended.
#
#   bench/mutants.sh    PER_CRATE=60 SEED=1 SECONDS_A_CRATE=3600 ONLY=wire,store
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh build mutants
PATH=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/bin:$PATH exec python3 bench/mutants.py "${1:--}"
