//! From an excess to a verdict: class, culprit, confidence, and the evidence both ways.
//!
//! Causes are ranked by the milliseconds that they account for. Confidence is the share of 200
//! seeded bootstrap resamples (of the usual and the slow steps) in which the same class comes out
//! first, times the share of the growth that is explained, less what too few steps and lost
//! records leave open, [calibrated](crate::calibration) on trials of known cause. Below [`Judgement::decide_at`] the verdict is "insufficient evidence", and
//! the causes are still listed.

use std::collections::HashMap;

use gpuwhy_schema::{Class, Entity, EntityId, EntityKind, Name, Ns, Part, PartKind, Rows};
use gpuwhy_schema::{SourceState, Track, names, sources};
use serde::Serialize;

use crate::calibration::Calibration;
use crate::detect::{Incident, Step, mean_excess};
use crate::excess::{Excess, class_of, compared, first_in_the_way, kinds_of, profiles};
use crate::gpu::Readings;
use crate::stats::Random;

/// How a judgement is passed.
#[derive(Clone, Copy, Debug)]
pub struct Judgement {
    /// Confidence from which a verdict is given.
    pub decide_at: f64,
    /// Bootstrap resamples.
    pub resamples: usize,
    /// Causes told at most.
    pub causes: usize,
    /// From the confidence that a judgement has in itself to how often such a one is right.
    pub calibration: Calibration,
}

impl Default for Judgement {
    fn default() -> Judgement {
        Judgement { decide_at: 0.5, resamples: 200, causes: 5, calibration: Calibration::MEASURED }
    }
}

/// Whether a cause is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The first cause is believed.
    Decided,
    /// Something was slower, but what was seen does not say why.
    InsufficientEvidence,
}

/// Who did it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Culprit {
    /// Its entity in the trace.
    pub entity: u32,
    /// What it is: `process`, `cgroup`, …
    pub kind: &'static str,
    /// Its pid, if it is a process.
    pub pid: Option<i64>,
    /// Its name, if it is a process.
    pub comm: Option<String>,
    /// Its name, if it is a device.
    pub name: Option<String>,
    /// Its cgroup, or itself if it is one.
    pub cgroup: Option<String>,
    /// The container and the job that it belongs to, outermost last.
    pub belongs_to: Vec<String>,
}

/// Rows of the trace that a statement rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pointer {
    /// The table.
    pub table: &'static str,
    /// The track, if all rows lie on one.
    pub track: Option<u32>,
    /// From this time, ns.
    pub from_ns: i64,
    /// To this time, ns.
    pub to_ns: i64,
    /// A query that shows them, for DuckDB in the trace's directory.
    pub sql: String,
}

/// One statement for or against a cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// What was seen.
    pub says: String,
    /// Where.
    pub rows: Option<Pointer>,
}

/// A cause, with what speaks for and against it.
#[derive(Clone, Debug, Serialize)]
pub struct Cause {
    /// 1 for the first.
    pub rank: u32,
    /// What it is an instance of.
    pub class: &'static str,
    /// Who did it.
    pub culprit: Option<Culprit>,
    /// Others that were in the way for the same reason, with their ms a step.
    pub others: Vec<(Culprit, f64)>,
    /// How many ms of the excess of a step are blamed on the culprit.
    pub culprit_ms: f64,
    /// How many ms of the excess of a step it accounts for.
    pub excess_ms: f64,
    /// How sure, from 0 to 1.
    pub confidence: f64,
    /// What speaks for it.
    pub evidence_for: Vec<Evidence>,
    /// What speaks against it.
    pub evidence_against: Vec<Evidence>,
    /// What would prove it.
    pub verify: String,
    #[serde(skip)]
    class_of: Option<Class>,
}

impl Cause {
    /// The kinds of part that are evidence for its class.
    pub fn kinds(&self) -> Vec<&'static str> {
        self.class_of.map_or(vec![], kinds_of).into_iter().map(PartKind::as_str).collect()
    }
}

/// Ms a step of one kind of part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PartMs {
    /// In usual steps.
    pub usual: f64,
    /// In slow steps.
    pub slow: f64,
    /// The difference.
    pub excess: f64,
}

