#!/usr/bin/env bash
# Import of kernel traces, ours beside the reference readers, on the same files and in the same run:
# kernel-traces.sh GPUWHY.
#
# The traces are those of GPUWHY_TRACES (kernel/ctf, kernel/tracecmd, kernel/perf); the peers are Debian packages, and one that is missing is said
# to be missing in the result.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/kernel_traces.py "$1"
