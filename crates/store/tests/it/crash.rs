//! The writer dies, the disk fills up, bytes get lost: what was flushed is there.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use gpuwhy_schema::*;
use gpuwhy_store::{Options, Trace, Writer, validate};
use proptest::prelude::*;

use crate::sim::{Sim, create, scratch};

const ALL: std::ops::Range<Ns> = Ns::MIN..Ns::MAX;

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// A trace whose writer died: two sealed seconds, and three more in the journal. With it, the
/// length of the journal after each of these.
fn abandoned(root: &Path) -> (PathBuf, Vec<u64>) {
    let path = root.join("abandoned");
    let mut writer = create(&path);
    let mut sim = Sim::new(1, "a");
    for _ in 0..2 {
        writer.append(&mut sim.second()).unwrap();
    }
    writer.seal().unwrap();
    writer.drop_before(Ns::MIN).unwrap(); // Waits for the sealing.
    let journal = path.join("journal/00001.journal");
    let mut lengths = vec![std::fs::metadata(&journal).unwrap().len()];
    for _ in 0..3 {
        writer.append(&mut sim.second()).unwrap();
        writer.flush_journal().unwrap();
        lengths.push(std::fs::metadata(&journal).unwrap().len());
    }
    let dead = root.join("dead");
    copy(&path, &dead);
    drop(writer);
    std::fs::remove_file(dead.join("lock")).unwrap();
    (dead, lengths)
}

#[test]
fn a_dead_writers_journal_is_sealed_by_who_opens_it() {
    let tmp = tempfile::tempdir().unwrap();
    let (path, _) = abandoned(tmp.path());
    let trace = Trace::open(&path).unwrap();
    assert_eq!(trace.recovered().journals, 1);
    assert_eq!(trace.recovered().torn_bytes, 0);
    assert_eq!(trace.rows(ALL).unwrap(), Sim::truth(1, "a", 5));
    let report = validate(&trace);
    assert!(report.is_valid(), "{report}");
    assert!(!path.join("journal/00001.journal").exists() && !path.join("lock").exists());
    // The next one finds nothing to do.
    assert!(Trace::open(&path).unwrap().recovered().is_nothing());
}

