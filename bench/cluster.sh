#!/usr/bin/env bash
# The published pipeline's size on a cluster of processes, and with one of them killed: cluster.sh GPUWHY.
set -euo pipefail
cd "$(dirname "$0")/.."
gpuwhy=$1
[ -x "$(dirname "$gpuwhy")/gpuwhy-query" ] || [ -n "${GPUWHY_QUERY:-}" ] || make --no-print-directory query
exec python3 bench/cluster.py "$gpuwhy"
