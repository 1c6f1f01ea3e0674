//! Writes a trace while it happens.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use gpuwhy_schema::{EachTable, Ns, Rows, Table};

use crate::beneath::Tap;
use crate::dir::{Dir, Durability, Lock, Locking, journal_name};
use crate::journal::{FRAME_ROWS, Found, Journal};
use crate::manifest::Manifest;
use crate::recover;
use crate::seal::{Sealer, ThreadBegins};
use crate::{Error, Result};

/// How a trace is written.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that writes, with its version; it stands in `trace.toml`.
    pub tool: String,
    /// What sealed segments must survive.
    pub durability: Durability,
    /// A journal longer than this is sealed.
    pub seal_bytes: u64,
    /// A journal older than this is sealed.
    pub seal_after: Option<Duration>,
    /// Segments whose rows all ended this long before the latest row are dropped.
    pub keep_recent: Option<Ns>,
    /// Rows that are held when they cannot be written (a full disk); more are dropped and
    /// counted.
    pub max_pending: usize,
    /// Called by each thread that seals, before it does: to give way to what is recorded. What it returns is
    /// dropped when the thread ends. Not called once the trace is closed: then somebody waits for the threads.
    pub thread_begins: Option<ThreadBegins>,
    /// Is told each change of the directory before it is made; for tests.
    #[doc(hidden)]
    pub tap: Option<Tap>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tool: concat!("gpuwhy ", env!("CARGO_PKG_VERSION")).into(),
            durability: Durability::default(),
            seal_bytes: 16 << 20,
            seal_after: None,
            keep_recent: None,
            max_pending: 1 << 20,
            thread_begins: None,
            tap: None,
        }
    }
}

/// Rows that are gathered before they are committed: rows, columns, message and frame of a commit are in memory
/// at the same time.
const COMMIT_ROWS: usize = 16 * 1024;
/// After a sealing that failed: on a full disk each try costs as much as a success.
const RETRY: Duration = Duration::from_secs(30);

/// What a writer has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Rows that were taken.
    pub rows: u64,
    /// Rows that were dropped because they could not be written; [`Options::max_pending`].
    pub lost: u64,
    /// Bytes of journal.
    pub journal_bytes: u64,
    /// Segments that were sealed by this writer.
    pub segments: u32,
}

/// The one writer of a trace.
///
/// [`Writer::append`] takes rows, [`Writer::flush_journal`] commits them so that the death of
/// this process does not lose them, and every so often what was committed is sealed: sorted and
/// turned into Parquet, on a thread of its own, so that a slow disk does not hold up the rows
/// that come in meanwhile. [`Writer::finish`] seals the rest.
///
/// A writer that is dropped instead leaves a journal, as a crash would; [`crate::Trace::open`]
/// recovers it.
#[derive(Debug)]
pub struct Writer {
    dir: Dir,
    options: Options,
    pending: Rows,
    pending_rows: usize,
    /// Whether the last commit failed.
    failing: bool,
    /// `None` only after a new journal could not be made.
    journal: Option<Journal>,
    segment: u32,
    opened: Instant,
    /// Journals that are complete but not sealed, oldest first.
    unsealed: VecDeque<(u32, Arc<Found>)>,
    sealing: Sealing,
    /// When sealing is to be tried again after it failed.
    retry_at: Option<Instant>,
    written: Written,
    lock: Option<Arc<Lock>>,
}

#[derive(Debug)]
enum Sealing {
    Idle(Box<Sealer>),
    Busy(JoinHandle<(Box<Sealer>, Result<u32>)>),
    /// The sealing thread died, or could not be started.
    Gone,
}

impl Writer {
    /// Begins a trace at `path`, where nothing or an empty directory lies. Root follows no link on the
    /// way that another user made.
    pub fn create(path: impl AsRef<Path>, options: Options) -> Result<Writer> {
        let path = path.as_ref();
        let dir = match Dir::make(path, options.durability, options.tap.clone()) {
            Ok(dir) => dir,
            // A file, which is not ours to replace.
            Err(Error::NotATrace { path, .. }) => return Err(Error::Exists { path }),
            Err(e) => return Err(e),
        };
        if !dir.root.list(None).is_ok_and(|entries| entries.is_empty()) {
            return Err(Error::Exists { path: path.into() });
        }
        let lock = take_lock(&dir)?;
        let manifest = Manifest::new(&options.tool);
        manifest.commit(&dir)?;
        let sealer = Sealer::new(dir.clone(), manifest, options.keep_recent);
        Writer::start(dir, options, sealer, lock)
    }

