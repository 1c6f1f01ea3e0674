#!/usr/bin/env bash
# Everything that must hold before a change is kept, as `make test` and CI run it.
#
# Each stage prints its name, outcome and seconds; its output goes to target/logs/STAGE.log and is
# shown when it fails (always with V=1). All stages run even if one fails, so that one round tells
# all; only a failing set-up or fetch stops at once. The last line is a summary in libtest's words.
#
# FUZZ_SECONDS: how long each fuzz target runs (10).  TEST_THREADS: passed to the test binaries.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

logs=target/logs
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug
mkdir -p "$logs"
rm -f "$logs"/*.log
export CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never
# A cold build gains nothing from incremental files, and they are half of the target directory.
[ -n "${CI:-}" ] && export CARGO_INCREMENTAL=0
PATH=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/bin:$PATH:/usr/sbin:/sbin

failed=()
by_itself=()  # Tests that failed beside others and passed by themselves.
stages=0
began=$SECONDS

# stage NAME COMMAND...: runs the command and keeps its outcome.
stage() {
    local name=$1 start=$SECONDS log=$logs/$1.log rc
    shift
    stages=$((stages + 1))
    if [ -n "${V:-}" ]; then
        "$@" 2>&1 </dev/null | tee "$log"
        rc=${PIPESTATUS[0]}
    else
        "$@" >"$log" 2>&1 </dev/null
        rc=$?
    fi
    if [ "$rc" = 0 ]; then
        printf '[ ok ] %-12s %4d s\n' "$name" $((SECONDS - start))
    else
        printf '[FAIL] %-12s %4d s, exit %d; the end of %s:\n' "$name" $((SECONDS - start)) "$rc" "$log"
        [ -n "${V:-}" ] ||
            grep -vE '^ *(Checking|Compiling|Documenting|Downloaded|Downloading) ' "$log" | tail -n 80 | sed 's/^/    /'
        failed+=("$name")
    fi
    return "$rc"
}

# Nothing below works with a Cargo.lock that lags behind a manifest.
fetch() { cargo fetch --locked || { echo "run \`cargo metadata\` and commit Cargo.lock"; return 1; }; }

format() {
    cargo fmt --all --check -- --color never || return
    [ ! -f fuzz/Cargo.toml ] || cargo fmt --manifest-path fuzz/Cargo.toml --check -- --color never
}

# One build of everything that the later stages run, linted while it is compiled: `cargo clippy` would
# compile all dependencies a second time, the SQL engine among them. Cargo unifies features over what it
# is asked to build: asked for one package at a time, it would compile many dependencies again.
CLIPPY_DRIVER=$(rustc --print sysroot 2>/dev/null)/bin/clippy-driver
if [ -x "$CLIPPY_DRIVER" ]; then
    export CLIPPY_DRIVER RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/clippy-of-ours.sh
else
    unset RUSTC_WORKSPACE_WRAPPER
fi
build() { cargo build --workspace --all-targets --locked; }

# The promises about text (who uses whom, where unsafe code lies, what must not be here), and the
# pages that are made.
house() { GPUWHY_BIN=$built/gpuwhy "$built/gpuwhy-xtask" all; }

# No warnings of the compiler or of clippy; Cargo repeats those of what it did not have to build again.
lint() {
    [ -n "${RUSTC_WORKSPACE_WRAPPER:-}" ] || { echo "clippy is not there: rustup component add clippy"; return 1; }
    local warnings
    warnings=$(cargo build --workspace --all-targets --locked 2>&1 | grep -A 12 -E '^(warning|error)') || return 0
    echo "$warnings"
    return 1
}

# `cargo doc` would check all dependencies once more. The docs are made from what is built: those of libraries by the
# rustdoc that Cargo calls for doc tests, those of programs as they were compiled.
rustdoc() {
    RUSTDOC=$PWD/scripts/rustdoc-of-built.sh cargo test --doc --workspace --locked &&
        { [ -z "${RUSTC_WORKSPACE_WRAPPER:-}" ] || scripts/rustdoc-of-built.sh programs; }
}

deny() { cargo-deny --workspace --locked check --hide-inclusion-graph licenses bans sources; }

# The header must serve programs in C and C++ that are compiled with every warning. It makes system
# calls that strict C11 does not know, so a strict program says _GNU_SOURCE.
header() {
    local compiler flags rc=0
    while read -r compiler flags; do
        command -v "$compiler" >/dev/null || { echo "skipped: no $compiler here"; continue; }
        echo "$compiler $flags"
        # shellcheck disable=SC2086 # several flags
        echo 'int main(void) { return 0; }' |
            "$compiler" $flags -I . -include crates/wire/include/gpuwhy.h \
                -Wall -Wextra -Werror -pedantic -fsyntax-only - || rc=1
    done <<END
cc -std=gnu11 -x c
cc -std=c11 -D_GNU_SOURCE -x c
$(command -v clang clang-14 | head -n1) -std=gnu11 -x c
c++ -std=c++11 -x c++
c++ -std=gnu++20 -x c++
END
    return $rc
}

ready() { scripts/setup.sh build run test && scripts/own-target.sh; }

# What lives in other people's processes builds without std too.
bare() { cargo check --package gpuwhy-wire --no-default-features --locked; }

# The tests that judge our Perfetto files by the real trace processor skip themselves without it.
oracle() { scripts/perfetto-oracle/install.sh; }

# Every order of events in small models of what threads and processes share.
loom() { env -u RUSTC_WORKSPACE_WRAPPER scripts/loom.sh; }

tests() {
    # A test that hangs must not hold a machine for ever; no test comes near this.
    timeout --kill-after=60 3600 \
        cargo test --workspace --locked --no-fail-fast -- --show-output \
        ${TEST_THREADS:+--test-threads "$TEST_THREADS"}
}

# Tests that failed, by name.
broken_tests() { sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$logs/tests.log" | sort -u; }

# Whether the tests that failed may have another try. Those of the real kernel (`root_…`) share the machine with the
# tests beside them and with its owner; no others depend on that, and many at once are no accident.
may_try_again() {
    local broken
    broken=$(broken_tests)
    [ -n "$broken" ] && [ "$(wc -l <<<"$broken")" -le 3 ] &&
        ! grep -qvE '(^|::)root_[a-z0-9_]+$' <<<"$broken" &&
        ! grep -qE '^error: could not compile|\(signal: ' "$logs/tests.log"
}

# The tests that failed once more, each by itself.
again() {
    local broken
    mapfile -t broken < <(broken_tests)
    timeout --kill-after=60 900 \
        cargo test --workspace --locked --no-fail-fast --tests -- --exact --test-threads 1 "${broken[@]}" || return
    [ "$(grep -cE '^test .* \.\.\. ok$' "$logs/again.log")" -ge ${#broken[@]} ] || { echo "not all were found"; return 1; }
}

# A build script that always runs again costs every later command its seconds.
rebuild() {
    local out
    out=$(cargo test --workspace --locked --no-run 2>&1) || { echo "$out"; return 1; }
    if grep -q '^ *Compiling' <<<"$out"; then
        echo "a second build of unchanged sources compiled again:"
        grep '^ *Compiling' <<<"$out"
        return 1
    fi
}

fuzz() { env -u RUSTC_WORKSPACE_WRAPPER scripts/fuzz.sh "${FUZZ_SECONDS:-10}"; }

echo "make test: $(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo)," \
     "Linux $(uname -r), $(rustc --version 2>/dev/null | cut -d' ' -f1,2); logs in $logs"

# Readers of Parquet that are not ours, as scripts/setup.sh brings them.
readers=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy/readers
if stage setup ready && stage fetch fetch; then
    [ ! -x "$readers/bin/python3" ] || export GPUWHY_PYTHON=${GPUWHY_PYTHON:-$readers/bin/python3}
    stage format format
    stage deny deny
    stage header header
    stage no_std bare
    stage build build && stage house house
    stage clippy lint
    stage rustdoc rustdoc
    stage oracle oracle
    stage loom loom
    if ! stage tests tests && may_try_again && stage again again; then
        mapfile -t by_itself < <(broken_tests)
        failed=(${failed[@]/#tests/})
    fi
    stage rebuild rebuild
    stage fuzz fuzz
fi

# What the test binaries said, summed.
sum() { awk -v w="$1" '/^test result:/ {for (i = 2; i <= NF; i++) if ($i ~ "^" w) n += $(i - 1)} END {print n + 0}' "$logs/tests.log" 2>/dev/null || echo 0; }
skips() { grep -hE '^ *(skip|skipped|SKIP|SKIPPED)\b' "$logs/tests.log" 2>/dev/null; }
skipped=$(skips | sort | uniq -c)
if [ -n "$skipped" ]; then
    echo "tests that skipped themselves (count, reason):"
    echo "$skipped"
fi
# Whoever sees only the end of a long log wants to know which tests failed, and what they said first.
broken=$(awk '/^failures:$/ {on = !on; next} /^---- / {name = $2} !on {next}
    /panicked at/ {print name; left = 6; next} /^(stack backtrace|note):/ {left = 0} left-- > 0 {print "    " $0}' \
    "$logs/tests.log" 2>/dev/null | cut -c1-600)
if [ -n "$broken" ]; then
    echo "tests that failed:"
    echo "$broken"
fi
alone=${#by_itself[@]}
[ "$alone" -eq 0 ] || echo "all of them passed by themselves: ${by_itself[*]}"
# Where the time of the tests goes: programs of them that took half a minute or longer.
awk '/^ *(Running|Doc-tests) / {name = $2 " " $3 " " $4}
    /^test result:.* finished in / {if ($NF + 0 >= 30) printf "%6d s  %s\n", $NF, name}' "$logs/tests.log" 2>/dev/null |
    sort -rn | sed '1i\tests that took longest:'
outcome=ok
[ ${#failed[@]} -eq 0 ] || outcome="FAILED (${failed[*]})"
echo "test result: $outcome. $(($(sum passed) + alone)) passed; $(($(sum failed) - alone)) failed; $(sum ignored) ignored;" \
     "$(skips | wc -l) skipped for want of something; $alone passed only by themselves;" \
     "$((stages - ${#failed[@]})) of $stages stages in $((SECONDS - began)) s"
[ ${#failed[@]} -eq 0 ]