/// One slowed series.
#[derive(Clone, Debug, Serialize)]
pub struct SlowedSeries {
    /// Name of the steps.
    pub name: String,
    /// The thread's tid.
    pub tid: Option<i64>,
    /// Its name.
    pub comm: String,
    /// The rank.
    pub rank: Option<u32>,
    /// Median of usual steps, ms.
    pub usual_ms: f64,
    /// The threshold of a single step, ms.
    pub threshold_ms: f64,
    /// Slow steps.
    pub steps: usize,
    /// Mean excess of a step, ms.
    pub excess_ms: f64,
}

/// What the slow steps would have taken had the culprit not been in the way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counterfactual {
    /// Who is thought away.
    pub without: Culprit,
    /// Their 99th percentile, ms.
    pub p99_ms: f64,
    /// The same without the culprit.
    pub p99_without_ms: f64,
    /// Their mean, ms.
    pub mean_ms: f64,
    /// The same without the culprit.
    pub mean_without_ms: f64,
}

impl std::fmt::Display for Counterfactual {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "without {} the slow steps would have taken {} instead of {}, their p99 {} instead of {}",
            self.without,
            time(self.mean_without_ms),
            time(self.mean_ms),
            time(self.p99_without_ms),
            time(self.p99_ms)
        )
    }
}

/// What was slower, by how much, made of what, because of whom, and how sure.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// When it began, ns on the trace clock.
    pub from_ns: i64,
    /// When it ended.
    pub to_ns: i64,
    /// Whether the first cause is believed.
    pub outcome: Outcome,
    /// The first cause's class.
    pub class: &'static str,
    /// The first cause's culprit.
    pub culprit: Option<Culprit>,
    /// The first cause's confidence: how often such a verdict is right.
    pub confidence: f64,
    /// The same before it was calibrated on the benchmark's trials.
    pub raw_confidence: f64,
    /// Mean duration of a usual step, ms.
    pub usual_ms: f64,
    /// Mean duration of a slow step, ms.
    pub slow_ms: f64,
    /// The difference: `parts_ms` and `unexplained_ms` sum to it.
    pub excess_ms: f64,
    /// The difference, by kind of part.
    pub parts_ms: std::collections::BTreeMap<&'static str, f64>,
    /// What no part accounts for.
    pub unexplained_ms: f64,
    /// Usual and slow ms of each kind, `unknown` included.
    pub parts: std::collections::BTreeMap<&'static str, PartMs>,
    /// How many slow steps were accounted for.
    pub slow_steps: usize,
    /// How many usual steps they were compared with.
    pub usual_steps: usize,
    /// Which series were slower.
    pub series: Vec<SlowedSeries>,
    /// Why, most ms first.
    pub causes: Vec<Cause>,
    /// What was checked and does not account for it.
    pub ruled_out: Vec<Evidence>,
    /// What would have been without the culprit of the first cause.
    pub counterfactual: Option<Counterfactual>,
    /// One sentence for people.
    pub summary: String,
}

/// What the judgement needs of the recorded rows besides steps and parts.
pub struct Court<'a> {
    entities: HashMap<EntityId, &'a Entity>,
    tracks: HashMap<(EntityId, &'a str), &'a Track>,
    loss: Vec<Loss>,
    readings: Readings,
}

/// A source that did not see everything.
struct Loss {
    evidence: Evidence,
    /// The classes that it is evidence for; all of them if none is listed.
    about: &'static [Class],
    /// Whether it lost events, rather than was set up to see fewer.
    lost: bool,
}

/// Losses rarer than one event in so many do not move a verdict.
const LOSS_TOLD_ONE_IN: u64 = 1000;

