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
PY_SPY=$(bench/py-spy.sh)
export PY_SPY
PATH=$PATH:/usr/sbin exec python3 bench/stacks.py "$1"
