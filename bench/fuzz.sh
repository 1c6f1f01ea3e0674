#!/usr/bin/env bash
# Runs each fuzz target for FUZZ_SECONDS (60) and adds what was done to the ledger,
# bench/results/fuzz.json, in which executions and CPU hours of all sittings are summed.
set -euo pipefail
cd "$(dirname "$0")/.."
FUZZ_LEDGER=1 exec scripts/fuzz.sh "${FUZZ_SECONDS:-60}"
