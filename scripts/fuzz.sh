#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a bounded time: fuzz.sh [SECONDS [TARGET...]].
#
# Works with the stable toolchain: coverage comes from LLVM passes that `-C` flags switch on, and
# libFuzzer from the crate that carries its source, so neither nightly nor cargo-fuzz is needed.
# There is no address sanitizer in it: it would need a nightly compiler, and what is fuzzed is safe
# Rust. ASAN=1 builds with it all the same, by the variable that rustc has for bootstrapping.
#
# Targets are the programs of fuzz/Cargo.toml. Seeds lie in fuzz/corpus/TARGET. What a run finds goes to
# ~/.cache/gpuwhy/fuzz-corpus, so that the next run begins where this one ended and a run leaves no
# trace in the tree; what breaks is left in the target directory's artifacts/ and printed.
#
# FUZZ_IDLE=1    runs when nobody else wants the processor (SCHED_IDLE)
# FUZZ_JOBS=N    so many targets at a time; by default one a processor
# FUZZ_LEDGER=1  adds what was done to bench/results/fuzz.json (`make bench-fuzz`)
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    mapfile -t targets < <(sed -n '/^\[\[bin\]\]/,$ s/^name = "\(.*\)"$/\1/p' fuzz/Cargo.toml | grep -vx seeds)
fi

out=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
found=${cache:+$cache/gpuwhy/fuzz-corpus}
found=${found:-$out/corpus}
host=$(rustc -vV | sed -n 's/^host: //p')
flags=(
    --cfg fuzzing
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
    -Ccodegen-units=16
)
if [ -n "${ASAN:-}" ]; then
    export RUSTC_BOOTSTRAP=1 ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
    flags+=(-Zsanitizer=address)
    out=$out-asan
fi

# --target keeps the flags away from build scripts.
RUSTFLAGS="${flags[*]}" cargo build --quiet --locked --release --manifest-path fuzz/Cargo.toml \
    --target "$host" --target-dir "$out" "${targets[@]/#/--bin=}"

idle=()
[ -z "${FUZZ_IDLE:-}" ] || idle=(chrt --idle 0)

# fuzz TARGET: prints one line, or the end of its log.
fuzz() {
    local target=$1 log=$out/$1.log runs cpu failed=
    local program=$out/$host/release/$target TIMEFORMAT='%U %S'
    # A gigabyte, ten seconds an input: bounded memory and time is a part of what is tested. The seconds are the clock's,
    # which goes on while others have the processor.
    local limits=(-rss_limit_mb=1024 -malloc_limit_mb=1024 -timeout="${FUZZ_IDLE:+30}10" -max_len=16384
        -artifact_prefix="$out/artifacts/$target/")
    mkdir -p "$found/$target" "$out/artifacts/$target"
    cpu=$({ time $idle "$program" "$found/$target" "fuzz/corpus/$target" "${limits[@]}" \
        -max_total_time="$seconds" -print_final_stats=1 >"$log" 2>&1; } 2>&1) || failed=$?
    if [ -z "$failed" ]; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        echo "fuzz $target: nothing found in $runs runs of ${seconds} s"
    else
        printf 'fuzz %s: FAILED; the end of %s:\n%s\n' "$target" "$log" "$(tail -n 40 "$log" | sed 's/^/    /')"
    fi
    if [ -n "${FUZZ_LEDGER:-}" ]; then
        # How long each input of the corpus takes by itself: libFuzzer counts whole seconds only.
        find "$found/$target" "fuzz/corpus/$target" -type f -print0 |
            xargs -0 $idle "$program" "${limits[@]}" -runs=1 >"$log.times" 2>&1 || failed=1
        # Who was killed from outside (INT, KILL, TERM) has found nothing.
        case ${failed:-0} in 0 | 130 | 137 | 143) found_some=0 ;; *) found_some=1 ;; esac
        python3 bench/fuzz.py "$target" "$log" "$log.times" "$cpu" "$found_some"
    fi
    [ -z "$failed" ]
}

# Arrays are not exported.
idle=${idle[*]:-}
export out host seconds found idle
export -f fuzz
printf '%s\n' "${targets[@]}" | xargs -P "${FUZZ_JOBS:-$(nproc)}" -I {} bash -c 'fuzz {}'
