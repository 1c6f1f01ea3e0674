#!/usr/bin/env bash
# What the compiler of device probes was tested with: the files of bpf_conformance, random programs (PROGRAMS of them in
# the simulator, ASSEMBLED by NVIDIA's assembler), planted mistakes, and real kernels in the simulator, as they are and with
# a probe. Adds its figures to bench/results/probes.json. A million programs take half an hour of two cores.
#
#   GPUWHY_TRACES=FOLDER bench/conformance.sh      # the folder holds device/bpf_conformance
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${PROGRAMS:-1000000} assembled=${ASSEMBLED:-10000} seed=${SEED:-1} jobs=${JOBS:-$(nproc)}
: "${GPUWHY_TRACES:?names the folder that holds device/bpf_conformance}"
scripts/ptxas.sh >/dev/null
# What takes half an hour must not lack at its end what is fetched in a minute.
[ -e "${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/kernels" ] || scripts/kernels.sh
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
build=(cargo test --quiet --locked --release --package gpuwhy-gpubpf --test it)
"${build[@]}" --no-run
tests=$("${build[@]}" --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*\/it-[0-9a-f]*\)".*/\1/p' | head -1)
cd crates/gpubpf
one() { "$@" --nocapture >"$said/out" 2>&1 || { tail -n 40 "$said/out" >&2; exit 1; }; cat "$said/out" >>"$said/all"; }
one "$tests" conformance::
one "$tests" warps::every_vector
one "$tests" warps::mistakes
one "$tests" kernels::every_kernel
GPUWHY_ASSEMBLED=$assembled one "$tests" differential::ptxas
pids=()
for job in $(seq "$jobs"); do
    GPUWHY_PROGRAMS=$((programs / jobs)) GPUWHY_SEED=$((seed * 1000 + job)) \
        "$tests" warps::random_programs --nocapture >"$said/job$job" 2>&1 &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || { tail -n 20 "$said"/job* >&2; exit 1; }; done
cat "$said"/job* >>"$said/all"
cd ../..
python3 bench/conformance.py "${1:--}" "$said/all" \
    "PROGRAMS=$programs ASSEMBLED=$assembled SEED=$seed make bench-conformance"
