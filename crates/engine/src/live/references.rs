//! What steps took in recordings before this one (`watch --reference`): compared with, and added to.
//!
//! Names of processes and threads are what stays the same between recordings, so a series is known by these
//! ([`Key`]). What is stored of it are its level in each recording, and steps with their parts: when it is slower than
//! stored, these are the usual steps of an incident like any other.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use gpuwhy_diagnose::baseline::Fit;
use gpuwhy_diagnose::detect::{Against, By, Expected, Signature, Slowed, Step, StepNo, Steps};
use gpuwhy_diagnose::reference::file::{self, File, Key, Stored, StoredPart, StoredStep};
use gpuwhy_diagnose::reference::{Beside, Level};
use gpuwhy_diagnose::roofline::{self, Mix};
use gpuwhy_schema::{Entity, EntityId, EntityKind, Id, Name, Ns, Part, Rows};

use crate::error::{Error, Result};

/// Series that are compared and kept at most: those that come first.
const SERIES: usize = 64;
/// The ids of stored steps are the last ones, so that no recorded step has one of them.
const STORED: u64 = u64::MAX - (1 << 20);
/// Stored steps lie in so much time before the first slow one: near enough to be compared with.
const NEAR: Ns = Ns::millis(1_000);
/// Steps are sampled for the file this often.
const SAMPLE_EVERY: Ns = Ns::secs(120);
/// A step whose duration lies so far from the level, on the log scale, is no sample of it.
const TYPICAL: f64 = 0.15;
/// What is told of settings that differ.
const TOLD: usize = 8;

/// Whether a step is a stored one.
pub(super) fn is_stored(step: Id) -> bool {
    step.0 >= STORED && step.0 != u64::MAX
}

struct Of {
    key: Key,
    beside: Beside,
    /// Where its steps are measured by what there is to do in them.
    priced: bool,
    sampled: Option<Ns>,
    steps: Vec<StoredStep>,
}

/// A file of references and what was seen beside it.
pub struct References {
    path: PathBuf,
    file: File,
    /// How long ago its latest recording was made, when the watch began.
    age: String,
    series: BTreeMap<Signature, Of>,
    /// Threads with the same names, in the order in which they came.
    alike: HashMap<(String, String), Vec<EntityId>>,
    next: u64,
    /// The first step that is not forgotten.
    forgotten: StepNo,
}

/// A series that is slower than what is stored of it.
pub(super) struct Slower {
    signature: Signature,
    level: Level,
    steps: Vec<StepNo>,
    stored: Vec<StoredStep>,
}

/// The names of a thread.
fn names(catalog: &Rows, thread: EntityId) -> Option<(&Entity, Option<&Entity>)> {
    let of = |id: EntityId| catalog.entity.iter().find(|entity| entity.id == id);
    let entity = of(thread)?;
    Some((entity, entity.parent.and_then(of)))
}

