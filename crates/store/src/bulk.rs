//! Writes a trace from end to end, without a journal: for imports, which can begin again.
//!
//! Rows become Parquet on a thread of its own while more are gathered. Until [`Bulk::finish`] there is
//! no manifest, so that what lies there is no trace; whoever gives up removes the directory.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use gpuwhy_schema::{AttrBatch, Rows};

use crate::dir::{Dir, Durability, Lock};
use crate::manifest::Manifest;
use crate::pyramid::{self, Builder};
use crate::seal::Sealer;
use crate::writer::take_lock;
use crate::{Error, Options, Result, Written};

/// What a row takes while it waits, is turned into columns and compressed, measured over imports. One segment of
/// rows gathers while another one is written.
const ROW_BYTES: usize = 600;
/// Fewer rows than this make segments that are not worth a file.
const LEAST_ROWS: usize = 16 << 10;

/// What is to become a segment.
#[derive(Debug, Default)]
struct Pending {
    rows: Rows,
    attrs: Vec<AttrBatch>,
}

/// The one writer of a new trace, all of whose rows are at hand.
#[derive(Debug)]
pub struct Bulk {
    pending: Pending,
    pending_rows: usize,
    /// Rows of a segment.
    segment_rows: usize,
    segments: u32,
    /// Rows on their way to the disk, and the thread that takes them.
    send: Option<SyncSender<Pending>>,
    thread: Option<JoinHandle<Result<Sealer>>>,
    dir: Dir,
    lock: Option<Lock>,
}

impl Bulk {
    /// Begins a trace at `path`, where nothing, an empty directory, or what a bulk writer left that
    /// was killed lies. Rows take about `memory` bytes until they are on the disk.
    pub fn create(path: impl AsRef<Path>, options: &Options, memory: usize) -> Result<Bulk> {
        let path = path.as_ref();
        let dir = Dir::make(path, options.durability, options.tap.clone())?;
        if !is_left(&dir) {
            return Err(Error::Exists { path: path.into() });
        }
        let lock = take_lock(&dir)?;
        for (folder, _) in dir.root.list(None).map_err(Error::io("list", path))? {
            let Some(folder) = folder.to_str().filter(|name| *name != "lock") else { continue };
            for name in dir.list(folder)? {
                dir.remove(&format!("{folder}/{name}"))?;
            }
            let removed = dir.root.remove_folder(folder);
            removed.map_err(Error::io("remove", &dir.at(folder)))?;
        }
        // Files are made durable at the end, all at once.
        let scratch = Dir { durability: Durability::ProcessDeath, ..dir.clone() };
        let mut sealer = Sealer::new(scratch, Manifest::new(&options.tool), None);
        sealer.pyramid = Some(Builder::create(&sealer.dir)?);
        // Without room between the two threads: a segment that waited there would be a third in memory.
        let (send, receive) = sync_channel(0);
        let thread = std::thread::Builder::new()
            .name("gpuwhy-seal".into())
            .spawn(move || seal(sealer, &receive))
            .map_err(Error::io("start the sealing thread of", path))?;
        Ok(Bulk {
            pending: Pending::default(),
            pending_rows: 0,
            segment_rows: (memory / ROW_BYTES).max(LEAST_ROWS),
            segments: 0,
            send: Some(send),
            thread: Some(thread),
            dir,
            lock: Some(lock),
        })
    }

    /// Takes all of `rows` out. States must come in the order of time.
    pub fn append(&mut self, rows: &mut Rows) -> Result<()> {
        let count = rows.len();
        self.pending.rows.append(rows);
        self.added(count)
    }

    /// Takes rows of `attr` that are columns already.
    pub fn append_attrs(&mut self, attrs: Option<AttrBatch>) -> Result<()> {
        let Some(attrs) = attrs else { return Ok(()) };
        let count = attrs.len();
        self.pending.attrs.push(attrs);
        self.added(count)
    }

    fn added(&mut self, rows: usize) -> Result<()> {
        self.pending_rows += rows;
        if self.pending_rows >= self.segment_rows { self.hand_over() } else { Ok(()) }
    }

    fn hand_over(&mut self) -> Result<()> {
        if self.pending_rows == 0 {
            return Ok(());
        }
        self.pending_rows = 0;
        self.segments += 1;
        let rows = std::mem::take(&mut self.pending);
        let sent = self.send.as_ref().is_some_and(|send| send.send(rows).is_ok());
        // Nobody takes them any more: the thread has ended, and says why.
        if sent { Ok(()) } else { self.join().map(drop) }
    }

