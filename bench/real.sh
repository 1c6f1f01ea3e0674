#!/usr/bin/env bash
# Programs that nobody here wrote, disturbed in known ways while `gpuwhy watch` looks on: real.sh GPUWHY.
#
# Each situation TRIALS (10) times; ONLY=word[,word] runs the situations whose names hold a word. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v /usr/lib/postgresql/*/bin/postgres >/dev/null ||
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql postgresql-contrib; }
exec python3 bench/real.py "$1"