impl<'a> Court<'a> {
    /// Looks names and tracks up in `rows`, and what its sources lost.
    pub fn new(rows: &'a Rows) -> Court<'a> {
        let entities = rows.entity.iter().map(|e| (e.id, e)).collect();
        let tracks = rows.track.iter().map(|t| ((t.entity, &*t.name), t)).collect();
        let sources: HashMap<_, _> = rows.source.iter().map(|s| (s.id, s)).collect();
        let mut sources: Vec<_> = sources.into_values().collect();
        sources.sort_by_key(|s| s.id);
        let loss = sources
            .into_iter()
            .filter_map(|s| {
                let all = s.recorded + s.dropped;
                let lost = s.dropped > 0 && s.dropped * LOSS_TOLD_ONE_IN >= all;
                let says = match s.state {
                    SourceState::Ok if !lost => return None,
                    SourceState::Ok => format!("{} lost {} of {all} events", s.kind, s.dropped),
                    state => {
                        let note = s.note.as_deref().unwrap_or("no reason given");
                        format!("{} was {state}: {note}", s.kind)
                    }
                };
                let sql = "select * from 'source/*.parquet'".to_string();
                let rows = Pointer { table: "source", track: None, from_ns: 0, to_ns: 0, sql };
                let evidence = Evidence { says, rows: Some(rows) };
                Some(Loss { evidence, about: sources::evidence_for(&s.kind), lost })
            })
            .collect();
        Court { entities, tracks, loss, readings: Readings::default() }
    }

    /// With what the drivers of GPUs said around the incidents.
    pub fn with_readings(self, readings: Readings) -> Court<'a> {
        Court { readings, ..self }
    }

    fn losses(&self, class: Class) -> impl Iterator<Item = &Loss> {
        self.loss.iter().filter(move |l| l.about.is_empty() || l.about.contains(&class))
    }

    fn lost(&self, class: Class) -> bool {
        self.losses(class).any(|l| l.lost)
    }

    /// Who an entity is, as people call it.
    pub fn culprit(&self, id: EntityId) -> Option<Culprit> {
        let entity = self.entities.get(&id)?;
        let mut cgroup = None;
        let mut belongs_to = Vec::new();
        let mut at = entity.parent;
        while let Some(parent) = at.and_then(|id| self.entities.get(&id)) {
            match parent.kind {
                EntityKind::Cgroup if cgroup.is_none() => cgroup = Some(parent.key.to_string()),
                EntityKind::Container | EntityKind::Job | EntityKind::Vm => {
                    belongs_to.push(format!("{} {}", parent.kind, parent.name));
                }
                _ => {}
            }
            at = parent.parent;
            // A chain of parents is short; one that is not is a loop in a hostile trace.
            if belongs_to.len() > 16 {
                break;
            }
        }
        if entity.kind == EntityKind::Cgroup {
            cgroup = Some(entity.key.to_string());
        }
        let process = matches!(entity.kind, EntityKind::Process | EntityKind::Thread);
        Some(Culprit {
            entity: id.0,
            kind: entity.kind.as_str(),
            pid: entity.number.filter(|_| process),
            comm: process.then(|| entity.name.to_string()),
            name: (entity.kind == EntityKind::Gpu).then(|| entity.name.to_string()),
            cgroup,
            belongs_to,
        })
    }

    fn track(&self, entity: EntityId, name: &str) -> Option<u32> {
        self.tracks.get(&(entity, name)).map(|t| t.id.0)
    }

    /// The rows that a part rests on.
    fn pointer(&self, part: &Part) -> Pointer {
        let (from, to) = (part.ts.0, part.ts.saturating_add(part.dur).0);
        let (table, track) = match part.kind {
            PartKind::Network => ("message", None),
            PartKind::BlockQueue | PartKind::BlockDevice | PartKind::CacheMiss => ("io", None),
            PartKind::Gpu
            | PartKind::GpuQueue
            | PartKind::GpuThrottled
            | PartKind::GpuFault
            | PartKind::Copy => ("span", None),
            _ => ("state", self.track(part.thread, names::THREAD_STATE)),
        };
        let on = track.map_or(String::new(), |t| format!(" and track = {t}"));
        let sql = format!("select * from '{table}/*.parquet' where ts between {from} and {to}{on}");
        Pointer { table, track, from_ns: from, to_ns: to, sql }
    }
}