    fn join(&mut self) -> Result<Sealer> {
        self.send = None;
        let died = || Error::damaged(&self.dir.path, "the thread that seals its segments died");
        let thread = self.thread.take().ok_or_else(died)?;
        thread.join().map_err(|_| died())?
    }

    /// Writes the rest, makes everything durable, and then the manifest.
    pub fn finish(mut self) -> Result<Written> {
        self.hand_over()?;
        let mut sealer = self.join()?;
        if let Some(pyramid) = sealer.pyramid.take() {
            pyramid.finish(&sealer.manifest)?;
        }
        if self.dir.durability == Durability::PowerLoss {
            self.sync(&sealer.manifest)?;
        }
        sealer.manifest.complete = true;
        sealer.manifest.commit(&self.dir)?;
        if let Some(lock) = self.lock.take() {
            self.dir.unlock(lock);
        }
        // Of rows that say again what others said, the last ones are there.
        // Heads hold states of earlier segments a second time.
        let rows = sealer.manifest.file.iter().filter(|f| !f.is_head()).map(|f| f.rows).sum();
        Ok(Written { rows, segments: self.segments, ..Written::default() })
    }

    fn sync(&self, manifest: &Manifest) -> Result<()> {
        let mut folders = std::collections::BTreeSet::new();
        for path in manifest.file.iter().map(|file| &*file.path).chain([pyramid::PATH]) {
            let synced = self.dir.root.sync_file(path);
            synced.map_err(Error::io("flush", &self.dir.at(path)))?;
            folders.extend(path.split_once('/').map(|(folder, _)| folder));
        }
        folders.iter().try_for_each(|folder| self.dir.sync_folder(Some(folder)))?;
        // The names of the folders themselves.
        self.dir.sync_folder(None)
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        // Whoever gives up removes the directory next; nobody may write into it then.
        self.send = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether a directory is empty, or holds nothing but what a bulk writer leaves that was killed.
fn is_left(dir: &Dir) -> bool {
    let left = |name: &str| {
        let others = ["lock", "state.head", pyramid::FOLDER];
        others.contains(&name) || gpuwhy_schema::TABLES.contains(&name)
    };
    let entries = dir.root.list(None);
    entries.is_ok_and(|all| all.iter().all(|(name, _)| name.to_str().is_some_and(left)))
}

fn seal(mut sealer: Sealer, receive: &Receiver<Pending>) -> Result<Sealer> {
    for Pending { mut rows, attrs } in receive {
        let segment = sealer.manifest.next_segment;
        sealer.seal_rows(segment, &mut rows, attrs)?;
    }
    Ok(sealer)
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::*;

    use super::*;
    use crate::{Trace, validate};

    fn rows(from: u64, count: u64) -> Rows {
        let mut lanes = Lanes::default();
        let source = lanes.source("nsys", "test", "1", "");
        let host = lanes.entity(EntityKind::Host, "h", |_| {});
        let track = lanes.track(host, None, Lane::spans("stream", Discipline::Overlap), source);
        let mut rows = Rows::default();
        lanes.drain(&mut rows);
        for i in from..from + count {
            rows.span.push(Span {
                id: Id(i + 1),
                ts: Ns(i as i64 * 10),
                dur: Some(Ns(15)),
                track,
                parent: None,
                name: "k".into(),
            });
        }
        rows
    }

    #[test]
    fn what_was_given_can_be_read_and_nothing_before_it_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.trace");
        let mut bulk = Bulk::create(&path, &Options::default(), 64 << 20).unwrap();
        for part in 0..6 {
            bulk.append(&mut rows(part * 100_000, 100_000)).unwrap();
        }
        assert!(matches!(Trace::open(&path), Err(Error::NotATrace { .. })));
        let written = bulk.finish().unwrap();
        assert!(written.segments > 1);
        let trace = Trace::open(&path).unwrap();
        let report = validate(&trace);
        assert!(report.is_valid(), "{report}");
        assert_eq!(
            trace.summary().tables.iter().find(|t| t.table == "span").unwrap().rows,
            600_000
        );
    }

    #[test]
    fn while_a_segment_is_written_one_more_is_gathered_and_no_third() {
        let dir = tempfile::tempdir().unwrap();
        let (writes, is_writing) = std::sync::mpsc::channel::<()>();
        let (go_on, disk) = std::sync::mpsc::channel::<()>();
        let disk = std::sync::Mutex::new(disk);
        // The disk stands still from the first row that is to be written until the test goes on.
        let tap = crate::Tap::new(move |op| {
            if matches!(op, crate::Op::Folder(ref folder) if folder == "span") {
                let _ = writes.send(());
                let _ = disk.lock().unwrap().recv();
            }
            Ok(())
        });
        let options = Options { tap: Some(tap), ..Options::default() };
        let mut bulk = Bulk::create(dir.path().join("t.trace"), &options, 0).unwrap();
        let segment = LEAST_ROWS as u64;
        bulk.append(&mut rows(0, segment)).unwrap();
        is_writing.recv().unwrap();
        let (took, taken) = std::sync::mpsc::channel();
        let appends = std::thread::spawn(move || {
            bulk.append(&mut rows(segment, segment)).unwrap();
            took.send(()).unwrap();
            bulk.finish().unwrap()
        });
        // It has more time than it needs to hand the second over, if somebody took it.
        let early = taken.recv_timeout(std::time::Duration::from_millis(300));
        go_on.send(()).unwrap();
        assert!(early.is_err(), "a second segment waits to be written while a third is gathered");
        assert_eq!(appends.join().unwrap().segments, 2);
    }

    #[test]
    fn rows_are_counted_as_validate_counts_them_where_a_state_lasts_over_segments() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.trace");
        let mut bulk = Bulk::create(&path, &Options::default(), 64 << 20).unwrap();
        let mut lanes = Lanes::default();
        let source = lanes.source("nsys", "test", "1", "");
        let host = lanes.entity(EntityKind::Host, "h", |_| {});
        let lane = Lane::states("thread_state", Discipline::Sparse);
        let track = lanes.track(host, None, lane, source);
        let mut all = Rows::default();
        lanes.drain(&mut all);
        for i in 0..1_000_000i64 {
            // The first lasts to the end.
            let (ts, dur) = (Ns(i * 10), (i > 0).then_some(Ns(5)));
            let track = if i == 0 { track } else { TrackId(track.0 + 1) };
            all.state.push(State { ts, dur, track, value: 1, arg: None });
            if i % 100_000 == 0 {
                bulk.append(&mut all).unwrap();
            }
        }
        let other = lanes.entity(EntityKind::Cpu, "c", |_| {});
        assert_eq!(lanes.track(other, None, lane, source), TrackId(track.0 + 1));
        lanes.drain(&mut all);
        bulk.append(&mut all).unwrap();
        let written = bulk.finish().unwrap();
        assert!(written.segments > 1);
        let report = validate(&Trace::open(&path).unwrap());
        assert!(report.is_valid(), "{report}");
        assert_eq!(written.rows, report.rows);
    }

