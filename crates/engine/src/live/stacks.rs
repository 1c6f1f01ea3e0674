//! Where threads were in their code when their stacks were sampled.

use std::collections::HashMap;

use gpuwhy_schema::{EntityId, Ns, Part, PartKind, Rows, Sample, TrackId, names};

/// Functions of a stack that are shown, the innermost ones.
const SHOWN: usize = 3;
/// Places that are told.
const PLACES: usize = 5;

/// Places, each the innermost three functions of a stack, and their shares of the time that was sampled; the five largest.
pub type Places = Vec<(String, f64)>;

/// Samples of stacks, by the thread that they are of.
pub struct Sampled<'a> {
    running: HashMap<EntityId, Vec<&'a Sample>>,
    asleep: HashMap<EntityId, Vec<&'a Sample>>,
    parents: HashMap<EntityId, Option<EntityId>>,
    stacks: HashMap<u32, (Option<u32>, u32)>,
    frames: HashMap<u32, String>,
}

impl<'a> Sampled<'a> {
    /// Of rows with the entities and tracks that they refer to.
    pub fn new(rows: &'a Rows) -> Sampled<'a> {
        let by_thread = |name: &str| {
            let of = rows.track.iter().filter(|t| &*t.name == name).map(|t| (t.id, t.entity));
            let threads: HashMap<TrackId, EntityId> = of.collect();
            let mut samples: HashMap<EntityId, Vec<&Sample>> = HashMap::new();
            for sample in &rows.sample {
                if let Some(thread) = threads.get(&sample.track) {
                    samples.entry(*thread).or_default().push(sample);
                }
            }
            samples
        };
        Sampled {
            running: by_thread(names::CPU_SAMPLES),
            asleep: by_thread(names::SLEEP_SAMPLES),
            parents: rows.entity.iter().map(|e| (e.id, e.parent)).collect(),
            stacks: rows.stack.iter().map(|s| (s.id, (s.parent, s.frame))).collect(),
            frames: rows.frame.iter().map(|f| (f.id, called(f))).collect(),
        }
    }

    /// Where a thread, or the threads of a process, ran while these parts lasted that are blamed on it, or ever if it was
    /// not sampled then; where it slept, if that is what it is blamed for.
    pub fn culprit(&self, culprit: EntityId, parts: &[&Part]) -> Places {
        let is_of = |thread: EntityId| {
            thread == culprit || self.parents.get(&thread) == Some(&Some(culprit))
        };
        let is_blamed = |part: &&&Part| part.blame.is_some_and(is_of);
        let blamed: Vec<&Part> = parts.iter().filter(is_blamed).copied().collect();
        if blamed.iter().any(|part| part.kind == PartKind::Timer) {
            return self.own(blamed.into_iter().map(|part| (part.thread, part)));
        }
        let of = self.running.iter().filter(|(thread, _)| is_of(**thread));
        let samples: Vec<&Sample> = of.flat_map(|(_, samples)| samples.iter().copied()).collect();
        let within = |s: &&&Sample| blamed.iter().any(|part| lasts_at(part, s.ts));
        let meanwhile: Vec<&Sample> = samples.iter().filter(within).copied().collect();
        let chosen = if meanwhile.is_empty() { samples } else { meanwhile };
        self.places(chosen.into_iter().map(|sample| (sample, 1.0)))
    }

    /// Where these threads were while these parts lasted: the place that they ran in, or where they had gone to sleep.
    pub fn own<'p>(&self, parts: impl Iterator<Item = (EntityId, &'p Part)>) -> Places {
        let none = Vec::new();
        let mut weighed = Vec::new();
        for (thread, part) in parts {
            let end = part.ts.saturating_add(part.dur);
            for sample in self.running.get(&thread).unwrap_or(&none) {
                if lasts_at(part, sample.ts) {
                    weighed.push((*sample, sample.weight));
                }
            }
            for sample in self.asleep.get(&thread).unwrap_or(&none) {
                let woke = sample.ts.saturating_add(Ns(sample.weight as i64));
                let overlap = woke.min(end) - sample.ts.max(part.ts);
                if overlap > Ns::ZERO {
                    weighed.push((*sample, overlap.0 as f64));
                }
            }
        }
        self.places(weighed.into_iter())
    }

    fn places<'s>(&self, weighed: impl Iterator<Item = (&'s Sample, f64)>) -> Places {
        let mut sums: HashMap<String, f64> = HashMap::new();
        let mut all = 0.0;
        for (sample, weight) in weighed {
            *sums.entry(self.innermost(sample.stack)).or_default() += weight;
            all += weight;
        }
        let mut places: Places = sums.into_iter().collect();
        places.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        places.truncate(PLACES);
        places.into_iter().map(|(place, sum)| (place, sum / all)).collect()
    }

    fn innermost(&self, stack: Option<u32>) -> String {
        let (mut functions, mut at) = (Vec::new(), stack);
        while let Some((parent, frame)) =
            at.and_then(|id| self.stacks.get(&id)).filter(|_| functions.len() < SHOWN)
        {
            functions.push(self.frames.get(frame).map_or("?", String::as_str));
            at = *parent;
        }
        functions.reverse();
        functions.join(" > ")
    }
}