impl std::fmt::Display for Culprit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.comm, self.pid, &self.cgroup) {
            (Some(comm), Some(pid), _) => write!(f, "{comm} (pid {pid})"),
            (_, _, Some(cgroup)) => write!(f, "cgroup {cgroup}"),
            _ if self.name.is_some() => f.write_str(self.name.as_deref().unwrap_or_default()),
            _ => write!(f, "{} {}", self.kind, self.entity),
        }
    }
}

const MS: f64 = 1e6;
/// How far a throttled GPU is believed in whose clock nobody told.
const UNCLOCKED: f64 = 0.4;

/// Of the slow steps that are looked into, one in so many is one of the longest.
const LONGEST_ONE_IN: usize = 4;

/// Steps of an incident whose parts are needed to judge it, at most `most` slow and as many usual
/// ones a series: the longest slow ones, and of the others and of the usual ones some, spread evenly.
pub fn wanted(steps: &[Step], incident: &Incident, most: usize) -> Vec<usize> {
    let spread = |indices: &[usize], most: usize| -> Vec<usize> {
        let stride = indices.len().div_ceil(most.max(1)).max(1);
        indices.iter().step_by(stride).copied().collect()
    };
    let mut out = Vec::new();
    for slowed in &incident.slowed {
        out.extend(spread(&slowed.usual, most));
        let mut longest = slowed.longest_first(steps);
        longest.truncate(most / LONGEST_ONE_IN);
        // A step may stand in two of the anomalies that were joined.
        longest.sort_unstable();
        longest.dedup();
        let others: Vec<usize> =
            slowed.slow.iter().copied().filter(|i| !longest.contains(i)).collect();
        out.extend(spread(&others, most - longest.len()));
        out.extend(longest);
    }
    out.sort_unstable();
    out.dedup();
    out
}