    /// Goes on with the trace at `path`, which must be ours; if its last writer died, what that left is
    /// recovered first.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Writer> {
        let dir = Dir::open_to_write(path.as_ref(), options.durability, options.tap.clone())?;
        Manifest::read_in(&dir)?;
        if let Some(why) = dir.root.is_others().map_err(Error::io("examine", &dir.path))? {
            return Err(Error::NotOurs { path: dir.path, why });
        }
        let lock = take_lock(&dir)?;
        let (sealer, _) = recover::recover(&dir, options.keep_recent)?;
        let mut sealer = match sealer {
            Some(sealer) => sealer,
            None => Sealer::resume(dir.clone(), Manifest::read_in(&dir)?, options.keep_recent)?,
        };
        if sealer.manifest.complete {
            sealer.manifest.complete = false;
            sealer.manifest.commit(&dir)?;
        }
        Writer::start(dir, options, sealer, lock)
    }

    fn start(dir: Dir, options: Options, sealer: Sealer, lock: Lock) -> Result<Writer> {
        let segment = sealer.manifest.next_segment;
        let journal = Journal::create(&dir, segment)?;
        Ok(Writer {
            dir,
            options,
            pending: Rows::default(),
            pending_rows: 0,
            failing: false,
            journal: Some(journal),
            segment,
            opened: Instant::now(),
            unsealed: VecDeque::new(),
            written: Written { lost: sealer.manifest.lost_rows, ..Written::default() },
            sealing: Sealing::Idle(Box::new(sealer)),
            retry_at: None,
            lock: Some(Arc::new(lock)),
        })
    }

    /// Where the trace lies.
    pub fn path(&self) -> &Path {
        &self.dir.path
    }

    /// What was done so far.
    pub fn written(&self) -> Written {
        self.written
    }

    /// Whether what was committed last could not be written, or a sealing failed and waits for its
    /// next try.
    pub fn is_failing(&self) -> bool {
        self.failing || self.retry_at.is_some()
    }

    /// Takes all of `rows` out; they are safe after the next [`Writer::flush_journal`].
    ///
    /// Flushes when many have gathered. After an error the rows are held, up to
    /// [`Options::max_pending`], and [`Writer::flush_journal`] tries them again.
    pub fn append(&mut self, rows: &mut Rows) -> Result<()> {
        let count = rows.len();
        self.pending.append(rows);
        self.pending_rows += count;
        self.written.rows += count as u64;
        if self.failing {
            // To try at every call what has just failed would cost more than the rows are worth.
            self.drop_excess();
            return Ok(());
        }
        if self.pending_rows >= COMMIT_ROWS { self.flush_journal() } else { Ok(()) }
    }

    /// Commits what was appended: from now on it outlives this process. Cheap enough for once a
    /// second: one `write(2)`, no flush to the disk (see the module of the journal for why).
    ///
    /// An error may also be that of a sealing in the background. Nothing is lost by that: its
    /// journal stays, and sealing is tried again after half a minute.
    pub fn flush_journal(&mut self) -> Result<()> {
        let committed = self.commit();
        self.failing = committed.is_err();
        self.drop_excess();
        let old = self.options.seal_after.is_some_and(|after| self.opened.elapsed() >= after);
        let long = self.journal.as_ref().is_some_and(|j| j.length >= self.options.seal_bytes);
        // On a full disk, a journal that becomes Parquet makes room.
        if long || (old || committed.is_err()) && self.has_frames() {
            let rolled = self.roll();
            committed.and(rolled)?;
        } else {
            committed?;
        }
        // Without waiting: takes note of what the sealing thread has done, and gives it more.
        match self.retry_at {
            Some(at) if Instant::now() < at => Ok(()),
            _ => self.drive(false),
        }
    }

    /// Drops what is held, if it is too much, and counts it; but not what later rows refer to, and
    /// is declared once.
    fn drop_excess(&mut self) {
        if !self.failing || self.pending_rows <= self.options.max_pending {
            return;
        }
        let all = std::mem::take(&mut self.pending);
        let declared = Rows {
            entity: all.entity,
            track: all.track,
            source: all.source,
            clock: all.clock,
            stack: all.stack,
            frame: all.frame,
            ..Rows::default()
        };
        let dropped = self.pending_rows;
        if declared.len() <= self.options.max_pending / 2 {
            self.pending_rows = declared.len();
            self.pending = declared;
        } else {
            self.pending_rows = 0;
        }
        self.written.lost += (dropped - self.pending_rows) as u64;
    }

    fn has_frames(&self) -> bool {
        self.journal.as_ref().is_some_and(|j| !j.frames.is_empty())
    }

    fn commit(&mut self) -> Result<()> {
        if self.pending_rows == 0 {
            return Ok(());
        }
        if self.journal.is_none() {
            self.journal = Some(Journal::create(&self.dir, self.segment)?);
            self.opened = Instant::now();
        }
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let Ok(()) = self.pending.each(&mut Put(journal));
        let before = journal.length;
        journal.commit()?;
        self.written.journal_bytes += journal.length - before;
        self.pending_rows = 0;
        // Keeps the allocations for the next second.
        self.pending.clear();
        Ok(())
    }

    /// Appends a batch as it is; what was appended as rows before it stays before it.
    pub(crate) fn append_batch<T: Table>(&mut self, batch: &RecordBatch) -> Result<()> {
        self.commit()?;
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let mut at = 0;
        while at < batch.num_rows() {
            let rows = FRAME_ROWS.min(batch.num_rows() - at);
            journal.put_batch::<T>(&batch.slice(at, rows));
            at += rows;
        }
        let before = journal.length;
        journal.commit()?;
        self.written.journal_bytes += journal.length - before;
        self.written.rows += batch.num_rows() as u64;
        self.flush_journal()
    }

    /// Takes over what other traces, whose rows will be appended, have lost.
    pub(crate) fn inherit<'a>(&mut self, from: impl Iterator<Item = &'a Manifest>) {
        let Sealing::Idle(sealer) = &mut self.sealing else { return };
        let manifest = &mut sealer.manifest;
        for other in from {
            manifest.kept_since = manifest.kept_since.max(other.kept_since);
            manifest.quarantined_bytes += other.quarantined_bytes;
            self.written.lost += other.lost_rows;
        }
    }

    /// Commits what was appended, and begins to seal it.
    pub fn seal(&mut self) -> Result<()> {
        self.flush_journal()?;
        if self.has_frames() {
            self.roll()?;
        }
        self.drive(false)
    }

    /// Puts the journal among those to be sealed and begins the next.
    fn roll(&mut self) -> Result<()> {
        // If sealing does not keep up, the journals wait on disk, where they are safe; only the
        // lists of their frames take memory.
        self.close_journal();
        self.journal = Some(Journal::create(&self.dir, self.segment)?);
        self.opened = Instant::now();
        Ok(())
    }

    /// Moves sealing on; with `wait`, until nothing is left to be sealed.
    fn drive(&mut self, wait: bool) -> Result<()> {
        loop {
            match std::mem::replace(&mut self.sealing, Sealing::Gone) {
                Sealing::Gone => {
                    // What it knew stands in the trace.
                    let manifest = Manifest::read_in(&self.dir)?;
                    let keep = self.options.keep_recent;
                    let sealer = Sealer::resume(self.dir.clone(), manifest, keep)?;
                    self.sealing = Sealing::Idle(Box::new(sealer));
                }
                Sealing::Busy(thread) if !wait && !thread.is_finished() => {
                    self.sealing = Sealing::Busy(thread);
                    return Ok(());
                }
                Sealing::Busy(thread) => {
                    let Ok((sealer, result)) = thread.join() else {
                        self.retry_at = Some(Instant::now() + RETRY);
                        let what = "the thread that seals its journals died";
                        return Err(Error::damaged(&self.dir.path, what));
                    };
                    self.sealing = Sealing::Idle(sealer);
                    self.retry_at = result.is_err().then(|| Instant::now() + RETRY);
                    let segment = result?;
                    self.written.segments += 1;
                    self.unsealed.retain(|(number, _)| *number != segment);
                }
                Sealing::Idle(sealer) => {
                    let Some((segment, journal)) = self.unsealed.front().cloned() else {
                        self.sealing = Sealing::Idle(sealer);
                        return Ok(());
                    };
                    let lost = self.written.lost;
                    let lock = self.lock.clone();
                    let begins = self.options.thread_begins;
                    self.sealing =
                        Sealing::Busy(start(sealer, (segment, journal), lost, lock, begins)?);
                    if !wait {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Takes all rows of these tables out of the trace, in order to write them anew: what was
    /// concluded yesterday gives way to what is concluded today.
    pub fn clear(&mut self, tables: &[&str]) -> Result<()> {
        self.flush_journal()?;
        if self.has_frames() {
            self.roll()?;
        }
        self.drive(true)?;
        match &mut self.sealing {
            Sealing::Idle(sealer) => sealer.clear(tables),
            _ => Ok(()),
        }
    }

    /// Drops, on disk, the segments whose rows all ended before `cutoff`.
    pub fn drop_before(&mut self, cutoff: Ns) -> Result<()> {
        self.drive(true)?;
        match &mut self.sealing {
            Sealing::Idle(sealer) => sealer.drop_before(cutoff),
            _ => Ok(()),
        }
    }

    /// Puts the journal among those to be sealed; an empty one is handed back.
    fn close_journal(&mut self) -> Option<String> {
        let mut journal = self.journal.take()?;
        if journal.frames.is_empty() {
            return Some(journal_name(self.segment));
        }
        journal.close();
        self.unsealed.push_back((self.segment, Arc::new(journal.into_found())));
        self.segment += 1;
        None
    }

    /// Seals everything and marks the trace complete.
    pub fn finish(self) -> Result<Written> {
        let (written, finished) = self.close();
        finished.map(|()| written)
    }

    /// As [`Writer::finish`], but says what was written also when that failed: then the trace is left
    /// as a crash would leave it, and rows that no journal took are counted as lost.
    pub fn close(mut self) -> (Written, Result<()>) {
        let finished = self.seal_all();
        if finished.is_err() && self.commit().is_err() {
            self.written.lost += self.pending_rows as u64;
            self.pending = Rows::default();
            self.pending_rows = 0;
        }
        (self.written, finished)
    }

    fn seal_all(&mut self) -> Result<()> {
        // From now on somebody waits for what is sealed.
        self.options.thread_begins = None;
        let committed = self.commit();
        let mut empty = self.close_journal();
        // The first error may be an old one.
        self.drive(true).or_else(|_| self.drive(true))?;
        if committed.is_err() {
            // The disk was full; what was sealed may have made room.
            self.commit()?;
            empty = self.close_journal();
            self.drive(true)?;
        }
        if let Sealing::Idle(sealer) = &mut self.sealing {
            sealer.manifest.complete = true;
            sealer.manifest.lost_rows = self.written.lost;
            sealer.manifest.commit(&self.dir)?;
        }
        if let Some(name) = empty {
            self.dir.remove(&name)?;
        }
        // Empty by now; if not, it holds something that is not ours to remove.
        let _ = self.dir.root.remove_folder("journal");
        if let Some(lock) = self.lock.take().and_then(Arc::into_inner) {
            self.dir.unlock(lock);
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Whoever drops a writer without `finish` is on the way out; what was appended is worth
        // one more try, and a failure has nobody to hear of it.
        let _ = self.commit();
    }
}

pub(crate) fn take_lock(dir: &Dir) -> Result<Lock> {
    match dir.lock() {
        Locking::Taken(lock) => Ok(lock),
        Locking::Busy => Err(Error::Busy { path: dir.path.clone() }),
        Locking::Barred(e) => Err(Error::io("lock", &dir.path)(e)),
    }
}

type SealingThread = JoinHandle<(Box<Sealer>, Result<u32>)>;

fn start(
    mut sealer: Box<Sealer>,
    (segment, journal): (u32, Arc<Found>),
    lost: u64,
    lock: Option<Arc<Lock>>,
    begins: Option<ThreadBegins>,
) -> Result<SealingThread> {
    let path: PathBuf = sealer.dir.path.clone();
    let thread = std::thread::Builder::new().name("gpuwhy-seal".into());
    let run = move || {
        let _gives_way = begins.map(|begins| begins());
        // Held to the end: a writer that is dropped meanwhile must not let another one in.
        let _lock = lock;
        sealer.manifest.lost_rows = lost;
        let result = sealer.seal(segment, &journal).map(|_| segment);
        (sealer, result)
    };
    thread.spawn(run).map_err(Error::io("start the sealing thread of", &path))
}

/// Puts all rows into the next commit of a journal, and leaves them where they are.
struct Put<'a>(&'a mut Journal);

impl EachTable for Put<'_> {
    type Error = std::convert::Infallible;

    fn table<T: Table>(&mut self, rows: &mut Vec<T>) -> Result<(), Self::Error> {
        self.0.put(rows);
        Ok(())
    }
}
