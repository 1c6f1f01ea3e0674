#!/usr/bin/env bash
# Programs that nobody here wrote, disturbed in known ways while `gpuwhy watch` looks on: real.sh GPUWHY.
#
# Each situation TRIALS (10) times; ONLY=word[,word] runs the situations whose names or programs hold a word. Needs
# root; installs PostgreSQL and PyTorch where they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=()
command -v /usr/lib/postgresql/*/bin/postgres >/dev/null || wanted+=(postgresql postgresql-contrib)
/usr/bin/python3 -c 'import torch' 2>/dev/null || wanted+=(python3-torch)
if ((${#wanted[@]})); then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}"
fi
exec python3 bench/real/run.py "$1"
