//! What commands took of the CPUs, window by window: of the whole host, whether or not states were recorded.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_derive::sweep::Cut;
use gpuwhy_diagnose::demand::Demands;
use gpuwhy_schema::{Counter, Entity, EntityId, Name, Ns, TrackId};
use serde::Serialize;

use crate::error::Result;
use crate::source::{EVER, TraceSource};

/// A command that took less than this of a CPU, over all of the recording, is not told,
const WORTH: f64 = 0.01;
/// unless it took this much in some window.
const WORTH_ONCE: f64 = 0.2;
/// Commands that are told apart.
pub(super) const COMMANDS: usize = 4096;
/// A counter's value covers at most this long before it, if it is no more than that.
const TICK: i64 = 100_000_000;

/// What the processes of one command took.
#[derive(Clone, Debug, Serialize)]
pub struct Taken {
    /// The command.
    pub command: String,
    /// The pid of one of its processes, that took most.
    pub pid: Option<i64>,
    /// How many processes took anything.
    pub processes: usize,
    /// CPUs, over all of the recording.
    pub cpus: f64,
    /// CPUs in each window.
    #[serde(skip)]
    pub windows: Vec<f64>,
}

impl Taken {
    /// What people call it.
    pub fn name(&self) -> String {
        match (self.pid, self.processes) {
            (Some(pid), 0 | 1) => format!("{} (pid {pid})", self.command),
            (Some(pid), n) => format!("{} ({n} processes, such as pid {pid})", self.command),
            _ => self.command.clone(),
        }
    }
}

/// What is added up of a command.
#[derive(Default)]
struct Sum {
    /// Of its processes, ns.
    of: HashMap<EntityId, f64>,
    /// By window, ns.
    windows: Vec<f64>,
}

/// What commands took.
#[derive(Default)]
pub struct Commands {
    /// Most first.
    pub taken: Vec<Taken>,
    /// When the first reading was made: of the time before nothing is known.
    pub since: Option<Ns>,
    /// Readings that were left out, as there are too many commands.
    pub uncounted: usize,
}

/// What commands took.
///
/// # Errors
/// The trace cannot be read.
pub fn of_trace(source: &TraceSource, cut: Cut) -> Result<Commands> {
    let catalog = source.entities_and_tracks();
    let entities: HashMap<EntityId, &Entity> = catalog.entity.iter().map(|e| (e.id, e)).collect();
    let tracks: HashMap<TrackId, EntityId> =
        catalog.track.iter().filter(|t| Demands::reads(t)).map(|t| (t.id, t.entity)).collect();
    if tracks.is_empty() {
        return Ok(Commands::default());
    }
    let mut sums: BTreeMap<(Name, Option<EntityId>), Sum> = BTreeMap::new();
    let (mut uncounted, mut since) = (0, None);
    let mut known_until: HashMap<EntityId, Ns> = HashMap::new();
    for rows in source.trace().read::<Counter>(EVER) {
        for row in rows? {
            let Some(process) = tracks.get(&row.track) else { continue };
            let Some(entity) = entities.get(process) else { continue };
            // What a thread used is added when it leaves its CPU, which may be seconds later.
            let value = row.value.max(0.0);
            let before = known_until.insert(*process, row.ts);
            let first = *since.get_or_insert(row.ts);
            let gap = row.ts.saturating_sub(before.unwrap_or(first)).0;
            let from = row.ts.0.saturating_sub(TICK.max((value as i64).min(gap)));
            let key = (entity.name.clone(), entity.parent);
            if sums.len() >= COMMANDS && !sums.contains_key(&key) {
                uncounted += 1;
                continue;
            }
            let sum = sums.entry(key).or_default();
            *sum.of.entry(*process).or_default() += value;
            spread(cut, (from, row.ts.0), value, &mut sum.windows);
        }
    }
    let length = (cut.width as f64 * cut.count as f64).max(1.0);
    let mut all: Vec<Taken> = Vec::new();
    for ((name, _), sum) in sums {
        let cpus = sum.of.values().sum::<f64>() / length;
        let windows: Vec<f64> = sum.windows.iter().map(|ns| ns / cut.width as f64).collect();
        if cpus < WORTH && windows.iter().all(|cpus| *cpus < WORTH_ONCE) {
            continue;
        }
        let most = sum.of.iter().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
        let pid = most.and_then(|(id, _)| entities.get(id)?.number);
        let (command, processes) = (name.to_string(), sum.of.len());
        all.push(Taken { command, pid, processes, cpus, windows });
    }
    all.sort_by(|a, b| b.cpus.total_cmp(&a.cpus).then(a.command.cmp(&b.command)));
    Ok(Commands { taken: all, since, uncounted })
}

/// Spreads what was used from `from` to `to` over the windows.
fn spread(cut: Cut, (from, to): (i64, i64), value: f64, into: &mut Vec<f64>) {
    into.resize(cut.count, 0.0);
    let length = to.saturating_sub(from).max(1) as f64;
    let (mut at, end) = (from.max(cut.origin), to);
    while at < end {
        let Ok(window) = usize::try_from((at - cut.origin) / cut.width) else { return };
        let until = cut.origin.saturating_add(cut.width.saturating_mul(window as i64 + 1)).min(end);
        let Some(sum) = into.get_mut(window) else { return };
        *sum += value * (until - at) as f64 / length;
        at = until;
    }
}
