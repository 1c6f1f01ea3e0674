#!/usr/bin/env bash
# Prints where py-spy is, which it installs into a folder of its own below the cache if it is not there: py-spy.sh
set -euo pipefail
peer=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/py-spy
[ -x "$peer/bin/py-spy" ] || {
    python3 -m venv "$peer"
    "$peer/bin/pip" install --quiet --disable-pip-version-check py-spy
}
echo "$peer/bin/py-spy"
