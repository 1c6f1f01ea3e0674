#!/usr/bin/env bash
# Which kernels of stock wheels a probe reaches, and how, told without a GPU: probe-coverage.sh GPUWHY.
# Writes bench/results/probe-coverage.json.
#
# Fetches the wheels that bench/probe_coverage.py names from PyPI (3 GB) into ~/.cache/gpuwhy/wheels, and keeps them.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/probe_coverage.py "$1"
