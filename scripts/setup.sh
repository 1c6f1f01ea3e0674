#!/usr/bin/env bash
# Installs what this machine lacks, and nothing that it has.
#
#   scripts/setup.sh [build] [run] [test] [bench] [pictures] [mutants]
#
# build: what `cargo build` needs.  run: what `gpuwhy demo` and `gpuwhy inject` call.
# test: what `make test` needs besides.  bench: load generators of `make bench-*`.
# pictures: the browser of `make pictures`.  mutants: the tool of `make bench-mutants`.
# Without arguments: build and run. When all is there it takes no package manager and no root.
set -euo pipefail

# Versions of tools; what they check should not change by itself.
DENY_VERSION=0.20.2
MUTANTS_VERSION=27.1.0
# Where tools lie that are built once and serve every clone.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpuwhy
# The repository's own `rust-version`.
rust_needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")

profiles=${*:-build run}
missing=()      # Debian packages to install.
complaints=()   # What no package can mend.

have() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }
# need COMMAND PACKAGE: the command comes with the package.
need() { have "$1" || missing+=("$2"); }
# need_header NAME PACKAGE: a header that the C compiler finds.
need_header() {
    if have cc; then
        echo "#include <$1>" | cc -E -x c - >/dev/null 2>&1 || missing+=("$2")
    else
        missing+=("$2")
    fi
}

check_build() {
    if ! have cargo || ! have rustc; then
        complaints+=("cargo is not there: install Rust $rust_needed or later (rustup.rs, or your distribution)")
    else
        local rust
        rust=$(rustc --version | cut -d' ' -f2)
        if [ "$(printf '%s\n%s\n' "$rust_needed" "$rust" | sort -V | head -n1)" != "$rust_needed" ]; then
            complaints+=("rustc is $rust, gpuwhy needs $rust_needed or later: rustup update")
        fi
    fi
    # libbpf is built from the source that its crate carries: make, a C compiler, libelf and zlib.
    need cc gcc
    need_header stdlib.h libc6-dev
    need make make
    need pkg-config pkg-config
    need_header gelf.h libelf-dev
    need_header zlib.h zlib1g-dev
    # The BPF programs are compiled by clang; 14 is the oldest that we try.
    local clang=
    for c in clang clang-14 clang-15 clang-16 clang-17 clang-18 clang-19 clang-20 clang-21 clang-22; do
        have "$c" && clang=$c && break
    done
    [ -n "$clang" ] || missing+=(clang)
    need git git
}

check_run() {
    # Network namespaces, veth pairs and shapers of the demo workload.
    need ip iproute2
    need tc iproute2
}

check_test() {
    # The Perfetto oracle is a WebAssembly module from npm, driven by node.
    need c++ g++
    need node nodejs
    need npm npm
    # Read CTF and trace.dat as oracles of ours.
    need babeltrace2 babeltrace2
    need trace-cmd trace-cmd
    need setpriv util-linux
    need setcap libcap2-bin
    need python3 python3
    # Readers of Parquet and the newest libnccl come from PyPI.
    python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
}

check_bench() {
    need fio fio
    need iperf3 iperf3
    need stress-ng stress-ng
    # Ubuntu ships perf with the kernel's tools.
    need perf "$(grep -qs '^ID=ubuntu' /etc/os-release && echo linux-tools-generic || echo linux-perf)"
    need redis-server redis-server
    need redis-benchmark redis-tools
    # Lets system calls of the recorder fail: bench safety --only fate,disk.
    need strace strace
    # What `make bench-kernel-traces` compares with, besides perf.
    need babeltrace2 babeltrace2
    need trace-cmd trace-cmd
}

check_pictures() {
    have chromium-browser || have google-chrome || need chromium chromium
}

