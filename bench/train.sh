#!/usr/bin/env bash
# Unmodified training loops under `gpuwhy record`, each beside the ledger that it keeps itself, and what the hooks cost:
# train.sh GPUWHY.
#
# TRAIN_PYTHON names the Python to use (by default that of the environment gpuwhy/train in the cache): with torch and
# pyarrow, and for some loops transformers, accelerate and lightning; a loop that lacks its library is left out, and says
# so. LOOPS names the loops to run (all), SECTIONS what of loops, cost and startup.
set -euo pipefail
cd "$(dirname "$0")/.."
gpuwhy=$(realpath "$1")
export TRAIN_PYTHON=${TRAIN_PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/train/bin/python}
if ! "$TRAIN_PYTHON" -c 'import torch, pyarrow' 2>/dev/null; then
    echo "$TRAIN_PYTHON has no torch and pyarrow; \`make train-env\` makes an environment, or TRAIN_PYTHON names the python of one" \
        "with torch, pyarrow, transformers, accelerate and lightning" >&2
    exit 1
fi
exec "$TRAIN_PYTHON" bench/train/matrix.py "$gpuwhy"
