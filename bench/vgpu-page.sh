#!/usr/bin/env bash
# How large the page of `gpuwhy vgpu --html` is, and how long its frames take in a browser: vgpu-page.sh GPUWHY.
#
# The browser is Debian's chromium; without it only the size is measured, which the result says.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 bench/vgpu_page.py "$1"
