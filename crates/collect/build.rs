//! Compiles each `*.bpf.c` beside its probe into an object that is embedded in the library.
//!
//! Each file is given a number, which its records and counters carry: C knows it as `PROBE`, Rust
//! finds it by the file's stem in `probe_numbers.rs`. `GPUWHY_CLANG` chooses another compiler than
//! `clang` or `clang-14`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

/// Where the probes are.
const PROBES: &str = "src/probes";
/// The object without programs from which the maps are created that all probes share.
const SHARED: &str = "src/bpf/shared.bpf.c";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = clang();
    println!("cargo:rerun-if-env-changed=GPUWHY_CLANG");
    // The whole folder, so that a new probe is noticed; compiling the few objects takes a second.
    println!("cargo:rerun-if-changed=src");

    let mut stems: Vec<String> = fs::read_dir(PROBES)
        .expect("src/probes exists")
        .map(|entry| entry.expect("src/probes can be listed").file_name())
        .filter_map(|name| Some(name.to_str()?.strip_suffix(".bpf.c")?.to_owned()))
        .collect();
    stems.sort();
    let slots = stems.len() + 1;
    let numbers = format!(
        "/// The stems of all `*.bpf.c`; the first one's number is 1.\n\
         pub(super) const STEMS: [&str; {}] = {stems:?};\n\
         /// One more than the largest number.\n\
         pub(super) const PROBE_SLOTS: usize = {slots};\n",
        stems.len()
    );
    fs::write(out.join("probe_numbers.rs"), numbers).expect("OUT_DIR can be written");

    build(Path::new(SHARED), &out.join("shared.bpf.o"), &clang, 0, slots);
    for (stem, number) in stems.iter().zip(1..) {
        let source = Path::new(PROBES).join(format!("{stem}.bpf.c"));
        build(&source, &out.join(format!("{stem}.bpf.o")), &clang, number, slots);
    }
}

fn build(source: &Path, object: &Path, clang: &Path, number: usize, slots: usize) {
    let mut args: Vec<OsString> =
        ["-Isrc/bpf", "-mcpu=v3", "-Wall", "-Werror"].into_iter().map(OsString::from).collect();
    args.push(format!("-DPROBE={number}").into());
    args.push(format!("-DPROBE_SLOTS={slots}").into());
    // `linux/bpf.h` includes `asm/types.h`, which Debian keeps in the folder of the architecture.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_else(|_| "x86_64".into());
    args.push("-idirafter".into());
    args.push(format!("/usr/include/{arch}-linux-gnu").into());
    if let Err(error) =
        SkeletonBuilder::new().source(source).obj(object).clang(clang).clang_args(args).build()
    {
        panic!(
            "cannot compile `{}` with `{}`: {error:?}\n\
             clang 14 or newer is needed: apt-get install clang-14 libelf-dev zlib1g-dev",
            source.display(),
            clang.display()
        );
    }
}

/// The first compiler that runs.
fn clang() -> PathBuf {
    if let Some(path) = env::var_os("GPUWHY_CLANG") {
        return path.into();
    }
    ["clang", "clang-14", "clang-16", "clang-19"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()))
        .unwrap_or("clang-14")
        .into()
}
