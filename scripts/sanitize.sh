#!/usr/bin/env bash
# What lives in other people's processes, under AddressSanitizer and ThreadSanitizer: the tests of
# `wire` and `inject`, whole programs that our object was loaded into and that are killed
# (crates/inject/tests/kills.rs), and the C client under the C compiler's own sanitizers.
#
#   scripts/sanitize.sh [address|thread|c|all]
#
# Needs a nightly toolchain (sanitizers are not stable) and a C compiler; one line says what ran.
# std comes compiled and is not instrumented: what only that makes a sanitizer say is in
# scripts/sanitize-*.supp, a reason a line. Miri is not used: where it is to be had, it knows neither
# shared mappings nor sockets, so it could run no more than the unit tests of the ring; those loom
# runs in every order (scripts/loom.sh).
#
# SANITIZE_KILLS: how many programs are killed under each (24).
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
host=$(rustc -vV | sed -n 's/^host: //p')
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/sanitize
supp=$PWD/scripts/sanitize
mkdir -p "$out"
failed=0

cargo +nightly --version >/dev/null 2>&1 || {
    echo "skipped: no nightly toolchain here; \`rustup toolchain install nightly\`"
    exit 0
}
cargo +nightly miri --version >/dev/null 2>&1 ||
    echo "miri: not on this machine; what it would check of the ring, loom does (scripts/loom.sh)"

# rust NAME OPTIONS: tests under one sanitizer. Reports of any process go to files, also of those
# that are killed or whose exit status nobody asks for.
rust() {
    local name=$1 log=$out/$1.log reports=$out/$1-reports rc=0
    rm -rf "$reports"
    mkdir -p "$reports"
    local options="log_path=$reports/report:exitcode=66:handle_segv=0:handle_abort=0:$2"
    # Its own variable alone: the C programs of the tests have other sanitizers.
    local variable=ASAN_OPTIONS
    [ "$name" = address ] || variable=TSAN_OPTIONS
    # --target keeps the flags away from build scripts and procedural macros.
    env "$variable=$options" LSAN_OPTIONS="suppressions=$supp-leaks.supp:print_suppressions=0" \
        RUSTFLAGS="-Zsanitizer=$name -Cunsafe-allow-abi-mismatch=sanitizer -Clink-arg=-rdynamic" \
        GPUWHY_SANITIZED="$name" GPUWHY_KILLS="${SANITIZE_KILLS:-24}" RUST_BACKTRACE=0 \
        cargo +nightly test --locked --no-fail-fast --target "$host" --target-dir "$out/$name" \
        --package gpuwhy-wire --package gpuwhy-inject --lib --tests -- --test-threads 1 >"$log" 2>&1 || rc=$?
    local passed kills found
    passed=$(awk '/^test result:/ {n += $4} END {print n + 0}' "$log")
    kills=$(sed -n 's/^programs killed at random moments ... ok: {"kills":\([0-9]*\).*/\1/p' "$log")
    found=$({ grep -rlE '^(==[0-9]+==ERROR|WARNING): ' "$reports" || true; } | wc -l)
    if [ "$rc" = 0 ] && [ "$found" = 0 ]; then
        echo "$name: nothing found; $passed tests of wire and inject, $kills programs killed, 3 ways of a collector to go"
    else
        failed=1
        echo "$name: FAILED, exit $rc, $found reports in $reports; the end of $log:"
        tail -n 15 "$log" | sed 's/^/    /'
        grep -rh SUMMARY "$reports" | sort | uniq -c | sed 's/^/    /'
    fi
}

# The C client; the test tries each compiler and sanitizer that is here, also in `make test`.
c() {
    local log=$out/c.log
    if cargo test --locked --package gpuwhy-wire --test it -- --nocapture under_sanitizers \
        >"$log" 2>&1; then
        sed -nE 's/^((gcc|clang|clang-14) -fsanitize=.*|skipped: .*)/c: \1/p' "$log"
    else
        failed=1
        echo "c: FAILED; the end of $log:"
        tail -n 30 "$log" | sed 's/^/    /'
    fi
}

case $what in
address) rust address detect_leaks=1 ;;
thread) rust thread "suppressions=$supp-races.supp:die_after_fork=0:report_thread_leaks=0" ;;
c) c ;;
all)
    rust address detect_leaks=1
    rust thread "suppressions=$supp-races.supp:die_after_fork=0:report_thread_leaks=0"
    c
    ;;
*)
    echo "usage: scripts/sanitize.sh [address|thread|c|all]" >&2
    exit 2
    ;;
esac
exit $failed
