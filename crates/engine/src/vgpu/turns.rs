//! Whose turn it was on the engines of a GPU, where its driver logs context switches.

use std::collections::BTreeMap;

use gpuwhy_schema::{EntityId, Ns, State, TrackId, names};

use super::counted::{CountedReport, Known, TurnsReport, in_order, process};
use super::{MS, percent_of};
use crate::error::Result;
use crate::source::TraceSource;

/// Whom a turn is of where the driver does not tell.
const NOT_TOLD: &str = "not told";

/// An engine, and whose turn it was when.
#[derive(Debug)]
pub(super) struct Owned {
    /// Of which GPU it is.
    pub gpu: String,
    /// What it is called.
    pub name: String,
    /// From, to and by which of the processes, in the order of time, within the window.
    pub turns: Vec<(i64, i64, usize)>,
    /// Processes.
    processes: Vec<EntityId>,
    /// What they are called.
    pub names: Vec<String>,
}

/// All engines of which it is known.
pub(super) fn owned(source: &TraceSource, window: (i64, i64)) -> Result<Vec<Owned>> {
    let known = Known::of(source.entities_and_tracks());
    let mut engines: BTreeMap<TrackId, Owned> = BTreeMap::new();
    for track in known.tracks.values().filter(|track| &*track.name == names::ENGINE_OWNER) {
        let Some(engine) = known.entities.get(&track.entity) else { continue };
        let (gpu, name) = (known.name(engine.parent), engine.name.to_string());
        let (turns, processes, names) = (Vec::new(), Vec::new(), Vec::new());
        let owned = Owned { gpu, name, turns, processes, names };
        engines.insert(track.id, owned);
    }
    if engines.is_empty() {
        return Ok(Vec::new());
    }
    for rows in source.trace().read::<State>(Ns(window.0)..Ns(window.1)) {
        for row in rows? {
            let Some(owned) = engines.get_mut(&row.track) else { continue };
            let to = row.dur.map_or(window.1, |dur| row.ts.saturating_add(dur).0);
            let (from, to) = (row.ts.0.max(window.0), to.min(window.1));
            let who = EntityId(u32::try_from(row.value).unwrap_or(0));
            if from < to {
                owned.add(from, to, who, &known);
            }
        }
    }
    let mut all: Vec<Owned> = engines.into_values().collect();
    for owned in &mut all {
        owned.join();
    }
    all.sort_by(|a, b| (&a.gpu, &a.name).cmp(&(&b.gpu, &b.name)));
    Ok(all)
}

impl Owned {
    fn add(&mut self, from: i64, to: i64, who: EntityId, known: &Known<'_>) {
        let place = self.processes.iter().position(|one| *one == who).unwrap_or_else(|| {
            self.processes.push(who);
            let name = known.entities.get(&who).map(|one| process(one));
            self.names.push(name.unwrap_or_else(|| NOT_TOLD.to_owned()));
            self.processes.len() - 1
        });
        self.turns.push((from, to, place));
    }

    /// A long turn is recorded in parts.
    fn join(&mut self) {
        self.turns.sort_unstable();
        self.turns.dedup_by(|next, one| {
            let goes_on = one.2 == next.2 && one.1 == next.0;
            if goes_on {
                one.1 = next.1;
            }
            goes_on
        });
    }

    /// What each process had.
    fn reports(&self, window: (i64, i64)) -> Vec<CountedReport> {
        let reports = self.names.iter().enumerate().map(move |(place, name)| {
            let own = self.turns.iter().filter(|turn| turn.2 == place);
            let mut long: Vec<i64> = own.map(|(from, to, _)| to - from).collect();
            long.sort_unstable();
            let busy: i64 = long.iter().sum();
            let at =
                |share: f64| long[((long.len() - 1) as f64 * share).round() as usize] as f64 / MS;
            CountedReport {
                gpu: self.gpu.clone(),
                engine: Some(self.name.clone()),
                process: name.clone(),
                utilisation: percent_of(busy as f64, window),
                busy_ms: Some(busy as f64 / MS),
                provenance: "context switches",
                every_s: 0.0,
                readings: long.len(),
                limit: None,
                turns: Some(TurnsReport { turns: long.len(), p50_ms: at(0.5), p99_ms: at(0.99) }),
            }
        });
        reports.collect()
    }
}

/// What is known of turns, in place of what was summed of them.
pub(super) fn instead(of: &mut Vec<CountedReport>, owned: &[Owned], window: (i64, i64)) {
    let is_known = |one: &CountedReport| {
        owned.iter().any(|owned| owned.gpu == one.gpu && Some(&owned.name) == one.engine.as_ref())
    };
    let mut exact: Vec<CountedReport> = owned.iter().flat_map(|one| one.reports(window)).collect();
    for one in &mut exact {
        let known = of.iter().filter(|known| known.gpu == one.gpu && known.process == one.process);
        one.limit = known.filter_map(|known| known.limit).next();
    }
    in_order(&mut exact);
    of.retain(|one| !is_known(one));
    of.splice(0..0, exact);
}
