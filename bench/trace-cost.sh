#!/usr/bin/env bash
# What recording costs a workload, in time and bytes: trace-cost.sh GPUWHY.
#
# Two workloads run without a recorder (twice, as a control), under `gpuwhy record` and under `perf record` with the same
# tracepoints, in turns. perf is a Debian package (linux-perf); without it one workload and the peer are left out, which is said.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/trace_cost.py "$1"