/// Judges one incident, as [`Incident::where_it_hung`] has it, from the parts of its steps.
pub fn judge(
    steps: &[Step],
    incident: &Incident,
    parts: &[Part],
    court: &Court<'_>,
    judgement: &Judgement,
) -> Finding {
    let profiles = profiles(steps, parts);
    let series = compared(steps, incident, &profiles);
    let excess = Excess::of(&series);
    let lowered = court.readings.is_lowered(incident.from, incident.to);
    let gpu_work = match lowered {
        Some(false) => Class::Unexplained,
        _ => class_of(PartKind::Gpu),
    };
    let classes = excess.classes_with(gpu_work);
    let mut ranked: Vec<(Class, f64)> = classes.iter().map(|(c, ns)| (*c, *ns)).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));

    let mut random = Random::new(0x6770_7577);
    let mut firsts: HashMap<Class, usize> = HashMap::new();
    if !series.is_empty() {
        for _ in 0..judgement.resamples {
            let classes = Excess::resampled(&series, &mut random).classes_with(gpu_work);
            if let Some((class, _)) = classes.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)) {
                *firsts.entry(class).or_default() += 1;
            }
        }
    }
    let kinds = excess.kinds();
    let unexplained = kinds.get(&PartKind::Unknown).map_or(0.0, |(usual, slow)| slow - usual);
    let grown: f64 = ranked.iter().map(|(_, ns)| ns.max(0.0)).sum();
    let enough = enough(&excess);

    let mut causes: Vec<Cause> = ranked
        .iter()
        .filter(|(_, ns)| *ns > 0.02 * grown && *ns > 0.0)
        .take(judgement.causes)
        .enumerate()
        .map(|(i, &(class, ns))| {
            let first = firsts.get(&class).copied().unwrap_or(0) as f64;
            let share = (ns / grown.max(1.0)).clamp(0.0, 1.0);
            let explained = (1.0 - unexplained.max(0.0) / grown.max(1.0)).clamp(0.0, 1.0);
            // A class that comes out first but holds a third of the growth is a guess.
            let held = (share / 0.6).min(1.0);
            let weight = if i == 0 { held } else { share };
            let lossless = if court.lost(class) { 0.9 } else { 1.0 };
            let confidence =
                first / judgement.resamples.max(1) as f64 * explained * weight * enough * lossless;
            let mut cause = Cause {
                rank: i as u32 + 1,
                class: class.as_str(),
                culprit: None,
                others: Vec::new(),
                culprit_ms: 0.0,
                excess_ms: ns / MS,
                confidence: if class == Class::Unexplained { 0.0 } else { confidence },
                evidence_for: Vec::new(),
                evidence_against: Vec::new(),
                verify: String::new(),
                class_of: Some(class),
            };
            blame(&mut cause, &excess, incident, parts, steps, court);
            let (mut yes, mut no) = court.readings.evidence(class, incident.from, incident.to);
            let grew = kinds.get(&PartKind::Gpu).map_or(0.0, |(usual, slow)| slow - usual);
            if class == Class::GpuThrottling && lowered.is_none() && grew > 0.5 * ns {
                no.push(Evidence { says: "nobody told the GPU's clock".into(), rows: None });
            }
            if class == Class::Unexplained && gpu_work == class && grew > 0.1 * ns {
                yes.push(Evidence {
                    says: format!(
                        "its own work on the GPU took {:.3} ms longer a step; the clock was not \
                         lowered, and nobody else was seen there",
                        grew / MS
                    ),
                    rows: None,
                });
            }
            cause.evidence_for.append(&mut yes);
            cause.evidence_against.append(&mut no);
            cause
        })
        .collect();
    if causes.is_empty() {
        causes.push(nothing_seen(&excess));
    }
    against(&mut causes, &ranked, unexplained, grown, court);

    let raw_confidence = causes[0].confidence;
    if raw_confidence > 0.0 {
        causes[0].confidence = judgement.calibration.apply(raw_confidence);
    }
    // Slower, shared by somebody who was not seen, or more to do: all look alike to whom nobody told
    // the clock.
    let of_work = kinds.get(&PartKind::Gpu).map_or(0.0, |(usual, slow)| (slow - usual) / MS);
    if lowered.is_none()
        && causes[0].class_of == Some(Class::GpuThrottling)
        && of_work > 0.5 * causes[0].excess_ms
    {
        causes[0].confidence *= UNCLOCKED;
    }
    let first = &causes[0];
    let decided = first.confidence >= judgement.decide_at && first.class_of.is_some();
    let outcome = if decided { Outcome::Decided } else { Outcome::InsufficientEvidence };
    let total = if series.is_empty() {
        incident.slowed.first().map_or(0.0, |s| mean_excess(steps, s))
    } else {
        excess.total()
    };
    let mut parts_ms: std::collections::BTreeMap<&'static str, f64> = kinds
        .iter()
        .filter(|(kind, _)| **kind != PartKind::Unknown)
        .map(|(kind, (usual, slow))| (kind.as_str(), (slow - usual) / MS))
        .collect();
    parts_ms.retain(|_, ms| *ms != 0.0);
    let unexplained_ms = if series.is_empty() { total / MS } else { unexplained / MS };
    let mut finding = Finding {
        from_ns: incident.from.0,
        to_ns: incident.to.0,
        outcome,
        class: if decided { first.class } else { Class::Unexplained.as_str() },
        culprit: first.culprit.clone().filter(|_| decided),
        confidence: first.confidence,
        raw_confidence,
        usual_ms: excess.usual / MS,
        slow_ms: excess.slow / MS,
        excess_ms: total / MS,
        parts_ms,
        unexplained_ms,
        parts: kinds
            .iter()
            .map(|(kind, &(usual, slow))| {
                let part =
                    PartMs { usual: usual / MS, slow: slow / MS, excess: (slow - usual) / MS };
                (kind.as_str(), part)
            })
            .collect(),
        slow_steps: excess.slow_steps,
        usual_steps: excess.usual_steps,
        series: incident.slowed.iter().map(|s| told(steps, s, court)).collect(),
        ruled_out: ruled_out(&excess, &causes),
        counterfactual: first.culprit.as_ref().filter(|_| decided).and_then(|culprit| {
            let without = crate::excess::without(&series, EntityId(culprit.entity))?;
            Some(Counterfactual {
                without: culprit.clone(),
                p99_ms: without.p99 / MS,
                p99_without_ms: without.p99_without / MS,
                mean_ms: without.mean / MS,
                mean_without_ms: without.mean_without / MS,
            })
        }),
        causes,
        summary: String::new(),
    };
    finding.summary = summary(&finding);
    finding
}