#[test]
fn a_journal_cut_anywhere_gives_all_whole_commits_and_sets_the_rest_aside() {
    let tmp = tempfile::tempdir().unwrap();
    let (dead, lengths) = abandoned(tmp.path());
    let journal = std::fs::read(dead.join("journal/00001.journal")).unwrap();
    let mut cuts: Vec<usize> = (0..journal.len()).step_by(997).collect();
    for &length in &lengths {
        cuts.extend((length as usize).saturating_sub(2)..=(length as usize + 2));
    }
    for cut in cuts.into_iter().filter(|cut| *cut <= journal.len()) {
        let path = tmp.path().join(format!("{cut}"));
        copy(&dead, &path);
        std::fs::write(path.join("journal/00001.journal"), &journal[..cut]).unwrap();
        let trace = Trace::open(&path).unwrap();
        let flushed = lengths.iter().filter(|l| **l <= cut as u64).count().saturating_sub(1);
        let whole = Sim::truth(1, "a", 2 + flushed as i64);
        let rows = trace.rows(ALL).unwrap();
        assert!(rows.span.starts_with(&whole.span), "cut at {cut}");
        assert!(rows.counter.starts_with(&whole.counter), "cut at {cut}");
        assert_eq!(rows.len(), whole.len(), "cut at {cut}");
        let report = validate(&trace);
        assert!(report.is_valid(), "cut at {cut}: {report}");
        let torn = trace.recovered().torn_bytes;
        let aside: u64 = trace
            .recovered()
            .quarantine
            .iter()
            .map(|file| std::fs::metadata(file).unwrap().len())
            .sum();
        assert_eq!(torn, aside, "cut at {cut}");
        std::fs::remove_dir_all(path).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// A lost page, a flipped bit, garbage: what was committed before it comes through, and is a trace.
    #[test]
    fn a_garbled_stretch_costs_the_commit_that_it_touches_and_those_after_it(
        at in 0.0..1.0f64, length in 1usize..6000, fill in any::<Option<u8>>(),
    ) {
        let tmp = tempfile::tempdir().unwrap();
        let (path, lengths) = abandoned(tmp.path());
        let file = path.join("journal/00001.journal");
        let mut journal = std::fs::read(&file).unwrap();
        let from = (at * journal.len() as f64) as usize;
        let to = (from + length).min(journal.len());
        for (i, byte) in journal[from..to].iter_mut().enumerate() {
            *byte = fill.unwrap_or((i * 31 + from) as u8 ^ *byte);
        }
        std::fs::write(&file, &journal).unwrap();
        let trace = Trace::open(&path).unwrap();
        let rows = trace.rows(ALL).unwrap();
        let whole = lengths[1..].iter().filter(|length| **length <= from as u64).count() as i64;
        // Where bytes were written over by the same, nothing is lost.
        let seconds = rows.counter.len() as i64;
        prop_assert!(seconds >= 2 + whole);
        prop_assert_eq!(rows, Sim::truth(1, "a", seconds));
        let report = validate(&trace);
        prop_assert!(report.is_valid(), "{}", report);
        prop_assert!(Trace::open(&path).unwrap().recovered().is_nothing());
    }

    /// Whatever happens to a sealed file, the answer is an error that names it, or the truth.
    #[test]
    fn a_garbled_parquet_file_is_an_error_and_never_a_panic(
        at in 0.0..1.0f64, length in 1usize..200, seed: u8,
    ) {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("t");
        let mut writer = create(&path);
        writer.append(&mut Sim::new(1, "a").second()).unwrap();
        writer.finish().unwrap();
        let file = path.join("span/00000.parquet");
        let mut bytes = std::fs::read(&file).unwrap();
        let from = (at * bytes.len() as f64) as usize;
        let to = (from + length).min(bytes.len());
        for (i, byte) in bytes[from..to].iter_mut().enumerate() {
            *byte ^= seed.wrapping_add(i as u8) | 1;
        }
        std::fs::write(&file, &bytes).unwrap();
        let trace = Trace::open(&path).unwrap();
        if let Err(e) = trace.rows(ALL) {
            prop_assert!(e.to_string().contains("span/00000.parquet"), "{e}");
        }
        validate(&trace);
    }
}

#[test]
fn a_crash_between_any_two_steps_of_sealing_leaves_a_whole_trace() {
    let tmp = tempfile::tempdir().unwrap();
    let (dead, _) = abandoned(tmp.path());
    let truth = Sim::truth(1, "a", 5);
    let sealed = tmp.path().join("sealed");
    copy(&dead, &sealed);
    drop(Trace::open(&sealed).unwrap());

    // The segment's files are there, some half-written, and no manifest names them.
    let path = tmp.path().join("before the manifest");
    copy(&dead, &path);
    std::fs::copy(sealed.join("span/00001.parquet"), path.join("span/00001.parquet")).unwrap();
    std::fs::write(path.join("mark/00001.parquet.tmp"), "PAR1...").unwrap();
    std::fs::write(path.join("trace.toml.tmp"), "format = \"gpu").unwrap();
    let trace = Trace::open(&path).unwrap();
    assert_eq!(trace.rows(ALL).unwrap(), truth);
    assert!(!path.join("mark/00001.parquet.tmp").exists());

    // The manifest names them, and the journal is there still.
    let path = tmp.path().join("before the journal went");
    copy(&sealed, &path);
    std::fs::create_dir_all(path.join("journal")).unwrap();
    let journal = "journal/00001.journal";
    std::fs::copy(dead.join(journal), path.join(journal)).unwrap();
    let trace = Trace::open(&path).unwrap();
    assert_eq!(trace.rows(ALL).unwrap(), truth);
    assert!(!path.join(journal).exists());
}

#[test]
fn where_we_may_not_write_a_dead_writers_trace_is_read_as_it_lies() {
    let tmp = tempfile::tempdir().unwrap();
    let (path, _) = abandoned(tmp.path());
    // A directory in place of the lock bars root too.
    std::fs::create_dir(path.join("lock")).unwrap();
    let trace = Trace::open(&path).unwrap();
    assert!(trace.recovered().not_written.is_some());
    assert_eq!(trace.rows(ALL).unwrap(), Sim::truth(1, "a", 5));
    assert!(path.join("journal/00001.journal").exists());
    let report = validate(&trace);
    assert!(report.is_valid(), "{report}");
}

/// The example that writes for ever; cargo builds examples along with integration tests.
fn journal_writer() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples/journal_writer");
    path
}

