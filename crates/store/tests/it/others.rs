//! Somebody else may rename and replace where a trace lies, or owns it.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gpuwhy_schema::*;
use gpuwhy_store::{Error, Options, Trace, Writer, validate};

use crate::sim::{Sim, create, scratch};

/// Every name beneath `path`, with what it holds and when it was changed.
fn everything(path: &Path) -> BTreeMap<String, (Vec<u8>, i64, i64)> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let meta = std::fs::symlink_metadata(entry.path()).unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        let bytes = if meta.is_file() { std::fs::read(entry.path()).unwrap() } else { Vec::new() };
        all.insert(name.clone(), (bytes, meta.mtime(), meta.mtime_nsec()));
        if meta.is_dir() {
            let below = everything(&entry.path());
            all.extend(below.into_iter().map(|(below, what)| (format!("{name}/{below}"), what)));
        }
    }
    all
}

/// A trace whose writer died after five seconds, two of them sealed.
fn abandoned(path: &Path) {
    let mut writer = create(path);
    let mut sim = Sim::new(1, "a");
    for second in 0..5 {
        writer.append(&mut sim.second()).unwrap();
        writer.flush_journal().unwrap();
        if second == 1 {
            writer.seal().unwrap();
            writer.drop_before(Ns::MIN).unwrap();
        }
    }
    drop(writer);
}

#[test]
fn a_directory_that_is_swapped_for_links_while_it_is_written_leads_nowhere() {
    let tmp = tempfile::tempdir().unwrap();
    let victim = tmp.path().join("victim");
    for folder in ["journal", "span", "state", "entity", "track"] {
        std::fs::create_dir_all(victim.join(folder)).unwrap();
        for number in 0..40 {
            for name in [format!("{number:05}.journal"), format!("{number:05}.parquet")] {
                std::fs::write(victim.join(folder).join(name), "precious").unwrap();
            }
        }
    }
    for name in ["trace.toml", "trace.toml.tmp", "lock"] {
        std::fs::write(victim.join(name), "precious").unwrap();
    }
    let before = everything(&victim);
    let (stop, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut written = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                let folder =
                    ["", "journal", "span", "state", "entity", "lock", "trace.toml"][turn % 7];
                let place = tmp.path().join("t").join(folder);
                let (place, to) = match folder {
                    "" => (tmp.path().join("t"), victim.clone()),
                    _ => (place, victim.join(folder)),
                };
                let away = tmp.path().join("away");
                if std::fs::rename(&place, &away).is_err() {
                    continue;
                }
                swaps.fetch_add(usize::from(symlink(to, &place).is_ok()), Ordering::Relaxed);
                std::thread::yield_now();
                // What the writer put there meanwhile goes; a directory may not be.
                let _ = std::fs::remove_file(&place);
                let _ = std::fs::rename(&away, &place);
                let _ = std::fs::remove_dir_all(&away);
                let _ = std::fs::remove_file(&away);
            }
        });
        for round in 0..60 {
            let options = Options { seal_bytes: 20_000, ..scratch() };
            let path = tmp.path().join("t");
            let Ok(mut writer) = Writer::create(&path, options) else {
                let _ = std::fs::remove_dir_all(&path);
                continue;
            };
            let mut sim = Sim::new(1, "a");
            for _ in 0..20 {
                // Whatever fails, fails: nothing else is promised to who is attacked.
                let _ = writer.append(&mut sim.second());
                written += usize::from(writer.flush_journal().is_ok());
                let _ = writer.seal();
            }
            let _ = writer.finish();
            let _ = Trace::open(&path).map(|trace| validate(&trace).is_valid());
            let _ = (round, std::fs::remove_dir_all(&path));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(everything(&victim), before);
    let swaps = swaps.load(Ordering::Relaxed);
    assert!(swaps > 100 && written > 20, "{swaps} swaps while {written} seconds were written");
}

/// Opens it, and finds everything there and nothing changed.
fn is_read_and_not_touched(path: &Path, why: &str) {
    let before = everything(path);
    let trace = Trace::open(path).unwrap();
    assert!(trace.recovered().not_written.as_deref().is_some_and(|w| w.contains(why)));
    assert!(!trace.is_live());
    assert_eq!(trace.rows(Ns::MIN..Ns::MAX).unwrap(), Sim::truth(1, "a", 5));
    let report = validate(&trace);
    assert!(report.is_valid(), "{report}");
    let refused = Writer::open(path, scratch()).unwrap_err();
    assert!(matches!(&refused, Error::NotOurs { why: w, .. } if w.contains(why)), "{refused}");
    assert_eq!(everything(path), before);
}

#[test]
fn a_trace_that_everybody_may_write_is_read_and_not_touched() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    abandoned(&path);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    is_read_and_not_touched(&path, "everybody may write");
}

#[test]
fn root_another_users_trace_is_read_and_not_touched() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    abandoned(&path);
    if std::os::unix::fs::lchown(&path, Some(65_534), Some(65_534)).is_err() {
        println!("skipped: giving a file to another user needs root");
        return;
    }
    let given = Command::new("chown").args(["-R", "65534:65534"]).arg(&path).status();
    assert!(given.is_ok_and(|s| s.success()));
    is_read_and_not_touched(&path, "belongs to user 65534");
}

#[test]
fn a_trace_of_others_that_is_being_written_is_live() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut writer = create(&path);
    writer.append(&mut Sim::new(1, "a").second()).unwrap();
    writer.flush_journal().unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let trace = Trace::open(&path).unwrap();
    assert!(trace.is_live() && trace.recovered().is_nothing());
}
