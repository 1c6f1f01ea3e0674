#!/usr/bin/env bash
# A Python for `make bench-train`: PyTorch and transformers of the environment of `make llm-env`, which is made if it is missing
# (5.9 GB), and pyarrow, accelerate and Lightning beside them. Below the user's cache, from package registries alone.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy
scripts/llm-env.sh "$cache/llm-env"
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }
[ -x "$cache/train/bin/python" ] || "$cache/llm-env/venv/bin/python" -m venv "$cache/train"
packages "$cache/llm-env/venv/bin/python" >"$(packages "$cache/train/bin/python")/llm-env.pth"
"$cache/train/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --no-deps --require-hashes \
    -r scripts/train-env.txt
"$cache/train/bin/python" -c 'import torch, pyarrow, transformers, accelerate, lightning'
echo "$cache/train is there"
