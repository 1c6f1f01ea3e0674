//! Compiles each `*.bpf.c` beside its probe into an object that is embedded in the library.
//!
//! `GPUWHY_CLANG` chooses another compiler than `clang` or `clang-14`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = clang();
    println!("cargo:rerun-if-env-changed=GPUWHY_CLANG");
    // All of it, so that a new probe is seen; compiling the few objects takes a second.
    println!("cargo:rerun-if-changed=src");

    let mut sources: Vec<PathBuf> = fs::read_dir("src")
        .expect("src is there")
        .map(|entry| entry.expect("src can be listed").path())
        .filter(|path| path.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    sources.sort();
    for source in sources {
        let stem = source.file_name().expect("it has a name").to_string_lossy();
        let stem = stem.trim_end_matches(".bpf.c").to_owned();
        build(&source, &out.join(format!("{stem}.bpf.o")), &clang);
    }
}

fn build(source: &Path, object: &Path, clang: &Path) {
    let mut args: Vec<OsString> =
        ["-Isrc/bpf", "-mcpu=v3", "-Wall", "-Werror"].into_iter().map(OsString::from).collect();
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

/// The first compiler that answers.
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
