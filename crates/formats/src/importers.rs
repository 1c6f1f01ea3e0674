//! The importers, one line each.
//!
//! An importer is a folder beside this file whose `mod.rs` implements [`Importer`]; nothing outside of
//! its folder and this list knows it by name.

use std::path::{Path, PathBuf};

use crate::importer::{Candidate, GpuWork, Importer};
use crate::{Error, Result, ctf, ftracetext, kineto, nsys, perfdata, pftrace, signature, tracedat};

/// Every importer. The first that recognises a file reads it.
pub const ALL: &[&dyn Importer] =
    // Text is looked at last: it has no signature.
    &[
        &nsys::Nsys,
        &kineto::Kineto,
        &ctf::Ctf,
        &tracedat::TraceDat,
        &perfdata::PerfData,
        &pftrace::Pftrace,
        &ftracetext::FtraceText,
    ];

/// The importer that recognises the file or directory at `path`, if there is one.
///
/// # Errors
/// It cannot be opened or read.
pub fn recognise(path: &Path) -> Result<Option<&'static dyn Importer>> {
    Ok(importer_of(&Candidate::read(path)?))
}

fn importer_of(candidate: &Candidate) -> Option<&'static dyn Importer> {
    ALL.iter().find(|importer| importer.recognise(candidate)).copied()
}

/// The importer that recognises all these files.
///
/// # Errors
/// A file cannot be read, no importer recognises it, or two files are of different formats.
pub fn find(paths: &[PathBuf]) -> Result<&'static dyn Importer> {
    let mut first: Option<(&'static dyn Importer, &Path)> = None;
    for path in paths {
        let candidate = Candidate::read(path)?;
        let Some(importer) = importer_of(&candidate) else {
            let looks = signature::describe(&candidate);
            return Err(Error::Unknown { path: path.clone(), looks, known: known() });
        };
        let (of_first, first_path) = *first.get_or_insert((importer, path));
        if of_first.name() != importer.name() {
            return Err(Error::Mixed {
                first: first_path.into(),
                first_format: of_first.name(),
                other: path.clone(),
                other_format: importer.name(),
            });
        }
    }
    first.map(|(importer, _)| importer).ok_or(Error::NoFiles)
}

/// Opens the files for an overview of what GPUs did, without importing them.
///
/// # Errors
/// As [`find`]; the files cannot be read; or their format must be imported first.
pub fn open_work(paths: &[PathBuf]) -> Result<Vec<Box<dyn GpuWork>>> {
    let importer = find(paths)?;
    importer
        .open_work(paths)?
        .ok_or_else(|| Error::ImportFirst { path: paths[0].clone(), format: importer.name() })
}

