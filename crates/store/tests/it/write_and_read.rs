//! A trace is written, second by second, and read.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use gpuwhy_schema::*;
use gpuwhy_store::{Error, Options, ThreadBegins, Trace, Writer};

use crate::sim::{Sim, create, scratch};

const ALL: std::ops::Range<Ns> = Ns::MIN..Ns::MAX;

fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        text += &format!(": {e}");
        source = e.source();
    }
    text
}

#[test]
fn what_was_appended_is_read_however_it_was_cut_into_segments() {
    let tmp = tempfile::tempdir().unwrap();
    for (name, seal_every) in [("one", 100), ("some", 3), ("many", 1)] {
        let path = tmp.path().join(name);
        let mut writer = create(&path);
        let mut sim = Sim::new(1, "a");
        for second in 0..10 {
            writer.append(&mut sim.second()).unwrap();
            writer.flush_journal().unwrap();
            if second % seal_every == seal_every - 1 {
                writer.seal().unwrap();
            }
        }
        writer.finish().unwrap();
        let trace = Trace::open(&path).unwrap();
        assert!(trace.recovered().is_nothing());
        assert!(trace.manifest().complete);
        assert_eq!(trace.manifest().hosts, ["a"]);
        assert_eq!(trace.manifest().shards, [1]);
        assert_eq!(trace.rows(ALL).unwrap(), Sim::truth(1, "a", 10), "{name}");
    }
}

#[test]
fn a_range_gets_what_overlaps_it_and_what_hangs_on_that() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut writer = create(&path);
    let mut sim = Sim::new(1, "a");
    for _ in 0..10 {
        writer.append(&mut sim.second()).unwrap();
        writer.seal().unwrap();
    }
    writer.finish().unwrap();
    let trace = Trace::open(&path).unwrap();
    // 25 ms into the first step of second 5, in the middle of its reclaim.
    let at = Ns::secs(5) + Ns::millis(25);
    let rows = trace.rows(at..at + Ns(1)).unwrap();
    let names: Vec<_> = rows.span.iter().map(|s| &*s.name).collect();
    assert_eq!(names, ["step", "direct_reclaim"]);
    assert_eq!(rows.step.len(), 1, "the detail lies at the step's start, before the range");
    assert_eq!(rows.step[0].seq, 50);
    assert_eq!(rows.part.len(), 3);
    assert_eq!(rows.attr.len(), 1);
    assert_eq!(rows.state.len(), 1);
    assert_eq!(rows.state[0].value, ThreadState::Running.code());
    assert_eq!(rows.wakeup.len(), 0);
    assert_eq!(rows.entity.len(), 5, "lanes come whole");
}

#[test]
fn what_held_at_t_is_known_from_its_segment_and_the_head_of_it() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut writer = create(&path);
    let mut sim = Sim::new(1, "a");
    for _ in 0..10 {
        writer.append(&mut sim.second()).unwrap();
        writer.seal().unwrap();
    }
    writer.finish().unwrap();
    let trace = Trace::open(&path).unwrap();
    let truth = Sim::truth(1, "a", 10);
    for ms in (0..10_000).step_by(5) {
        let t = Ns::millis(ms) + Ns(1);
        let held: Vec<_> =
            truth.state.iter().filter(|s| s.ts <= t && s.end() > Some(t)).cloned().collect();
        let read: Vec<State> = trace.read::<State>(t..t + Ns(1)).flat_map(Result::unwrap).collect();
        assert_eq!(read, held, "at {t}");
    }
    // A file of an early segment is not even opened for a late time.
    std::fs::remove_file(path.join("state/00003.parquet")).unwrap();
    let t = Ns::millis(8_001);
    assert_eq!(trace.read::<State>(t..t + Ns(1)).flat_map(Result::unwrap).count(), 1);
    let early = trace.read::<State>(Ns::secs(3)..Ns::secs(4)).find_map(Result::err).unwrap();
    assert!(matches!(early, Error::Io { .. }), "{early}");
}

