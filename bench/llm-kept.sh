#!/usr/bin/env bash
# What `watch` keeps of KEPT_MINUTES (10) of a real engine (`make llm-env`) to which nothing is done, of two kinds of load, beside what
# `record` keeps; and how many of its steps it tells of: llm-kept.sh GPUWHY. ENGINE_SIZES (tiny small) are the models. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/llm_kept.py "$(realpath "$1")" "$(dirname "$(realpath "$1")")/gpuwhy-python"
