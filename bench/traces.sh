#!/usr/bin/env bash
# Analysis and import of generated traces, ours beside its peers, in the same run: traces.sh GPUWHY.
#
# The peers are Python packages; they are installed into target/peers, and one that cannot be had is
# said to be missing in the result.
set -euo pipefail
cd "$(dirname "$0")/.."
gpuwhy=$1
peers=target/peers
if [ ! -x $peers/bin/python ]; then
    python3 -m venv $peers
fi
for package in duckdb polars pandas pyarrow HolisticTraceAnalysis; do
    $peers/bin/python -m pip install --quiet --disable-pip-version-check $package ||
        echo "traces: $package cannot be installed; its rows will be missing" >&2
done
exec $peers/bin/python bench/traces.py "$gpuwhy"
