#!/usr/bin/env bash
# A real engine (vLLM, `make llm-env`) that is slow from its first step on, beside a reference; and one that becomes slower
# by one per cent a minute: reference.sh GPUWHY.
#
# TRIALS (3) of each, and as many recordings of a usual engine before. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH=bench/real exec python3 bench/reference.py "$1"