    #[test]
    fn what_lies_there_already_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("mine"), "mine").unwrap();
        let refused = Bulk::create(dir.path(), &Options::default(), 64 << 20);
        assert!(matches!(refused, Err(Error::Exists { .. })));
        assert_eq!(std::fs::read(dir.path().join("mine")).unwrap(), b"mine");
    }

    #[test]
    fn what_a_killed_writer_left_makes_room_and_what_a_living_one_writes_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.trace");
        let mut bulk = Bulk::create(&path, &Options::default(), 64 << 20).unwrap();
        bulk.append(&mut rows(0, 600_000)).unwrap();
        let refused = Bulk::create(&path, &Options::default(), 64 << 20);
        assert!(matches!(refused, Err(Error::Busy { .. })));
        drop(bulk);
        let mut bulk = Bulk::create(&path, &Options::default(), 64 << 20).unwrap();
        bulk.append(&mut rows(0, 10)).unwrap();
        bulk.finish().unwrap();
        assert!(validate(&Trace::open(&path).unwrap()).is_valid());
    }

    #[test]
    fn an_error_of_the_disk_is_told_by_the_next_call() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.trace");
        let mut bulk = Bulk::create(&path, &Options::default(), 64 << 20).unwrap();
        // Where the table's folder should be, there is a file.
        std::fs::write(path.join("span"), "in the way").unwrap();
        bulk.append(&mut rows(0, 10)).unwrap();
        assert!(bulk.finish().unwrap_err().to_string().contains("span"));
    }
}