/// The names of all formats with the files that they come in, for help texts and errors.
pub fn known() -> String {
    let one = |importer: &&dyn Importer| format!("{} ({})", importer.name(), importer.describes());
    ALL.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::Write as _;

    use super::*;
    use crate::importer::Options;
    use crate::sqlite::build::Builder;

    #[test]
    fn every_importer_has_its_own_name_and_says_which_files_it_reads() {
        let names: HashSet<&str> = ALL.iter().map(|importer| importer.name()).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(ALL.iter().all(|importer| !importer.describes().is_empty()));
    }

    /// The name of the importer of a file with this name and content, or the error.
    fn found(name: &str, content: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        match find(std::slice::from_ref(&path)) {
            Ok(importer) => importer.name().into(),
            Err(e) => e.to_string().replace(&*path.to_string_lossy(), name),
        }
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn formats_are_recognised_by_their_content_not_by_their_names() {
        assert_eq!(found("trace.bin", b" [{\"ph\": \"X\"}]"), "PyTorch profiler");
        assert_eq!(found("trace.bin", b"{\"a\": 1, \"traceEvents\": []}"), "PyTorch profiler");
        assert_eq!(found("trace", &gzip(b"{\"traceEvents\": []}")), "PyTorch profiler");
        // The events may come after much else.
        let late = format!("{{\"a\": \"{}\", \"traceEvents\": []}}", "x".repeat(100_000));
        assert_eq!(found("late", late.as_bytes()), "PyTorch profiler");
        assert_eq!(found("late", &gzip(late.as_bytes())), "PyTorch profiler");
        // Damaged files are recognised: their importer says where the damage is.
        assert_eq!(found("cut.json", b"{\"traceEvents\": [{\"ph\""), "PyTorch profiler");
        assert_eq!(found("cut.sqlite", b"SQLite format 3\0 and no more"), "Nsight Systems");
        // A report that is to be exported first.
        assert_eq!(found("run.nsys-rep", b"\0\x01\x02"), "Nsight Systems");
    }

    #[test]
    fn unknown_files_are_refused_with_what_they_look_like_and_what_is_known() {
        let error = found("trace.bin", b"\x7fELF\x02\x01\x01\0");
        assert_eq!(
            error,
            format!(
                "cannot import `trace.bin`: none of the known formats; it begins with 7f 45 4c 46 02 \
                 01 01 00 (an ELF program or library). Known: {}",
                known()
            )
        );
        let looks = |content: &[u8]| {
            let error = found("x", content);
            let from = error.find("formats; ").unwrap() + "formats; ".len();
            error[from..error.find(". Known: ").unwrap()].to_owned()
        };
        assert_eq!(looks(b""), "it is empty (0 bytes)");
        assert_eq!(looks(b"hello\nworld"), "it begins with \"hello\"");
        assert_eq!(
            looks(b"{\"nodes\": []}"),
            "it begins with \"{\\\"nodes\\\": []}\" (JSON, but without `traceEvents`)"
        );
        assert!(looks(b"[1, 2]").ends_with("(JSON, but without `traceEvents`)"));
        assert!(looks(b"PK\x03\x04\x14\0").contains("50 4b 03 04 14 00 (zip: unpack it first)"));
        assert!(looks(b"PAR1\x15\0\x15").contains("one table in Parquet"));
        assert!(looks(&gzip(b"hello")).ends_with("(gzip of \"hello\": unpack it first)"));
        let pprof = looks(&gzip(b"\x0a\x04\x08\x01\x10\x02"));
        assert!(pprof.contains("(gzip of 0a 04 08 01 10 02, perhaps a pprof profile"), "{pprof}");
        let lfs = looks(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
        assert!(lfs.contains("`git lfs pull`"), "{lfs}");
    }

    #[test]
    fn a_database_of_something_else_is_refused_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sqlite");
        let mut builder = Builder::create(&path).unwrap();
        builder.table_of("t", "CREATE TABLE t (a)", &[]).unwrap();
        builder.finish().unwrap();
        let error = find(&[path]).err().unwrap().to_string();
        assert!(error.contains("(an SQLite database of another schema)"), "{error}");
    }

    #[test]
    fn a_directory_of_something_else_is_refused_with_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let looks = || find(&[dir.path().into()]).err().unwrap().to_string();
        assert!(looks().contains("it is an empty directory"), "{}", looks());
        std::fs::write(dir.path().join("b.txt"), "").unwrap();
        std::fs::write(dir.path().join("a.txt"), "").unwrap();
        assert!(looks().contains("it is a directory with a.txt, b.txt;"), "{}", looks());
    }

    #[test]
    fn files_of_two_formats_are_refused_and_both_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (json, report) = (dir.path().join("a.json"), dir.path().join("b.nsys-rep"));
        std::fs::write(&json, "[]").unwrap();
        std::fs::write(&report, "").unwrap();
        let error = find(&[json.clone(), report.clone()]).err().unwrap().to_string();
        assert!(error.contains("a.json` (PyTorch profiler)"), "{error}");
        assert!(error.contains("b.nsys-rep` (Nsight Systems)"), "{error}");
        // A report of Nsight Systems is refused with how to export it.
        let options = Options { threads: 1 };
        let reports = [report];
        let error = find(&reports).unwrap().open(&reports, &options).err().unwrap();
        assert!(error.to_string().contains("nsys export -t sqlite"), "{error}");
        // An overview of a format that must be imported first.
        let error = open_work(&[json]).err().unwrap().to_string();
        assert!(error.contains("gpuwhy import"), "{error}");
    }
}
