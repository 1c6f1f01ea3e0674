//! Files that somebody asked for, in a folder where somebody else may place what he likes.

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gpuwhy_store::{Output, Writer, put_in_place, remove, write_file};

use crate::sim::{create, scratch};

/// An error with its causes, in one line.
fn said(error: gpuwhy_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut all: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_file_is_written_through_no_link_and_into_no_pipe() {
    let tmp = tempfile::tempdir().unwrap();
    let victim = tmp.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let place = |name: &str| tmp.path().join(name);
    symlink(&victim, place("link")).unwrap();
    symlink(place("made"), place("dangling")).unwrap();
    std::fs::create_dir(place("folder")).unwrap();
    assert!(Command::new("mkfifo").arg(place("pipe")).status().unwrap().success());
    let before = names(tmp.path());
    for (name, why) in [
        ("link", "symbolic link"),
        ("dangling", "symbolic link"),
        ("pipe", "pipe"),
        ("folder", "directory"),
    ] {
        let refused = said(write_file(place(name), b"page").unwrap_err());
        assert!(refused.contains(why) && refused.contains(name), "{refused}");
        assert!(Output::create(place(name)).is_err(), "{name}");
    }
    assert_eq!(read(&victim), "precious");
    assert_eq!(names(tmp.path()), before, "nothing is left");
    write_file("/dev/null", b"page").unwrap();
}

#[test]
fn a_file_is_replaced_whole_or_stays_as_it_was() {
    let tmp = tempfile::tempdir().unwrap();
    let (path, other) = (tmp.path().join("page.html"), tmp.path().join("other"));
    std::fs::write(&path, "old").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::hard_link(&path, &other).unwrap();
    let mut given_up = Output::create(&path).unwrap();
    given_up.write_all(b"half").unwrap();
    assert_eq!(read(&path), "old");
    drop(given_up);
    assert_eq!(names(tmp.path()), ["other", "page.html"]);
    write_file(&path, b"new").unwrap();
    assert_eq!((read(&path), read(&other)), ("new".into(), "old".into()));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    // A stream can be read from the beginning.
    let mut stream = Output::create(&path).unwrap().live().unwrap();
    stream.write_all(b"first\n").unwrap();
    assert_eq!(read(&path), "first\n");
    assert_eq!(names(tmp.path()), ["other", "page.html"]);
}

#[test]
fn a_place_that_is_swapped_for_links_while_files_are_written_leads_nowhere() {
    let tmp = tempfile::tempdir().unwrap();
    let (victim, place) = (tmp.path().join("victim"), tmp.path().join("page.html"));
    std::fs::write(&victim, "precious").unwrap();
    let (stop, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut written = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                swaps.fetch_add(usize::from(symlink(&victim, &place).is_ok()), Ordering::Relaxed);
                std::thread::yield_now();
                let _ = std::fs::remove_file(&place);
                std::thread::yield_now();
            }
        });
        for _ in 0..1_000_000 {
            if written > 200 && swaps.load(Ordering::Relaxed) > 200 {
                break;
            }
            written += usize::from(write_file(&place, b"page").is_ok());
            if let Ok(mut stream) = Output::create(&place).and_then(Output::live) {
                stream.write_all(b"page").unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(read(&victim), "precious");
    let swaps = swaps.load(Ordering::Relaxed);
    assert!(swaps > 200 && written > 200, "{swaps} swaps while {written} files were written");
}

/// A folder with a trace in it, and another user's link to it; `None` without root.
fn linked(tmp: &Path) -> Option<(PathBuf, PathBuf)> {
    let (folder, link) = (tmp.join("folder"), tmp.join("link"));
    std::fs::create_dir(&folder).unwrap();
    create(&folder.join("t")).finish().unwrap();
    symlink(&folder, &link).unwrap();
    if std::os::unix::fs::lchown(&link, Some(65_534), Some(65_534)).is_err() {
        println!("skipped: another user's link needs root to be made");
        return None;
    }
    Some((folder, link))
}

#[test]
fn root_no_file_is_written_and_no_trace_removed_through_a_link_of_another_user() {
    let tmp = tempfile::tempdir().unwrap();
    let Some((folder, link)) = linked(tmp.path()) else { return };
    let refused = |error| assert!(said(error).contains("user 65534"));
    refused(write_file(link.join("page.html"), b"page").unwrap_err());
    refused(remove(link.join("t")).unwrap_err());
    std::fs::create_dir(folder.join("t.partial")).unwrap();
    refused(put_in_place(link.join("t.partial"), link.join("u")).unwrap_err());
    assert_eq!(names(&folder), ["t", "t.partial"]);
    // Its own links root follows, as it may do for itself.
    let own = tmp.path().join("own");
    symlink(&folder, &own).unwrap();
    write_file(own.join("page.html"), b"page").unwrap();
    put_in_place(own.join("t.partial"), own.join("u")).unwrap();
    remove(own.join("t")).unwrap();
    assert_eq!(names(&folder), ["page.html", "u"]);
}

#[test]
fn removing_a_trace_removes_nothing_that_links_in_it_lead_to() {
    let tmp = tempfile::tempdir().unwrap();
    let (trace, victim) = (tmp.path().join("t"), tmp.path().join("victim"));
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("file"), "precious").unwrap();
    create(&trace).finish().unwrap();
    symlink(&victim, trace.join("folder")).unwrap();
    symlink(victim.join("file"), trace.join("file")).unwrap();
    std::fs::create_dir_all(trace.join("more/and/more")).unwrap();
    remove(&trace).unwrap();
    assert_eq!(names(tmp.path()), ["victim"]);
    assert_eq!(read(&victim.join("file")), "precious");
    // Of a link to a trace only the link goes.
    let kept = tmp.path().join("kept");
    create(&kept).finish().unwrap();
    symlink(&kept, &trace).unwrap();
    remove(&trace).unwrap();
    assert_eq!(names(tmp.path()), ["kept", "victim"]);
    Writer::open(&kept, scratch()).unwrap().finish().unwrap();
}

#[test]
fn a_trace_is_put_in_its_place_but_not_over_another() {
    let tmp = tempfile::tempdir().unwrap();
    let (made, place) = (tmp.path().join("t.partial"), tmp.path().join("t"));
    create(&made).finish().unwrap();
    create(&place).finish().unwrap();
    assert!(put_in_place(&made, &place).is_err());
    assert_eq!(names(tmp.path()), ["t", "t.partial"]);
    remove(&place).unwrap();
    put_in_place(&made, &place).unwrap();
    assert_eq!(names(tmp.path()), ["t"]);
}
