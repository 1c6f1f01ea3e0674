#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a bounded time: fuzz.sh [SECONDS [TARGET...]].
#
# Works with the stable toolchain: coverage comes from LLVM passes that `-C` flags switch on, and
# libFuzzer from the crate that carries its source, so neither nightly nor cargo-fuzz is needed.
# There is no address sanitizer in it: it would need a nightly compiler, and what is fuzzed is safe
# Rust. ASAN=1 builds with it all the same, by the variable that rustc has for bootstrapping.
#
# Seeds lie in fuzz/corpus/TARGET. What a run finds goes to the target directory, so that a run
# leaves no trace in the tree; what breaks is left in its artifacts/ and printed.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(trace_toml parquet_reader journal wire_record agent_socket nsys_report nsys_directory kineto_trace nccl_ras)

out=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
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

# fuzz TARGET: prints one line, or the end of its log.
fuzz() {
    local target=$1 log=$out/$1.log runs
    mkdir -p "$out/corpus/$target" "$out/artifacts/$target"
    # A gigabyte, ten seconds an input: bounded memory and time is a part of what is tested.
    if "$out/$host/release/$target" "$out/corpus/$target" "fuzz/corpus/$target" \
        -artifact_prefix="$out/artifacts/$target/" -max_total_time="$seconds" \
        -rss_limit_mb=1024 -malloc_limit_mb=1024 -timeout=10 -max_len=16384 -print_final_stats=1 \
        >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        echo "fuzz $target: nothing found in $runs runs of ${seconds} s"
    else
        printf 'fuzz %s: FAILED; the end of %s:\n%s\n' "$target" "$log" "$(tail -n 40 "$log" | sed 's/^/    /')"
        return 1
    fi
}

# One target a core.
export out host seconds
export -f fuzz
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I {} bash -c 'fuzz {}'