/// How far the steps that were compared suffice. A step that took ten times as long as usual and
/// more says as much as so many that took twice as long.
fn enough(excess: &Excess) -> f64 {
    let times = excess.slow / excess.usual.max(1.0);
    let weight = if times >= 10.0 { times } else { 1.0 };
    let slow = excess.slow_steps as f64 * weight;
    1.0 - 0.5f64.powf(slow.min(excess.usual_steps as f64) / 3.0)
}

fn told(steps: &[Step], slowed: &crate::detect::Slowed, court: &Court<'_>) -> SlowedSeries {
    let thread = court.entities.get(&slowed.signature.thread);
    SlowedSeries {
        name: slowed.signature.name.to_string(),
        tid: thread.and_then(|t| t.number),
        comm: thread.map_or(String::new(), |t| t.name.to_string()),
        rank: slowed.slow.first().and_then(|&i| steps[i].rank),
        usual_ms: slowed.fit.center.exp() / MS,
        threshold_ms: slowed.threshold.0 as f64 / MS,
        steps: slowed.slow.len(),
        excess_ms: mean_excess(steps, slowed) / MS,
    }
}

/// Names the culprits of a cause and what speaks for it.
fn blame(
    cause: &mut Cause,
    excess: &Excess,
    incident: &Incident,
    parts: &[Part],
    steps: &[Step],
    court: &Court<'_>,
) {
    let Some(class) = cause.class_of else { return };
    let kinds = kinds_of(class);
    let all = excess.kinds();
    let slow_ids: std::collections::HashSet<_> =
        incident.slowed.iter().flat_map(|s| &s.slow).map(|&i| steps[i].id).collect();
    for kind in &kinds {
        let Some(&(usual, slow)) = all.get(kind) else { continue };
        if slow - usual <= 0.02 * excess.total().abs() {
            continue;
        }
        let of_kind = || parts.iter().filter(|p| p.kind == *kind && slow_ids.contains(&p.step));
        let mut seen: Vec<_> = of_kind().map(|p| p.step).collect();
        seen.sort_unstable();
        seen.dedup();
        let longest = of_kind().max_by_key(|p| p.dur);
        cause.evidence_for.push(Evidence {
            says: format!(
                "{kind}: {:.3} ms a step before, {:.3} ms during; in {} of {} slow steps",
                usual / MS,
                slow / MS,
                seen.len(),
                excess.slow_steps
            ),
            rows: longest.map(|p| court.pointer(p)),
        });
    }
    let mut blamed: HashMap<EntityId, (f64, f64)> = HashMap::new();
    for (&(kind, blame), &(usual, slow)) in &excess.parts {
        if let Some(blame) = blame.filter(|_| kinds.contains(&kind)) {
            let sum = blamed.entry(blame).or_default();
            sum.0 += usual;
            sum.1 += slow;
        }
    }
    let mut blamed: Vec<_> = blamed.into_iter().filter(|(_, (u, s))| s > u).collect();
    blamed.sort_by(|a, b| (b.1.1 - b.1.0).total_cmp(&(a.1.1 - a.1.0)).then(a.0.cmp(&b.0)));
    let worth = 0.1 * cause.excess_ms * MS;
    for (rank, (id, (usual, slow))) in blamed.into_iter().take(4).enumerate() {
        let Some(culprit) = court.culprit(id) else { continue };
        if slow - usual < worth {
            continue;
        }
        if rank > 0 {
            cause.others.push((culprit, (slow - usual) / MS));
            continue;
        }
        let in_the_way = first_in_the_way(parts, &kinds, id, incident.from);
        let example = parts
            .iter()
            .filter(|p| p.blame == Some(id) && kinds.contains(&p.kind))
            .filter(|p| slow_ids.contains(&p.step))
            .max_by_key(|p| p.dur);
        cause.evidence_for.push(Evidence {
            says: format!(
                "{culprit} was in the way for {:.3} ms a step, {:.3} ms before; first {}",
                slow / MS,
                usual / MS,
                in_the_way.map_or("at an unknown time".into(), |ts| format!(
                    "{} after the onset",
                    ts.saturating_sub(incident.from)
                ))
            ),
            rows: example.map(|p| court.pointer(p)),
        });
        if usual > 0.2 * slow {
            cause.evidence_against.push(Evidence {
                says: format!(
                    "{culprit} was in the way before the onset too ({:.3} ms a step)",
                    usual / MS
                ),
                rows: None,
            });
        }
        cause.verify = verify(class, Some(&culprit));
        cause.culprit_ms = (slow - usual) / MS;
        cause.culprit = Some(culprit);
    }
    if cause.culprit.is_none() {
        cause.verify = verify(class, None);
        if matches!(class, Class::CpuContention | Class::BlockIo | Class::LockContention) {
            cause.evidence_against.push(Evidence {
                says: "nobody in particular was seen in the way".into(),
                rows: None,
            });
        }
    }
}

