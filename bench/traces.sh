#!/usr/bin/env bash
# Analysis and import of generated traces, ours beside its peers, in the same run: traces.sh GPUWHY.
#
# The peers are Python packages, each by its hash (bench/peers/traces.txt); they are installed into
# target/peers, and what cannot be had is said to be missing in the result.
set -euo pipefail
cd "$(dirname "$0")/.."
gpuwhy=$1
peers=target/peers
if [ ! -x $peers/bin/python ]; then
    python3 -m venv $peers
fi
$peers/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: \
    --require-hashes -r bench/peers/traces.txt ||
    echo "traces: the peers cannot be installed; their rows will be missing" >&2
exec $peers/bin/python bench/traces.py "$gpuwhy"
