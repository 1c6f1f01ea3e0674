//! A recording that is cut off by the power at every step, and what must be left of it.
//!
//! A small recorder writes seconds, commits each, seals some segments, fails to seal others, as on a disk
//! that is full for a while, and comes to its end. All that it does to its directory is noted. Each prefix of
//! that is a moment at which the power may go. The store's own tests use this file too.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use gpuwhy_schema::Ns;
use gpuwhy_store::{Durability, MANIFEST, Manifest, Op, Options, Tap, Trace, Writer, validate};

use super::disk::{Disk, Draw, Keeps, lay};
use super::sim::Sim;

/// Seconds of the recording.
const SECONDS: i64 = 12;

/// What a writer did, and to what.
pub struct Recording {
    before: BTreeMap<String, Vec<u8>>,
    /// Everything, in its order.
    pub ops: Vec<Op>,
}

/// A tap that notes everything, and refuses new Parquet files while `fails`.
fn noting(ops: &Arc<Mutex<Vec<Op>>>, fails: &Arc<AtomicBool>) -> Tap {
    let (ops, fails) = (Arc::clone(ops), Arc::clone(fails));
    Tap::new(move |op| {
        let is_sealing = matches!(&op, Op::Create(path) if path.ends_with(".parquet.tmp"));
        if is_sealing && fails.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        ops.lock().unwrap_or_else(|e| e.into_inner()).push(op);
        Ok(())
    })
}

/// Writes a recording at `path`, and notes how.
///
/// # Errors
/// The disk fails, other than as it is asked to.
pub fn record(path: &Path) -> gpuwhy_store::Result<Recording> {
    let (ops, fails) = (Arc::default(), Arc::new(AtomicBool::new(false)));
    let options = Options {
        durability: Durability::PowerLoss,
        tap: Some(noting(&ops, &fails)),
        tool: "power".into(),
        ..Options::default()
    };
    let mut writer = Writer::create(path, options)?;
    let mut sim = Sim::new(1, "a");
    for second in 1..=SECONDS {
        writer.append(&mut sim.second())?;
        writer.flush_journal()?;
        fails.store((5..10).contains(&second), Ordering::Relaxed);
        if matches!(second, 2 | 4 | 6 | 8 | 10) {
            let sealed = writer.seal().and_then(|()| writer.drop_before(Ns::MIN));
            assert_eq!(sealed.is_err(), fails.load(Ordering::Relaxed), "{second}: {sealed:?}");
        }
    }
    fails.store(false, Ordering::Relaxed);
    writer.finish()?;
    let ops = std::mem::take(&mut *ops.lock().unwrap_or_else(|e| e.into_inner()));
    Ok(Recording { before: BTreeMap::new(), ops })
}

/// A state after a cut.
pub struct State {
    /// What lies there.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Seconds that were sealed and flushed.
    pub sealed: i64,
    /// Whether a manifest was.
    pub is_trace: bool,
}

impl Recording {
    /// The moments at which most hangs on what is not flushed yet: a manifest has got its name, a journal was
    /// begun or has gone.
    pub fn critical(&self) -> Vec<usize> {
        let is_critical = |op: &Op| match op {
            Op::Rename(_, to) => to == MANIFEST,
            Op::Create(path) | Op::Remove(path) => path.ends_with(".journal"),
            _ => false,
        };
        (1..=self.ops.len()).filter(|&moment| is_critical(&self.ops[moment - 1])).collect()
    }

    /// What may lie there if the power goes before operation number `moment`.
    pub fn cut(&self, moment: usize, keeps: Keeps, draw: &mut Draw) -> State {
        let mut disk = Disk::of(&self.before);
        // The manifest that a rename puts in its place, and the one whose place was flushed.
        let flushed =
            |bytes: &Vec<u8>| Manifest::parse(str::from_utf8(bytes).ok()?, Path::new("")).ok();
        let mut surest = self.before.get(MANIFEST).and_then(flushed);
        let mut latest = surest.clone();
        for op in &self.ops[..moment] {
            disk.apply(op);
            match op {
                Op::Rename(_, to) if to == MANIFEST => {
                    let all = disk.after_a_cut(Keeps::All, &mut Draw(0));
                    latest = all.get(MANIFEST).and_then(flushed);
                }
                Op::SyncFolder(folder) if folder.is_empty() => surest = latest.clone(),
                _ => {}
            }
        }
        let rows = |m: &Manifest| m.files_of("counter").map(|f| f.rows as i64).sum();
        State {
            files: disk.after_a_cut(keeps, draw),
            sealed: surest.as_ref().map_or(0, rows),
            is_trace: surest.is_some(),
        }
    }
}

/// Opens what is left at `path`, which is a new directory: why it breaks a promise, if it does.
///
/// Then recovery itself is cut off in the same way, and what that leaves is opened.
pub fn broken(state: &State, path: &Path, keeps: Keeps, draw: &mut Draw) -> Option<String> {
    if let Err(e) = lay(&state.files, path) {
        return Some(format!("cannot lay the files: {e}"));
    }
    let again = path.with_extension("again");
    let ops = Arc::default();
    let options = Options {
        tap: Some(noting(&ops, &Arc::default())),
        tool: "power".into(),
        ..Options::default()
    };
    let opened = Writer::open(path, options).map(drop);
    let found = opened.map_err(|e| e.to_string()).and_then(|()| holds(state, path));
    let ops = std::mem::take(&mut *ops.lock().unwrap_or_else(|e| e.into_inner()));
    let recovery = Recording { before: state.files.clone(), ops };
    let second = if recovery.ops.is_empty() {
        Ok(())
    } else {
        let moment = draw.below(recovery.ops.len() as u64 + 1) as usize;
        let mut twice = recovery.cut(moment, keeps, draw);
        twice.sealed = twice.sealed.max(state.sealed);
        twice.is_trace |= state.is_trace;
        lay(&twice.files, &again).map_err(|e| e.to_string()).and_then(|()| holds(&twice, &again))
    };
    let _ = std::fs::remove_dir_all(path);
    let _ = std::fs::remove_dir_all(&again);
    match (found, second) {
        // Before its first manifest was flushed, it need not be a trace.
        (Err(_), _) if !state.is_trace => None,
        (Err(why), _) => Some(why),
        (_, Err(why)) => Some(format!("recovery cut off: {why}")),
        _ => None,
    }
}

fn holds(state: &State, path: &Path) -> Result<(), String> {
    let trace = Trace::open(path).map_err(|e| e.to_string())?;
    let report = validate(&trace);
    if !report.is_valid() {
        return Err(report.to_string());
    }
    let rows = trace.rows(Ns::MIN..Ns::MAX).map_err(|e| e.to_string())?;
    let seconds = rows.counter.len() as i64;
    if seconds < state.sealed {
        return Err(format!("{seconds} seconds are left of {} that were sealed", state.sealed));
    }
    if rows != Sim::truth(1, "a", seconds) {
        return Err(format!("what is left is not the first {seconds} seconds"));
    }
    if trace.manifest().complete && seconds < SECONDS {
        return Err(format!("it says that it is complete with {seconds} seconds"));
    }
    Ok(())
}
