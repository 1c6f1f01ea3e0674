#!/usr/bin/env bash
# Unmodified training loops under `gpuwhy record`, each beside the ledger that it keeps itself, and what the hooks cost:
# train.sh GPUWHY.
#
# TRAIN_PYTHON names the Python to use; it needs torch and pyarrow, and for some loops transformers, accelerate and
# lightning. Without one, an environment is made in the cache from bench/train/requirements.txt (6 GB). LOOPS names the
# loops to run (all), SECTIONS what else (loops, cost, startup).
set -euo pipefail
cd "$(dirname "$0")/.."
gpuwhy=$(realpath "$1")
if [ -z "${TRAIN_PYTHON:-}" ]; then
    place=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/train
    TRAIN_PYTHON=$place/bin/python
    if [ ! -e "$place/complete" ]; then
        python3 -m venv "$place"
        "$TRAIN_PYTHON" -m pip install --quiet --disable-pip-version-check -r bench/train/requirements.txt
        touch "$place/complete"
    fi
fi
export TRAIN_PYTHON
exec "$TRAIN_PYTHON" bench/train/matrix.py "$gpuwhy"