# Says how to become able to install, and stops, where that cannot be done from here.
install_packages() {
    local as_root=()
    if ! have apt-get; then
        echo "setup: this machine lacks ${missing[*]} (names of Debian packages) and has no" \
             "apt-get; install them in its own way and run this again" >&2
        return 1
    fi
    local install="apt-get install -y --no-install-recommends ${missing[*]}"
    if [ "$(id -u)" != 0 ]; then
        if have sudo; then
            as_root=(sudo)
        else
            echo "setup: not root and no sudo; as root, run: apt-get update && $install" >&2
            return 1
        fi
    fi
    echo "setup: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get
               -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -qq)
    # A bare image has no package lists, an old one has lists of packages that are gone.
    "${apt[@]}" update
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

# install_tool NAME VERSION: a cargo command that is built once. Without optimisation: it works for a second,
# or waits for cargo.
install_tool() {
    local tool=$1 version=$2 build
    if [ "$("$cache/bin/$tool" --version 2>/dev/null)" = "$tool $version" ] ||
       [ "$("$tool" --version 2>/dev/null)" = "$tool $version" ]; then
        return 0
    fi
    echo "setup: building $tool $version into $cache/bin (a minute or two, once)"
    build=$(mktemp -d)
    if ! CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
         CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_TARGET_DIR=$build \
         cargo install --quiet --locked --root "$cache" "$tool@$version"; then
        rm -rf "$build"
        echo "setup: cannot build $tool $version; what needs it will fail" >&2
        return 1
    fi
    rm -rf "$build"
}

# DuckDB, pandas and pyarrow, which must read what gpuwhy writes, in an environment of their own; and the
# newest libnccl that the tests of the NCCL plug-in know. Their tests skip themselves without, so what
# cannot be fetched is no failure here.
readers=$cache/readers
nccl_newest=$(sed -n 's/^newest=//p' "$(dirname "$0")/nccl.sh")
install_readers() {
    "$readers/bin/python3" -c 'import duckdb, pandas, pyarrow' 2>/dev/null && return
    echo "setup: installing DuckDB, pandas and pyarrow into $readers (once)"
    rm -rf "$readers"
    python3 -m venv "$readers" &&
        "$readers/bin/python3" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
            --require-hashes -r "$(dirname "$0")/readers.txt" ||
        { rm -rf "$readers"; echo "setup: could not install them; three tests will skip themselves" >&2; }
}
install_nccl() {
    PATH=$readers/bin:$PATH "$(dirname "$0")/nccl.sh" "$nccl_newest" ||
        echo "setup: could not fetch libnccl $nccl_newest; tests of the NCCL plug-in will skip themselves" >&2
}
# The assembler by which tests see what probes cost.
install_ptxas() {
    PATH=$readers/bin:$PATH "$(dirname "$0")/ptxas.sh" >/dev/null ||
        echo "setup: could not fetch ptxas; tests of device probes will skip a part" >&2
}
# Its Sanitizer, with whose headers tests compare ours.
install_sanitizer() {
    PATH=$readers/bin:$PATH "$(dirname "$0")/sanitizer.sh" >/dev/null ||
        echo "setup: could not fetch NVIDIA's Sanitizer; two tests of machine code will skip themselves" >&2
}

for profile in $profiles; do
    case $profile in
        build|run|test|bench|pictures) "check_$profile" ;;
        mutants) ;;
        *) echo "setup: \`$profile\` is none of build, run, test, bench, pictures, mutants" >&2; exit 2 ;;
    esac
done

if [ ${#missing[@]} -gt 0 ]; then
    # One package may bring several commands.
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    install_packages
fi
for complaint in "${complaints[@]}"; do
    echo "setup: $complaint" >&2
done
[ ${#complaints[@]} -eq 0 ] || exit 1
case " $profiles " in
    *" test "*) install_readers; install_nccl; install_ptxas; install_sanitizer; install_tool cargo-deny "$DENY_VERSION" ;;
esac
case " $profiles " in
    *" mutants "*) install_tool cargo-mutants "$MUTANTS_VERSION" ;;
esac
