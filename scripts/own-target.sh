#!/usr/bin/env bash
# Makes what cargo has built in CARGO_TARGET_DIR this clone's own, before something is built there.
#
# One target directory serves all clones of a user (Makefile). Cargo calls the crates of two clones by the same names, and
# tells by the times of files whether something is built: what another clone has built after a file of ours was changed would be
# taken for ours. So whoever builds after another clone looks at its own files as changed now.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-}
[ -n "$target" ] || exit 0
owner=$target/.clone
if ! [ -d "$target" ]; then
    # Nothing is built there yet, and what will be is ours.
    mkdir -p "$target"
    echo "$PWD" >"$owner"
    exit 0
fi
[ "$(cat "$owner" 2>/dev/null)" != "$PWD" ] || exit 0
find crates fuzz -type f -not -path '*/target/*' -exec touch {} +
# Whose it is, is known to be nobody's while it is not written: then all of it is built anew.
echo "$PWD" >"$owner" 2>/dev/null || echo "own-target: $owner cannot be written" >&2