impl References {
    /// Of a file; of nothing, if it is not there yet.
    ///
    /// # Errors
    /// It cannot be read, or is no file of references.
    pub fn open(path: &Path) -> Result<References> {
        let read = match fs::File::open(path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::io("read", path)(error)),
        };
        let file = match read {
            None => File::empty(),
            Some(open) => {
                let mut text = String::new();
                let mut open = open.take(file::LONGEST + 1);
                open.read_to_string(&mut text).map_err(Error::io("read", path))?;
                let parsed = if text.len() as u64 > file::LONGEST {
                    Err(format!("it is longer than {} MiB", file::LONGEST >> 20))
                } else {
                    File::parse(&text)
                };
                parsed.map_err(|why| Error::Reference { path: path.into(), why })?
            }
        };
        let hours = seconds_since_1970().saturating_sub(file.latest_s) as f64 / 3600.0;
        let age = match hours {
            ..2.0 => format!(" {:.0} minutes ago", 60.0 * hours),
            ..48.0 => format!(" {hours:.0} hours ago"),
            _ => format!(" {:.0} days ago", hours / 24.0),
        };
        let (series, alike) = (BTreeMap::new(), HashMap::new());
        let (path, forgotten) = (path.into(), StepNo::default());
        Ok(References { path, file, age, series, alike, next: STORED, forgotten })
    }

    fn key(&mut self, catalog: &Rows, signature: &Signature, rank: Option<u32>) -> Option<Key> {
        let (thread, process) = names(catalog, signature.of)?;
        let process = process.map_or(String::new(), |process| process.name.to_string());
        let named = (process, thread.name.to_string());
        let alike = self.alike.entry(named.clone()).or_default();
        let nth = alike.iter().position(|of| *of == signature.of).unwrap_or_else(|| {
            alike.push(signature.of);
            alike.len() - 1
        });
        Some(Key {
            process: named.0,
            thread: named.1,
            name: signature.name.to_string(),
            rank,
            size_class: signature.size_class,
            mix: signature.mix.map(|mix| mix.as_str().to_owned()),
            nth: nth as u32,
        })
    }

    /// The stored prices of a series, by the rank of its steps.
    pub(super) fn prices(
        &mut self,
        catalog: &Rows,
        (thread, name, rank): (EntityId, &Name, Option<u32>),
        mix: Mix,
    ) -> Option<roofline::Fit> {
        let name = name.clone();
        let signature = Signature { of: thread, name, size_class: None, mix: Some(mix), kind: 0 };
        let key = self.key(catalog, &signature, rank)?;
        self.file.of(&key)?.fit()
    }

    /// Takes a step; `calm` says whether everything is as usual. The series, if it is slower than stored.
    pub(super) fn take(
        &mut self,
        catalog: impl FnOnce() -> Rows,
        (no, step): (StepNo, &Step),
        calm: bool,
        effect: f64,
    ) -> Option<Slower> {
        let signature = step.signature();
        if !self.series.contains_key(&signature) {
            if self.series.len() >= SERIES {
                return None;
            }
            let key = self.key(&catalog(), &signature, step.rank)?;
            let beside = Beside::new(self.file.of(&key).and_then(Stored::level));
            let priced = signature.mix.is_some();
            let of = Of { key, beside, priced, sampled: None, steps: Vec::new() };
            self.series.insert(signature.clone(), of);
        }
        let of = self.series.get_mut(&signature)?;
        if !calm {
            return None;
        }
        let log = log_level(step)?;
        let steps = of.beside.step(no, step.ts, log, effect)?;
        let stored = self.file.of(&of.key)?;
        let (level, stored) = (stored.level()?, stored.steps.clone());
        Some(Slower { signature, level, steps, stored })
    }

    /// Forgets the numbers of steps before `first`.
    pub(super) fn forget(&mut self, first: StepNo) {
        if std::mem::replace(&mut self.forgotten, first) == first {
            return;
        }
        self.series.values_mut().for_each(|of| of.beside.forget(first));
    }

    /// A series of which steps are to be sampled at `now`, and its level.
    pub(super) fn to_sample(&self, now: Ns) -> Option<(Signature, f64)> {
        let due = |of: &Of| of.sampled.is_none_or(|at| now.saturating_sub(at) >= SAMPLE_EVERY);
        let mut due = self.series.iter().filter(|(_, of)| due(of));
        due.find_map(|(signature, of)| Some((signature.clone(), of.beside.level()?.0)))
    }

    /// Takes sampled steps with their parts.
    pub(super) fn sampled(
        &mut self,
        signature: &Signature,
        now: Ns,
        steps: &[&Step],
        parts: &[Part],
    ) {
        let Some(of) = self.series.get_mut(signature) else { return };
        of.sampled = Some(now);
        let mut by_step: HashMap<Id, BTreeMap<(&'static str, bool), i64>> = HashMap::new();
        for part in parts {
            let key = (part.kind.as_str(), part.thread != signature.of);
            *by_step.entry(part.step).or_default().entry(key).or_default() += part.dur.0;
        }
        let stored = |step: &&Step| {
            let part = |((kind, awaited), ns): ((&'static str, bool), i64)| StoredPart {
                kind: kind.to_owned(),
                awaited,
                ns,
            };
            let parts = by_step.remove(&step.id)?.into_iter().map(part).collect();
            let expected_ns = By::First(0.0).of(step).filter(|_| of.priced);
            Some(StoredStep { ns: step.dur.0, expected_ns, parts })
        };
        let steps: Vec<StoredStep> = steps.iter().filter_map(stored).collect();
        if !steps.is_empty() {
            of.steps = steps;
        }
    }

    /// Adds what was seen to the file as it was when the watch began, so that it may be written again and again. Returns
    /// how many series there are in it; none if nothing was to be added.
    ///
    /// # Errors
    /// It cannot be written; the old one is left as it was.
    pub(super) fn write(
        &self,
        catalog: &Rows,
        prices: impl Fn(&Signature) -> Option<roofline::Fit>,
        now_s: u64,
    ) -> Result<Option<usize>> {
        let (mut file, mut added) = (self.file.clone(), false);
        for (signature, of) in &self.series {
            let Some((level, within)) = of.beside.level() else { continue };
            let fit = prices(signature);
            // Without parts there is nothing to compare with.
            if of.steps.is_empty() || of.priced && fit.is_none() {
                continue;
            }
            let fresh = Stored {
                within,
                prices: fit.map(|fit| fit.prices().to_vec()).filter(|_| of.priced),
                largest: fit.map(|fit| fit.largest().to_vec()).filter(|_| of.priced),
                steps: of.steps.clone(),
                settings: settings(catalog, signature.of),
                ..Stored::default()
            };
            file.add(of.key.clone(), level, fresh);
            added = true;
        }
        if !added {
            return Ok(None);
        }
        file.latest_s = now_s;
        gpuwhy_store::write_file(&self.path, file.text().as_bytes())?;
        Ok(Some(file.series.len()))
    }

    /// How many recordings of a series there are in the file, as text.
    pub(super) fn recordings(&self, signature: &Signature) -> String {
        let of = Signature { kind: 0, ..signature.clone() };
        let stored = self.series.get(&of).and_then(|of| self.file.of(&of.key));
        match stored.map_or(0, |stored| stored.levels.len()) {
            1 => format!("one recording{}", self.age),
            n => format!("{n} recordings, the latest{}", self.age),
        }
    }

    /// What the settings of a series' host and process are now, where they are not as stored.
    pub(super) fn differs(&self, catalog: &Rows, signature: &Signature) -> Vec<String> {
        let of = Signature { kind: 0, ..signature.clone() };
        let Some(stored) = self.series.get(&of).and_then(|of| self.file.of(&of.key)) else {
            return Vec::new();
        };
        let now = settings(catalog, signature.of);
        let names: HashSet<&String> = now.keys().chain(stored.settings.keys()).collect();
        let mut names: Vec<&String> = names.into_iter().collect();
        names.sort();
        let word =
            |of: Option<&String>| of.map_or("not set".to_owned(), |value| format!("`{value}`"));
        let differs = names.into_iter().filter(|name| now.get(*name) != stored.settings.get(*name));
        let said = differs
            .map(|n| format!("{n} is {}, was {}", word(now.get(n)), word(stored.settings.get(n))));
        said.take(TOLD).collect()
    }

    /// The anomaly that a slower series is, with its stored steps and their parts: `remember` numbers a step.
    pub(super) fn anomaly(
        &mut self,
        slower: Slower,
        steps: &Steps,
        effect: f64,
    ) -> Option<(Vec<Step>, Vec<Part>, Slowed)> {
        let Slower { signature, level, steps: slow, stored } = slower;
        let first = slow.iter().map(|no| &steps[*no]).min_by_key(|step| step.ts)?;
        let expected = slow.iter().filter_map(|no| By::First(0.0).of(&steps[*no]));
        let expected: Vec<f64> = expected.collect();
        // Typical is what the slow steps should take in the middle.
        let typical = match signature.mix {
            Some(_) if expected.is_empty() => return None,
            Some(_) => Some(gpuwhy_diagnose::stats::quantile_of(expected, 0.5)),
            None => None,
        };
        let other = |of: &Step| of.thread != signature.of && of.name == signature.name;
        let peer = steps.iter().rev().find(|of| other(of)).map_or(signature.of, |of| of.thread);
        let (mut usual, mut parts) = (Vec::new(), Vec::new());
        let apart = NEAR.0 / (stored.len().max(1) as i64 + 1);
        for (n, of) in stored.iter().enumerate() {
            let id = Id(self.next);
            self.next = if self.next + 1 == u64::MAX { STORED } else { self.next + 1 };
            let ts = first.ts.saturating_sub(NEAR).saturating_add(Ns(apart * n as i64));
            let expected = match (signature.mix, of.expected_ns) {
                (Some(mix), Some(ns)) => Expected::Priced { mix, ns, first_ns: Some(ns) },
                _ => Expected::Alike,
            };
            usual.push(Step { id, ts, dur: Ns(of.ns), ran: None, expected, ..first.clone() });
            let mut at = ts;
            for part in &of.parts {
                let Ok(kind) = part.kind.parse() else { continue };
                let thread = if part.awaited { peer } else { signature.of };
                let (dur, hops) = (Ns(part.ns), u32::from(part.awaited));
                parts.push(Part { step: id, ts: at, dur, kind, thread, blame: None, hops });
                at = at.saturating_add(dur);
            }
        }
        let center = level.center + typical.map_or(0.0, f64::ln);
        let scale = level.scale;
        let fit = Fit { center, scale, tail_from: center + scale, tail_mean: scale };
        let threshold = level.slower_from(effect) - level.center + center;
        let slowed = Slowed {
            signature: Signature { kind: u8::MAX - 1, ..signature },
            fit,
            threshold: Ns(threshold.exp().min(9e18) as i64),
            usual: Vec::new(),
            slow,
            score: 1.0,
            alone_from: f64::INFINITY,
            against: Against::Reference,
            as_often: 1.0,
            by: typical.map_or(By::Alike, By::First),
            follows: None,
        };
        Some((usual, parts, slowed))
    }
}

/// What the clock on the wall says.
pub(crate) fn seconds_since_1970() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

/// What a step took, on the log scale: ns, or the times of what it should take.
fn log_level(step: &Step) -> Option<f64> {
    let dur = step.dur.0.max(1) as f64;
    match step.expected {
        Expected::Alike => Some(dur.ln()),
        Expected::NotKnown(_) => None,
        Expected::Priced { first_ns, .. } => Some((dur / first_ns?).ln()),
    }
}

/// The latest calm steps of a series that are typical of its level, and whose rows are held.
pub(super) fn typical<'a>(
    steps: &'a Steps,
    signature: &Signature,
    level: f64,
    covers: impl Fn(&Step) -> bool,
) -> Vec<(StepNo, &'a Step)> {
    let is_typical = |step: &Step| {
        step.signature() == *signature
            && log_level(step).is_some_and(|log| (log - level).abs() < TYPICAL)
            && covers(step)
    };
    let latest = steps.numbered().rev().filter(|(_, step)| !is_stored(step.id) && is_typical(step));
    latest.take(file::STEPS).collect()
}

/// The settings of a thread's process and host.
fn settings(catalog: &Rows, thread: EntityId) -> BTreeMap<String, String> {
    let process = names(catalog, thread).and_then(|(thread, _)| thread.parent);
    let host =
        |id: EntityId| catalog.entity.iter().any(|e| e.id == id && e.kind == EntityKind::Host);
    crate::settings::current(catalog)
        .into_iter()
        .filter(|(owner, ..)| Some(*owner) == process || host(*owner))
        .map(|(_, name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests;
