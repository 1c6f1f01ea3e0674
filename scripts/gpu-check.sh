#!/usr/bin/env bash
# Proves on a machine with an NVIDIA GPU what the stand-ins can only suggest, in ten minutes at most:
#
#   scripts/gpu-check.sh [--standin] [--only PART,PART]
#
# `make gpu-pack` builds target/gpu here; that folder and the working tree are all that the machine needs
# besides python3 with PyTorch. Each part has its own limit and prints one line; the result is
# bench/results/gpu.json, with the log beside it in target/gpu.log, and both are in $OUT where that is set.
# Ends with 0 only if every part ran, or could not for a reason that lies in the machine.
#
# --standin: the same parts over the stand-ins, for machines without a GPU, into target/gpu-standin.json.
# The claims that this proves are in docs/unproven.md. No setting of the GPU is touched.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export GPUWHY_CHECK_BIN=$PWD/target/gpu
name=${GPUWHY_CHECK_RESULT:-gpu}
result=bench/results/$name.json
parts=()
while [ $# -gt 0 ]; do
    case $1 in
        --standin) export GPUWHY_CHECK_STANDIN=1; result=target/$name-standin.json ;;
        --only) parts=(--only "${2:?--only needs names of parts}"); shift ;;
        *) echo "gpu-check: \`$1\` is neither --standin nor --only PART,PART" >&2; exit 2 ;;
    esac
    shift
done
if [ ! -x "$GPUWHY_CHECK_BIN/gpuwhy" ]; then
    echo "gpu-check: target/gpu is not there; \`make gpu-pack\` builds it" >&2
    exit 1
fi
# Carried libraries stand in only for those that are not here.
if ldd "$GPUWHY_CHECK_BIN/gpuwhy" | grep -q 'not found'; then
    export LD_LIBRARY_PATH=$GPUWHY_CHECK_BIN/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ "${GPUWHY_CHECK_STANDIN:-}" = 1 ]; then
    "$GPUWHY_CHECK_BIN/gpuwhy-testkit" gpu-links "$scratch/libs" "$GPUWHY_CHECK_BIN/libgpuwhy_standin.so"
    # Where nothing else speaks of a GPU, NVML is read only where it is named.
    export GPUWHY_NVML=$scratch/libs/libnvidia-ml.so.1
    export LD_LIBRARY_PATH=$scratch/libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
mkdir -p "$(dirname "$result")" target
python3 -u bench/gpu/check.py --output "$result" "${parts[@]}" 2>&1 | tee target/$name.log
code=${PIPESTATUS[0]}
if [ -n "${OUT:-}" ] && [ -d "$OUT" ]; then
    cp "$result" target/$name.log "$OUT"
fi
exit "$code"