#[test]
fn a_trace_is_read_while_it_is_written() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut writer = create(&path);
    let mut sim = Sim::new(1, "a");
    for second in 1..=6 {
        writer.append(&mut sim.second()).unwrap();
        writer.flush_journal().unwrap();
        if second == 3 {
            writer.seal().unwrap();
        }
        let trace = Trace::open(&path).unwrap();
        assert!(trace.is_live());
        let mut rows = trace.rows(ALL).unwrap();
        let mut truth = Sim::truth(1, "a", second);
        // What was updated later stands where it was first told.
        rows.source.clear();
        truth.source.clear();
        assert_eq!(rows, truth, "after {second} s");
    }
    let busy = Writer::open(&path, scratch()).unwrap_err();
    assert!(matches!(busy, Error::Busy { .. }), "{busy}");
    writer.finish().unwrap();
}

#[test]
fn a_finished_trace_is_gone_on_with() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut sim = Sim::new(1, "a");
    for part in 0..4 {
        let mut writer = match part {
            0 => create(&path),
            _ => Writer::open(&path, scratch()).unwrap(),
        };
        writer.append(&mut sim.second()).unwrap();
        writer.finish().unwrap();
    }
    assert_eq!(Trace::open(&path).unwrap().rows(ALL).unwrap(), Sim::truth(1, "a", 4));
}

#[test]
fn conclusions_are_replaced_without_touching_what_was_seen() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut writer = create(&path);
    writer.append(&mut Sim::new(1, "a").second()).unwrap();
    writer.finish().unwrap();
    let mut writer = Writer::open(&path, scratch()).unwrap();
    writer.clear(&[Part::NAME]).unwrap();
    writer.finish().unwrap();
    let rows = Trace::open(&path).unwrap().rows(ALL).unwrap();
    assert_eq!((rows.part.len(), rows.step.len()), (0, 10));
    assert!(!path.join("part/00000.parquet").exists());
}

#[test]
fn the_journal_is_sealed_by_itself_when_it_is_long() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut writer = Writer::create(&path, Options { seal_bytes: 60_000, ..scratch() }).unwrap();
    let mut sim = Sim::new(1, "a");
    for _ in 0..30 {
        writer.append(&mut sim.second()).unwrap();
        writer.flush_journal().unwrap();
    }
    let written = writer.finish().unwrap();
    assert!(written.segments > 2, "{written:?}");
    assert_eq!(Trace::open(&path).unwrap().rows(ALL).unwrap(), Sim::truth(1, "a", 30));
}

/// On CPUs that are never idle, threads that give way would get next to nothing.
#[test]
fn what_seals_gives_way_until_the_trace_is_closed() {
    static BEGAN: AtomicUsize = AtomicUsize::new(0);
    let begins: ThreadBegins = || Box::new(BEGAN.fetch_add(1, Relaxed));
    let tmp = tempfile::tempdir().unwrap();
    let options = Options { thread_begins: Some(begins), ..scratch() };
    let mut writer = Writer::create(tmp.path().join("t"), options).unwrap();
    let mut sim = Sim::new(1, "a");
    writer.append(&mut sim.second()).unwrap();
    writer.seal().unwrap();
    writer.drop_before(Ns::MIN).unwrap(); // Waits for the sealing.
    assert_eq!(BEGAN.load(Relaxed), 1);
    writer.append(&mut sim.second()).unwrap();
    assert_eq!(writer.finish().unwrap().segments, 2);
    assert_eq!(BEGAN.load(Relaxed), 1);
}

#[test]
fn old_segments_are_dropped_and_what_says_whose_the_rest_is_stays() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let options = Options { keep_recent: Some(Ns::secs(5)), ..scratch() };
    let mut writer = Writer::create(&path, options).unwrap();
    let mut sim = Sim::new(1, "a");
    for _ in 0..60 {
        writer.append(&mut sim.second()).unwrap();
        writer.seal().unwrap();
        writer.drop_before(Ns::MIN).unwrap(); // Waits for the sealing.
    }
    writer.finish().unwrap();
    let trace = Trace::open(&path).unwrap();
    let rows = trace.rows(ALL).unwrap();
    let truth = Sim::truth(1, "a", 60);
    assert_eq!(trace.manifest().kept_since, Some(Ns::secs(55).0));
    let since = Ns::secs(55);
    let recent: Vec<_> = truth.span.iter().filter(|s| s.end() > Some(since)).cloned().collect();
    assert!(rows.span.ends_with(&recent));
    assert!(rows.span.len() < recent.len() + 40, "{}", rows.span.len());
    assert_eq!((rows.entity, rows.track, rows.source), (truth.entity, truth.track, truth.source));
    let spans = std::fs::read_dir(path.join("span")).unwrap().count();
    let sources = std::fs::read_dir(path.join("source")).unwrap().count();
    assert!(spans < 10 && sources < 20, "{spans} {sources}");
    // What held when the oldest segment began is known from its head.
    let oldest = rows.state.iter().map(|s| s.ts).min().unwrap();
    assert!(truth.state.contains(&rows.state[0]), "{oldest}");
}

