//! `gpuwhy probe coverage`: programs, wheels, fat binaries and what is none of these.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn coverage(args: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy-probe"));
    command.arg("coverage").args(args).args(files).output().expect("gpuwhy-probe starts")
}

fn json(args: &[&str], files: &[&Path]) -> Value {
    let output = coverage(&[args, &["--json"]].concat(), files);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Files that `crates/gpubpf/tests/it/images.rs` tells about.
fn fatbin(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpubpf/tests/fatbin").join(name)
}

/// A library with fat binaries where nvcc puts them.
fn library(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("s.s"), folder.join("libkernels.so"));
    let text = format!(
        ".section .nv_fatbin,\"a\"\n.incbin \"{}\"\n.balign 16\n.incbin \"{}\"\n\
         .section __nv_relfatbin,\"a\"\n.incbin \"{}\"\n.section .note.GNU-stack\n",
        fatbin("zstd.fatbin").display(),
        fatbin("lineinfo.fatbin").display(),
        fatbin("family.fatbin").display(),
    );
    fs::write(&source, text).unwrap();
    let built =
        Command::new("cc").args(["-shared", "-nostdlib", "-o"]).args([&library, &source]).output();
    let built = built.expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

#[test]
fn kernels_of_a_library_are_counted_by_how_they_are_reached() {
    let folder = tempfile::tempdir().unwrap();
    let library = library(folder.path());
    let document = json(&["--kernels", "copy*"], &[&library]);
    assert_eq!(document["device"], "sm_90");
    assert_eq!(document["kernels"], 4);
    assert_eq!(document["reached"]["ptx"], 2);
    assert_eq!(document["reached"]["ptx_in_cubin"], 2);
    let file = &document["files"][0];
    assert_eq!((&file["fat_binaries"], &file["not_linked"]), (&3.into(), &2.into()));
    assert_eq!(file["list"].as_array().unwrap().len(), 2, "one in each fat binary");
    assert_eq!(file["list"][0]["readable"], "copy(float const*, float*)");
    assert_eq!(file["list"][0]["ptx"], "sm_80");
    assert_eq!(file["list"][0]["machine_code"], "sm_90a");
    assert_eq!(file["list"][0]["older_ptx"], true);

    let output = coverage(&["--device", "sm_80"], &[&library]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("4 kernels in 1 files, on sm_80\n"), "{text}");
    assert!(text.contains("       2  ptx             spliced as PTX"), "{text}");
    assert!(text.contains("       2  not for device  no image of it runs"), "{text}");
    assert!(text.contains("4 kernels in 3 fat binaries: 2 ptx, 2 not for device"), "{text}");
    assert!(text.contains("2 kernels not linked, which no driver is given"), "{text}");
}

#[test]
fn a_wheel_and_a_directory_hold_what_their_files_hold() {
    let folder = tempfile::tempdir().unwrap();
    let library = library(folder.path());
    let wheel = folder.path().join("kernels-1.0-py3-none-any.whl");
    let mut zip = zip::ZipWriter::new(fs::File::create(&wheel).unwrap());
    let how = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated);
    for (name, bytes) in [
        ("kernels/__init__.py", b"import torch".to_vec()),
        ("kernels/lib/libkernels.so", fs::read(&library).unwrap()),
        ("kernels/add.ptx", fs::read(fatbin("kernels.ptx")).unwrap()),
    ] {
        zip.start_file(name, how).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap();
    let document = json(&[], &[&wheel]);
    assert_eq!(document["kernels"], 6);
    assert_eq!(document["files_without_device_code"], 1);
    let name = document["files"][0]["file"].as_str().unwrap();
    assert!(name.ends_with("any.whl/kernels/lib/libkernels.so"), "{name}");

    // A directory is looked into; a link in it is not followed.
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::copy(fatbin("family.fatbin"), inner.join("a.fatbin")).unwrap();
    std::os::unix::fs::symlink(&library, inner.join("link.so")).unwrap();
    let document = json(&["--device", "sm_103"], &[&inner]);
    assert_eq!((&document["kernels"], &document["reached"]["ptx"]), (&2.into(), &2.into()));
}

#[test]
fn what_cannot_be_read_is_said_and_the_rest_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut.fatbin");
    let whole = fs::read(fatbin("lz4.fatbin")).unwrap();
    fs::write(&cut, &whole[..whole.len() - 100]).unwrap();
    let output = coverage(&[], &[&cut]);
    assert_eq!(output.status.code(), Some(1), "something could not be read");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("2 kernels in 1 files"), "{text}");
    assert!(
        text.contains("not read: fat binary: byte 4992: cut off: 100 bytes are missing"),
        "{text}"
    );

    // A wheel that is none, a file without device code, a file that is not there, a device that is none.
    let wheel = folder.path().join("x.whl");
    fs::write(&wheel, "years of work").unwrap();
    for (args, file, code, says) in [
        (vec![], wheel.clone(), 1, "x.whl`"),
        (vec![], folder.path().join("none"), 1, "cannot read `"),
        (vec!["--device", "h100"], wheel, 2, "`h100` is no architecture: write sm_90"),
    ] {
        let output = coverage(&args, &[&file]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(says), "{said}");
    }
    let empty = folder.path().join("notes.txt");
    fs::write(&empty, "years of work").unwrap();
    let output = coverage(&[], &[&empty]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("1 other files hold no device code"), "{text}");
}

#[test]
fn a_probe_is_put_into_the_ptx_that_a_fat_binary_holds_for_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let (counts, out) = (folder.path().join("counts"), folder.path().join("out.ptx"));
    let probe = |args: &[&Path]| {
        Command::new(env!("CARGO_BIN_EXE_gpuwhy-probe")).args(args).output().unwrap()
    };
    probe(&[Path::new("new"), &counts]);
    let built = Command::new("make").arg("-C").arg(&counts).output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let object = counts.join("probe.bpf.o");
    let splice = |kernels: &Path, device: &str| {
        probe(&[
            Path::new("splice"),
            &object,
            kernels,
            Path::new("-o"),
            &out,
            Path::new("--device"),
            Path::new(device),
        ])
    };
    for name in ["zstd.fatbin", "lz4.fatbin", "lineinfo.fatbin"] {
        let output = splice(&fatbin(name), "sm_90");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = fs::read_to_string(&out).unwrap();
        assert!(text.contains("gpuwhy_probe") && text.contains("_Z4copyPKfPf"), "{name}: {text}");
    }
    let output = splice(&fatbin("lineinfo.fatbin"), "sm_80");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("lineinfo.fatbin`: nothing in it is for sm_80; it holds sm_90"),
        "{said}"
    );
}