fn nothing_seen(excess: &Excess) -> Cause {
    Cause {
        rank: 1,
        class: Class::Unexplained.as_str(),
        culprit: None,
        others: Vec::new(),
        culprit_ms: 0.0,
        excess_ms: excess.total() / MS,
        confidence: 0.0,
        evidence_for: Vec::new(),
        evidence_against: vec![Evidence {
            says: "no thread states were recorded for these steps".into(),
            rows: None,
        }],
        verify: "record again as root or with CAP_BPF and CAP_PERFMON: see `gpuwhy doctor`".into(),
        class_of: None,
    }
}

fn against(
    causes: &mut [Cause],
    ranked: &[(Class, f64)],
    unexplained: f64,
    grown: f64,
    court: &Court<'_>,
) {
    for cause in causes {
        let rival = ranked.iter().find(|(c, _)| Some(*c) != cause.class_of);
        if let Some((class, ns)) = rival.filter(|(_, ns)| *ns > 0.1 * grown) {
            cause.evidence_against.push(Evidence {
                says: format!("{class} accounts for {:.3} ms a step as well", ns / MS),
                rows: None,
            });
        }
        if unexplained > 0.1 * grown {
            cause.evidence_against.push(Evidence {
                says: format!(
                    "{:.3} ms a step are accounted for by nothing seen",
                    unexplained / MS
                ),
                rows: None,
            });
        }
        if let Some(class) = cause.class_of {
            cause.evidence_against.extend(court.losses(class).map(|l| l.evidence.clone()));
        }
    }
}

/// The classes that were looked for and account for nothing to speak of.
fn ruled_out(excess: &Excess, causes: &[Cause]) -> Vec<Evidence> {
    let kinds = excess.kinds();
    Class::ALL
        .iter()
        .filter(|class| causes.iter().all(|c| c.class_of != Some(**class)))
        .filter_map(|class| {
            let (usual, slow) = kinds
                .iter()
                .filter(|(kind, _)| class_of(**kind) == *class)
                .fold((0.0, 0.0), |sum, (_, (u, s))| (sum.0 + u, sum.1 + s));
            let seen = PartKind::ALL.iter().any(|kind| class_of(*kind) == *class);
            seen.then(|| Evidence {
                says: format!(
                    "{class}: {:.3} ms a step before, {:.3} ms during",
                    usual / MS,
                    slow / MS
                ),
                rows: None,
            })
        })
        .collect()
}

