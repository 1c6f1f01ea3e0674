#!/usr/bin/env bash
# Fetches the libnccl.so.2 of several NCCL releases, for the tests of the NCCL plug-in.
#
#   scripts/nccl.sh [all | VERSION...] [--into DIR]
#
# Without versions: 2.27.7, 2.30.7 and 2.32.3; `all`: the six that the tests know. Each comes out
# of its wheel on PyPI (300 MB, deleted at once; the library is 450 MB) and stays outside the
# repository: NVIDIA's licence lets us use it, not pass it on. What is there already is kept.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# What scripts/setup.sh fetches for `make test`.
newest=2.32.3
into=${GPUWHY_NCCL_LIBS:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/nccl}
versions=()
while [ $# -gt 0 ]; do
    case $1 in
        --into) into=${2:?--into needs a folder}; shift ;;
        all) versions+=(2.27.7 2.28.9 2.29.7 2.30.7 2.31.2 "$newest") ;;
        [0-9]*) versions+=("$1") ;;
        *) echo "nccl: \`$1\` is neither a version nor \`all\` nor \`--into DIR\`" >&2; exit 2 ;;
    esac
    shift
done
[ ${#versions[@]} -gt 0 ] || versions=(2.27.7 2.30.7 "$newest")

scratch=
trap '[ -z "$scratch" ] || rm -rf "$scratch"' EXIT
for version in "${versions[@]}"; do
    if [ -f "$into/$version/libnccl.so.2" ]; then
        continue
    fi
    echo "nccl: fetching $version into $into/$version"
    mkdir -p "$into/$version"
    scratch=$(mktemp -d)
    # Only the wheel whose hash we know; another version needs its line in nccl.txt.
    grep "^nvidia-nccl-cu12==$version " "$here/nccl.txt" >"$scratch/wanted.txt" ||
        { echo "nccl: scripts/nccl.txt has no hash of version $version" >&2; exit 1; }
    python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
        --dest "$scratch" -r "$scratch/wanted.txt"
    # A wheel is a zip; under another name first, so that half a library is never taken for one.
    python3 - "$scratch" "$into/$version" <<'PYTHON'
import os, pathlib, shutil, sys, zipfile
wheel = next(pathlib.Path(sys.argv[1]).glob("*.whl"))
part = pathlib.Path(sys.argv[2]) / "libnccl.so.2.part"
with zipfile.ZipFile(wheel) as z, z.open("nvidia/nccl/lib/libnccl.so.2") as f, part.open("wb") as to:
    shutil.copyfileobj(f, to, 1 << 20)
os.replace(part, part.with_suffix(""))
PYTHON
    rm -rf "$scratch"
    scratch=
done