#[test]
fn a_writer_killed_at_any_moment_loses_nothing_that_it_flushed() {
    let tmp = tempfile::tempdir().unwrap();
    for round in 0..25 {
        let path = tmp.path().join(format!("{round}"));
        let mut child =
            Command::new(journal_writer()).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        // Sealing begins every 20 seconds or so; the moments spread over several of them.
        std::thread::sleep(Duration::from_micros(500 + 3_137 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let flushed: i64 = lines.map_while(Result::ok).last().map_or(0, |l| l.parse().unwrap());

        let trace = Trace::open(&path).unwrap();
        let report = validate(&trace);
        assert!(report.is_valid(), "killed in second {flushed}: {report}");
        let rows = trace.rows(ALL).unwrap();
        let seconds = rows.counter.len() as i64;
        assert!(seconds > flushed, "{seconds} of {flushed} seconds are there");
        assert!(rows.counter.iter().enumerate().all(|(i, c)| c.value == i as f64));
        assert_eq!(rows.span.len() as i64, 200 * seconds);
    }
}

#[test]
fn root_a_full_disk_loses_only_what_it_says_and_the_trace_goes_on_when_there_is_room() {
    let tmp = tempfile::tempdir().unwrap();
    let disk = tmp.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(&disk)
        .status()
        .is_ok_and(|s| s.success());
    if !mounted {
        eprintln!("skipped: mounting a tmpfs needs root");
        return;
    }
    struct Unmount(PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let _unmount = Unmount(disk.clone());
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![0; 600 << 10]).unwrap();

    let path = disk.join("t");
    let options = Options { max_pending: 3000, seal_bytes: 100_000, ..scratch() };
    let mut writer = Writer::create(&path, options).unwrap();
    let mut sim = Sim::new(1, "a");
    let (mut failed, mut seconds) = (0, 0);
    while failed < 40 && seconds < 2000 {
        seconds += 1;
        let appended = writer.append(&mut sim.second());
        let flushed = appended.and_then(|()| writer.flush_journal());
        if let Err(e) = flushed {
            failed += 1;
            let source = std::error::Error::source(&e).map(|s| s.to_string());
            assert!(source.is_some_and(|s| s.contains("No space left")), "{e}");
        }
        // What is on the disk can be read meanwhile.
        if failed == 20 {
            let report = validate(&Trace::open(&path).unwrap());
            assert!(report.is_valid(), "{report}");
        }
    }
    assert_eq!(failed, 40, "the disk never got full");
    assert!(writer.written().lost > 0, "{:?}", writer.written());
    let lost = writer.written().lost;

    std::fs::remove_file(&ballast).unwrap();
    // Tells of the last sealing that failed while the disk was full.
    let _ = writer.flush_journal();
    for _ in 0..5 {
        seconds += 1;
        writer.append(&mut sim.second()).unwrap();
        writer.flush_journal().unwrap();
    }
    let written = writer.finish().unwrap();
    assert_eq!(written.lost, lost);
    let trace = Trace::open(&path).unwrap();
    assert_eq!(trace.summary().lost_rows, lost);
    let rows = trace.rows(ALL).unwrap();
    assert_eq!(rows.counter.last().unwrap().ts, Ns::secs(seconds));
    let there = rows.counter.len() as i64;
    assert!(there < seconds && there > seconds / 2, "{there} of {seconds} seconds");
    // What the rows of later seconds refer to was not among those that were dropped.
    let report = validate(&trace);
    assert!(report.is_valid(), "{report}");
}

/// Appends numbered rows until some are lost, and says how many of them there were and how many were lost.
fn writes_until_rows_are_lost(path: &Path) -> (u64, u64) {
    let mut lanes = Lanes::default();
    let source = lanes.source("test", "test", "1", "");
    let host = lanes.entity(EntityKind::Host, "host", |_| {});
    let lane = Lane::counter("test", "count", Measure::Gauge);
    let track = lanes.track(host, None, lane, source);
    let mut declared = Rows::default();
    lanes.drain(&mut declared);
    let options = Options { max_pending: 3000, seal_bytes: 30_000, ..scratch() };
    let mut writer = Writer::create(path, options).unwrap();
    let _ = writer.append(&mut declared);
    let (mut appended, mut lost_at) = (0, None);
    for second in 0..4000 {
        // Few at first, and then more than a file may hold.
        let count = if second < 10 { 100 } else { 1000 };
        let counter =
            (0..count).map(|n| Counter { ts: Ns::secs(second) + Ns(n), track, value: n as f64 });
        let _ = writer.append(&mut Rows { counter: counter.collect(), ..Rows::default() });
        appended += count as u64;
        let _ = writer.flush_journal();
        lost_at = lost_at.or((writer.written().lost > 0).then_some(second));
        if lost_at.is_some_and(|at| second > at + 20) {
            break;
        }
    }
    let (written, closed) = writer.close();
    assert!(closed.is_err() && written.lost > 0, "{written:?}, {closed:?}");
    (appended, written.lost)
}

/// The twin that needs no root: a limit on the length of files stands for the full disk.
#[test]
fn a_file_that_may_not_grow_loses_only_what_is_said() {
    const PATH: &str = "GPUWHY_TEST_LIMITED";
    if let Some(path) = std::env::var_os(PATH) {
        let (appended, lost) = writes_until_rows_are_lost(Path::new(&path));
        println!("\nappended {appended} lost {lost}");
        return;
    }
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let own = std::env::current_exe().unwrap();
    // In blocks of 512 bytes; the file that grows beyond it is an error and no signal.
    let script = "ulimit -f 32; exec env --ignore-signal=XFSZ \"$@\"";
    let this = "crash::a_file_that_may_not_grow_loses_only_what_is_said";
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(own)
        .args(["--exact", this, "--nocapture"])
        .env(PATH, &path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let told = text.lines().find_map(|line| line.strip_prefix("appended ")).expect("it says so");
    let mut numbers = told.split(" lost ").map(|number| number.parse::<u64>().unwrap());
    let (appended, lost) = (numbers.next().unwrap(), numbers.next().unwrap());

    let trace = Trace::open(&path).unwrap();
    let rows = trace.rows(ALL).unwrap();
    assert_eq!(rows.counter.len() as u64 + lost, appended);
    let report = validate(&trace);
    assert!(report.is_valid(), "{report}");
}

#[test]
fn a_trace_that_is_being_written_is_not_removed() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut writer = create(&path);
    writer.append(&mut Sim::new(1, "a").second()).unwrap();
    let error = gpuwhy_store::remove(&path).unwrap_err();
    assert!(error.to_string().contains("another process is writing"), "{error}");
    writer.finish().unwrap();
    assert!(validate(&Trace::open(&path).unwrap()).is_valid());
    gpuwhy_store::remove(&path).unwrap();
    assert!(!path.exists());
}
