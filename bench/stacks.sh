#!/usr/bin/env bash
# What a stack of a Python program costs, beside py-spy: stacks.sh GPUWHY.
#
# Needs root, and Debian's bpftool, which it installs; py-spy is installed into a folder of its own below the cache.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v bpftool >/dev/null || [ -x /usr/sbin/bpftool ] || {
    apt-get update -qq >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends bpftool >/dev/null
}
peer=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/py-spy
[ -x "$peer/bin/py-spy" ] || {
    python3 -m venv "$peer"
    "$peer/bin/pip" install --quiet --disable-pip-version-check py-spy
}
PATH=$PATH:/usr/sbin PY_SPY=$peer/bin/py-spy exec python3 bench/stacks.py "$1"