/// A function as it is shown: with file and line where they are known.
fn called(frame: &gpuwhy_schema::Frame) -> String {
    match (&*frame.name, &frame.module, frame.line) {
        ("?", Some(module), _) => format!("? of {module}"),
        (name, Some(module), Some(line)) => format!("{name} ({module}:{line})"),
        (name, ..) => name.to_owned(),
    }
}

fn lasts_at(part: &Part, ts: Ns) -> bool {
    (part.ts..part.ts.saturating_add(part.dur)).contains(&ts)
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{EntityKind, Frame, Id, Lane, Lanes, Shape, Stack};

    use super::*;

    const MS: i64 = 1_000_000;

    fn part(kind: PartKind, (from, to): (i64, i64), thread: EntityId, blame: EntityId) -> Part {
        let (step, ts, dur) = (Id::new(0, 1), Ns(from * MS), Ns((to - from) * MS));
        Part { step, ts, dur, kind, thread, blame: Some(blame), hops: 1 }
    }

    /// A process with a thread that takes steps and sleeps in `waits` from 10 to 30, and another that runs: in `hogs`, and
    /// from 40 on in `rests`.
    fn sampled() -> (Rows, [EntityId; 3]) {
        let (mut lanes, mut rows) = (Lanes::default(), Rows::default());
        let source = lanes.source("test", "test", "0", "");
        let process = lanes.entity(EntityKind::Process, "py", |_| {});
        let mut thread =
            |key: &str| lanes.entity(EntityKind::Thread, key, |e| e.parent = Some(process));
        let (main, other) = (thread("main"), thread("other"));
        for (id, name, line) in [(1, "run", None), (2, "waits", Some(7)), (3, "hogs", Some(9))] {
            let module = Some("train.py".into());
            rows.frame.push(Frame { id, name: name.into(), module, file: None, line });
            let parent = (id > 1).then_some(1);
            rows.stack.push(Stack { id, parent, frame: id });
        }
        rows.frame.push(Frame {
            id: 4,
            name: "rests".into(),
            module: None,
            file: None,
            line: None,
        });
        rows.stack.push(Stack { id: 4, parent: None, frame: 4 });
        let mut sample = |thread, name, at: i64, stack, weight: f64| {
            let (unit, shape) = (Some("ns"), Shape::Sample);
            let lane = Lane { name, shape, unit, measure: None, discipline: None };
            let track = lanes.track(thread, None, lane, source);
            let (ts, stack, weight) = (Ns(at * MS), Some(stack), weight * MS as f64);
            rows.sample.push(Sample { ts, track, stack, state: None, weight });
        };
        sample(main, names::SLEEP_SAMPLES, 10, 2, 20.0);
        (0..8).for_each(|n| {
            sample(other, names::CPU_SAMPLES, 10 * n, if n < 4 { 3 } else { 4 }, 10.0)
        });
        lanes.drain(&mut rows);
        (rows, [process, main, other])
    }

    #[test]
    fn a_culprit_was_where_it_ran_while_it_was_in_the_way() {
        let (rows, [process, main, other]) = sampled();
        let sampled = Sampled::new(&rows);
        let held = part(PartKind::Gil, (10, 30), other, other);
        let hogs = [("run > hogs (train.py:9)".to_owned(), 1.0)];
        assert_eq!(sampled.culprit(other, &[&held]), hogs);
        // Nothing is blamed on it: wherever it ran.
        let halves = sampled.culprit(process, &[]);
        assert_eq!(halves.iter().map(|(_, share)| *share).collect::<Vec<_>>(), [0.5, 0.5]);
        // Who is blamed for sleeping was where it slept.
        let slept = part(PartKind::Timer, (12, 28), main, process);
        let waits = [("run > waits (train.py:7)".to_owned(), 1.0)];
        assert_eq!(sampled.culprit(process, &[&slept]), waits);
    }

    #[test]
    fn a_step_was_where_its_thread_slept_meanwhile() {
        let (rows, [_, main, other]) = sampled();
        let sampled = Sampled::new(&rows);
        let held = part(PartKind::Gil, (20, 40), other, other);
        let waits = [("run > waits (train.py:7)".to_owned(), 1.0)];
        assert_eq!(sampled.own([(main, &held)].into_iter()), waits);
        let later = part(PartKind::Gil, (40, 50), other, other);
        assert!(sampled.own([(main, &later)].into_iter()).is_empty());
    }
}