fn verify(class: Class, culprit: Option<&Culprit>) -> String {
    let pid = culprit.and_then(|c| c.pid);
    match (class, pid) {
        (Class::CpuContention, Some(pid)) => format!(
            "move it away for a while and record again: `taskset -acp <other CPUs> {pid}`, or pause \
             it: `kill -STOP {pid}; sleep 5; kill -CONT {pid}`"
        ),
        (Class::CpuThrottling, _) => {
            "raise the quota (`cpu.max`, `cpu.cfs_quota_us`) and record again; `cpu.stat` counts \
             nr_throttled"
                .into()
        }
        (Class::BlockIo | Class::Network | Class::MemoryPressure, Some(pid)) => {
            format!("pause it and record again: `kill -STOP {pid}; sleep 5; kill -CONT {pid}`")
        }
        (Class::Network, None) => "look for a shaper or a full link: `tc -s qdisc show`".into(),
        (Class::LockContention, Some(pid)) => {
            format!("see what it does while it holds the lock: `gpuwhy record -p {pid}`")
        }
        (Class::GpuThrottling, _) => {
            "compare the clock and its limit reasons: `nvidia-smi -q -d CLOCK,PERFORMANCE`".into()
        }
        (Class::GpuContention, Some(pid)) => format!(
            "pause it and record again: `kill -STOP {pid}; sleep 5; kill -CONT {pid}`; \
             `nvidia-smi pmon` shows who uses the GPU"
        ),
        (Class::Pcie, _) => {
            "look at the link's errors, speed and width: `nvidia-smi -q -d PCIE`, `lspci -vv`"
                .into()
        }
        (Class::GpuFault, _) => {
            "read what the driver says of it: `dmesg | grep -i xid`, `nvidia-smi -q`".into()
        }
        (Class::CollectiveStraggler, Some(pid)) => {
            format!(
                "see what it does before it comes, `gpuwhy record -p {pid}`, and whether it is \
                 stopped, `grep State /proc/{pid}/status`"
            )
        }
        _ => "record again with the suspect paused or moved, and compare".into(),
    }
}

/// With three digits, in the unit that leaves a readable number.
fn time(ms: f64) -> String {
    match ms.abs() {
        1000.0.. => format!("{:.2} s", ms / 1000.0),
        10.0.. => format!("{ms:.1} ms"),
        1.0.. => format!("{ms:.2} ms"),
        _ => format!("{:.0} us", ms * 1000.0),
    }
}

/// One sentence: what, by how much, why, who, how sure.
fn summary(finding: &Finding) -> String {
    let name = finding.series.first().map_or("steps", |s| &s.name);
    let seconds = (finding.to_ns - finding.from_ns) as f64 / 1e9;
    let slower = format!(
        "{name} took {} instead of {} (+{}) for {seconds:.1} s",
        time(finding.slow_ms),
        time(finding.usual_ms),
        time(finding.excess_ms)
    );
    let first = &finding.causes[0];
    let sure = format!("confidence {:.2}", finding.confidence);
    match (finding.outcome, &first.culprit) {
        (Outcome::Decided, Some(culprit)) => {
            format!("{slower}: {} by {culprit}, {sure}", first.class)
        }
        (Outcome::Decided, None) => format!("{slower}: {}, {sure}", first.class),
        (Outcome::InsufficientEvidence, _) => {
            format!("{slower}: insufficient evidence; first suspect {} with {sure}", first.class)
        }
    }
}

/// The finding and its causes as rows, for the trace.
pub fn rows(finding: &Finding, id: gpuwhy_schema::Id, track: gpuwhy_schema::TrackId) -> Rows {
    let json = |value: &dyn erased::Json| -> Name { value.json().into() };
    let mut out = Rows::default();
    out.finding.push(gpuwhy_schema::Finding {
        id,
        ts: Ns(finding.from_ns),
        dur: Ns(finding.to_ns.saturating_sub(finding.from_ns)),
        track,
        detector: "accounting".into(),
        score: finding.excess_ms / finding.usual_ms.max(1e-9),
        baseline: json(&(finding.usual_ms, finding.slow_ms, finding.slow_steps)),
    });
    for cause in &finding.causes {
        out.cause.push(gpuwhy_schema::Cause {
            finding: id,
            rank: cause.rank,
            class: cause.class_of.unwrap_or(Class::Unexplained),
            culprit: cause.culprit.as_ref().map(|c| EntityId(c.entity)),
            excess_ns: Ns((cause.excess_ms * MS) as i64),
            confidence: cause.confidence,
            evidence: json(&(&cause.evidence_for, &cause.evidence_against)),
        });
    }
    out
}

mod erased {
    /// What can be written as JSON; our own types always can.
    pub trait Json {
        fn json(&self) -> String;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> String {
            serde_json::to_string(self).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests;