#[test]
fn more_than_one_is_ready_to_hold_is_an_error_and_not_a_dead_process() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut writer = create(&path);
    writer.append(&mut Sim::new(1, "a").second()).unwrap();
    writer.finish().unwrap();
    let e = Trace::open(&path).unwrap().with_max_rows(20).rows(ALL).unwrap_err();
    assert!(
        e.to_string().ends_with(
            "t` holds more than 20 rows in the range asked for; ask for a shorter range"
        )
    );
}

#[test]
fn what_is_not_a_trace_is_refused_by_name_and_place() {
    let tmp = tempfile::tempdir().unwrap();
    let root = tmp.path();
    let make = |name: &str| {
        let path = root.join(name);
        let mut writer = create(&path);
        writer.append(&mut Sim::new(1, "a").second()).unwrap();
        writer.finish().unwrap();
        path
    };
    let mut said = Vec::new();
    let mut ask = |name: &str, spoil: &dyn Fn(&std::path::Path)| {
        let path = make(name);
        spoil(&path);
        let e = match Trace::open(&path).and_then(|t| t.rows(ALL)) {
            Ok(_) => "it opens".to_string(),
            Err(e) => chain(&e),
        };
        said.push(e.replace(&format!("{}/", root.display()), ""));
    };
    let write = |path: std::path::PathBuf, bytes: &[u8]| std::fs::write(path, bytes).unwrap();
    ask("a_file", &|p| {
        std::fs::remove_dir_all(p).unwrap();
        write(p.into(), b"perf.data");
    });
    ask("nothing", &|p| std::fs::remove_dir_all(p).unwrap());
    ask("an_empty_directory", &|p| {
        std::fs::remove_dir_all(p).unwrap();
        std::fs::create_dir(p).unwrap();
    });
    ask("a_manifest_in_latin1", &|p| write(p.join("trace.toml"), b"tool = \"caf\xe9\""));
    ask("a_missing_file", &|p| std::fs::remove_file(p.join("span/00000.parquet")).unwrap());
    ask("a_file_cut_short", &|p| {
        let f = p.join("span/00000.parquet");
        let bytes = std::fs::read(&f).unwrap();
        write(f, &bytes[..bytes.len() / 2]);
    });
    ask("a_file_overwritten", &|p| {
        let f = p.join("span/00000.parquet");
        let length = std::fs::read(&f).unwrap().len();
        write(f, &vec![b'x'; length]);
    });
    ask("a_garbled_footer", &|p| {
        let f = p.join("span/00000.parquet");
        let mut bytes = std::fs::read(&f).unwrap();
        let end = bytes.len() - 8;
        bytes[end - 600..end].fill(0xff);
        write(f, &bytes);
    });
    ask("another_table", &|p| {
        let m = p.join("trace.toml");
        let text = std::fs::read_to_string(&m).unwrap();
        let text = text.replace("table = \"step\"", "table = \"wakeup\"");
        write(m, text.as_bytes());
    });
    ask("more_rows_than_there_are", &|p| {
        let m = p.join("trace.toml");
        let text = std::fs::read_to_string(&m).unwrap();
        write(m, text.replace("rows = 20", "rows = 21").as_bytes());
    });
    ask("a_link_in_place_of_a_table", &|p| {
        std::fs::rename(p.join("span"), p.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", p.join("span")).unwrap();
    });
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn a_path_that_is_taken_is_not_written_over() {
    let tmp = tempfile::tempdir().unwrap();
    std::fs::write(tmp.path().join("thesis.tex"), "...").unwrap();
    let e = Writer::create(tmp.path(), scratch()).unwrap_err();
    assert!(matches!(e, Error::Exists { .. }), "{e}");
}
