//! From an analysis to the page of a report.

use std::collections::{BTreeMap, HashMap, HashSet};

use gpuwhy_diagnose::detect::StepNo;
use gpuwhy_diagnose::verdict::{Culprit, Evidence, Finding, Outcome};
use gpuwhy_report as report;
use gpuwhy_report::detail;
use gpuwhy_schema::{ClockError, EntityId, EntityKind, Ns, PartKind, SourceState};

use super::{Window, devices, lanes, profile};
use crate::analysis::Analysis;
use crate::error::Result;
use crate::source::TraceSource;
use crate::source_file;

/// The page of an analysis, of the trace at `path`.
///
/// # Errors
/// The trace cannot be read.
pub fn render(source: &TraceSource, analysis: &Analysis, path: &str) -> Result<String> {
    Ok(report::render(&data(source, analysis, path)?))
}

fn who(culprit: &Culprit) -> report::Who {
    report::Who {
        name: culprit
            .comm
            .clone()
            .or_else(|| culprit.name.clone())
            .or_else(|| culprit.cgroup.clone())
            .unwrap_or_else(|| culprit.kind.to_string()),
        pid: culprit.pid,
        cgroup: culprit.cgroup.clone(),
        owner: culprit.belongs_to.first().cloned(),
    }
}

fn data(source: &TraceSource, analysis: &Analysis, path: &str) -> Result<report::ReportData> {
    let window = Window::of(analysis);
    let (start, end) = (window.start(), window.end);
    let finding = analysis.findings.first();
    let entities = &source.entities_and_tracks().entity;
    let of_host =
        |e: &&gpuwhy_schema::Entity| e.kind == EntityKind::Host && &*e.name != "unknown-host";
    let host = entities.iter().find(of_host);
    let mut tracks = profile::phases(analysis, &window);
    let of_devices = match analysis.programs.is_empty() {
        true => devices::Lanes::default(),
        false => devices::lanes(source, &window)?,
    };
    tracks.extend(of_devices.tracks);
    tracks.extend(lanes(source, &window)?);
    Ok(report::ReportData {
        trace: report::TraceInfo {
            path: path.into(),
            host: host.map_or(String::new(), |h| h.name.to_string()),
            recorded: String::new(),
            tool: concat!("gpuwhy ", env!("CARGO_PKG_VERSION")).into(),
            start_ns: start.0,
            length_ns: end.saturating_sub(start).0,
        },
        verdict: the_verdict(analysis, finding),
        steps: steps(source, analysis, start, end),
        parts: finding.map_or(vec![], parts),
        culprits: finding.map_or(vec![], culprits),
        causes: finding.map_or(vec![], |f| causes(f, start)),
        tracks,
        sources: sources(source),
        gaps: gaps(analysis, start),
        not_collected: not_collected(source),
        commands: commands(path, finding),
        judged: profile::judged(analysis, path),
        mostly: profile::mostly(analysis),
        incomplete: analysis.incomplete.iter().map(|of| of.mark()).collect(),
        without: finding.and_then(|f| f.counterfactual.as_ref()).map(|w| w.to_string()),
        ruled_out: finding.map_or(vec![], |f| f.ruled_out.iter().map(|e| e.says.clone()).collect()),
        others: profile::others(&analysis.findings, start),
        phases: profile::phase_table(analysis, start),
        threads: analysis.threads.as_ref().map_or(vec![], |threads| {
            vec![threads.table(), threads.table_of_changes(start), threads.table_of_cpus()]
        }),
        rests_on: rests_on(analysis),
        not_drawn: of_devices.not_drawn,
    })
}

/// What the verdicts on a profile rest on, and what was not looked at.
fn rests_on(analysis: &Analysis) -> Vec<String> {
    let mut all = analysis.rests_on.as_ref().map_or(vec![], |rests_on| rests_on.text());
    all.extend(analysis.not_told.map(|not_told| not_told.text()));
    all
}

fn the_verdict(analysis: &Analysis, finding: Option<&Finding>) -> report::Verdict {
    let all_steps = analysis.units.steps.len() as u64;
    let Some(f) = finding else {
        return report::Verdict {
            outcome: report::Outcome::Nothing,
            sentence: match all_steps {
                0 => "This trace holds no steps.".into(),
                n => format!("Nothing anomalous in {n} {}.", analysis.units.name()),
            },
            all_steps,
            ..Default::default()
        };
    };
    let decided = f.outcome == Outcome::Decided;
    report::Verdict {
        outcome: if decided {
            report::Outcome::Explained
        } else {
            report::Outcome::InsufficientEvidence
        },
        sentence: f.summary.clone(),
        class: Some(f.class.into()),
        culprit: f.culprit.as_ref().map(who),
        culprit_support: f.culprit_support,
        baseline_ms: f.usual_ms,
        observed_ms: f.slow_ms,
        unexplained_ms: f.unexplained_ms,
        confidence: Some(f.confidence),
        runner_up: f.causes.get(1).map(|c| (c.class.to_string(), c.confidence)),
        slow_steps: f.series.iter().map(|s| s.steps as u64).sum(),
        all_steps,
    }
}

fn steps(source: &TraceSource, analysis: &Analysis, start: Ns, end: Ns) -> report::StepPlot {
    let slowed: HashSet<StepNo> = analysis
        .incidents
        .iter()
        .flat_map(|i| &i.slowed)
        .flat_map(|s| s.slow.iter().copied())
        .collect();
    // The series of the first finding's main signature name; other names would mix scales.
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for step in &analysis.units.steps {
        *count.entry(&step.name).or_default() += 1;
    }
    let name = analysis
        .incidents
        .first()
        .and_then(|i| i.slowed.first())
        .map(|s| s.signature.name.to_string())
        .or_else(|| count.iter().max_by_key(|c| c.1).map(|c| c.0.to_string()))
        .unwrap_or_default();
    let entities = &source.entities_and_tracks().entity;
    let entities: HashMap<EntityId, _> = entities.iter().map(|e| (e.id, e)).collect();
    let whole = report::Interval { from: 0, to: (end - start).0 };
    let mut by_thread: BTreeMap<EntityId, Vec<report::StepPoint>> = BTreeMap::new();
    for (no, step) in analysis.units.steps.numbered().filter(|(_, s)| *s.name == *name) {
        by_thread.entry(step.thread).or_default().push(report::StepPoint {
            at: (step.end() - start).0,
            ms: step.dur.as_millis_f64(),
            slow: slowed.contains(&no),
        });
    }
    let baseline = analysis.incidents.iter().take(1).flat_map(|incident| {
        incident.slowed.first().map(|s| report::Baseline {
            during: whole,
            median_ms: s.fit.center.exp() / 1e6,
            low_ms: (s.fit.center - 3.0 * s.fit.scale).exp() / 1e6,
            threshold_ms: s.threshold.as_millis_f64(),
        })
    });
    report::StepPlot {
        name,
        series: by_thread
            .into_iter()
            .take(16)
            .map(|(thread, points)| report::StepSeries {
                name: entities.get(&thread).map_or(String::new(), |e| {
                    format!("{} ({})", e.name, e.number.unwrap_or_default())
                }),
                points: detail::thin_steps(&points, whole),
            })
            .collect(),
        baseline: baseline.collect(),
        anomalies: analysis
            .findings
            .iter()
            .map(|f| report::Interval { from: f.from_ns - start.0, to: f.to_ns - start.0 })
            .collect(),
    }
}

fn parts(finding: &Finding) -> Vec<report::PartRow> {
    let mut rows: Vec<report::PartRow> = finding
        .parts
        .iter()
        .map(|(kind, part)| report::PartRow {
            kind: if *kind == "unknown" { "unexplained".into() } else { kind.to_string() },
            baseline_ms: part.usual,
            anomalous_ms: part.slow,
            blame: None,
        })
        .collect();
    rows.sort_by(|a, b| b.excess_ms().total_cmp(&a.excess_ms()));
    for cause in &finding.causes {
        let kinds = cause.kinds();
        let blame = cause.culprit.as_ref().map(|c| who(c).label());
        if let Some(row) = rows.iter_mut().find(|r| kinds.contains(&r.kind.as_str())) {
            row.blame = row.blame.take().or(blame);
        }
    }
    rows
}

fn culprits(finding: &Finding) -> Vec<report::CulpritRow> {
    let total = finding.excess_ms.max(1e-9);
    let mut rows: Vec<report::CulpritRow> = Vec::new();
    for cause in &finding.causes {
        let first = cause.culprit.iter().map(|c| (c, cause.culprit_ms));
        for (culprit, ms) in first.chain(cause.others.iter().map(|(c, ms)| (c, *ms))) {
            rows.push(report::CulpritRow {
                who: who(culprit),
                what: cause.class.to_string(),
                excess_ms: ms,
                share: (ms / total).clamp(0.0, 1.0),
            });
        }
    }
    rows.sort_by(|a, b| b.excess_ms.total_cmp(&a.excess_ms));
    rows
}

fn causes(finding: &Finding, start: Ns) -> Vec<report::CauseRow> {
    let evidence = |list: &[Evidence]| -> Vec<report::Evidence> {
        list.iter()
            .map(|e| report::Evidence {
                text: e.says.clone(),
                rows: e.rows.as_ref().filter(|r| r.to_ns > r.from_ns).map(|r| report::RowsRef {
                    table: r.table.into(),
                    track: r.track,
                    during: report::Interval { from: r.from_ns - start.0, to: r.to_ns - start.0 },
                }),
            })
            .collect()
    };
    finding
        .causes
        .iter()
        .map(|c| report::CauseRow {
            class: c.class.into(),
            culprit: c.culprit.as_ref().map(who),
            culprit_support: c.culprit_support,
            excess_ms: c.excess_ms,
            confidence: c.confidence,
            summary: match &c.culprit {
                Some(culprit) => format!("{} by {culprit}: {:+.3} ms a step", c.class, c.excess_ms),
                None => format!("{}: {:+.3} ms a step", c.class, c.excess_ms),
            },
            evidence_for: evidence(&c.evidence_for),
            evidence_against: evidence(&c.evidence_against),
            verify: Some(c.verify.clone()).filter(|v| !v.is_empty()),
        })
        .collect()
}

/// What a source says of itself, and how its times came to the clock of the trace.
fn note_of(source: &gpuwhy_schema::Source) -> String {
    let aligned = source_file::aligned_by(source).map(|by| match ClockError::of(source).ns() {
        Some(ns) => format!("aligned by {by}, to {:.3} µs", ns as f64 / 1e3),
        None => format!("aligned by {by}; by how much its times are off is not known"),
    });
    let note = source.note.as_deref().map(str::to_owned);
    note.into_iter().chain(aligned).collect::<Vec<_>>().join("; ")
}

fn sources(source: &TraceSource) -> Vec<report::SourceRow> {
    source
        .entities_and_tracks()
        .source
        .iter()
        .map(|s| report::SourceRow {
            kind: match s.word("file") {
                Some(file) => format!("{} {file}", s.kind),
                None => s.kind.to_string(),
            },
            state: s.state.to_string(),
            note: note_of(s),
            recorded: s.recorded,
            dropped: s.dropped,
            one_in: s.one_in,
        })
        .collect()
}

/// Stretches of time for which nothing was recorded of the steps' threads.
fn gaps(analysis: &Analysis, start: Ns) -> Vec<report::Gap> {
    let page = |ns: i64| ns.saturating_sub(start.0);
    let unseen = analysis
        .parts
        .iter()
        .filter(|p| p.kind == PartKind::Unknown && p.hops == 0)
        .filter(|p| p.dur >= Ns::millis(1))
        .take(200);
    unseen
        .map(|p| report::Gap {
            during: report::Interval { from: page(p.ts.0), to: page(p.ts.0 + p.dur.0) },
            what: "the step's thread: not recorded, or not understood".into(),
        })
        .collect()
}

fn not_collected(source: &TraceSource) -> Vec<report::NotCollected> {
    let catalog = source.entities_and_tracks();
    let mut out: Vec<report::NotCollected> = catalog
        .source
        .iter()
        .filter(|s| s.state != SourceState::Ok)
        .map(|s| report::NotCollected {
            what: s.kind.to_string(),
            why: s.note.as_deref().unwrap_or("no reason given").to_string(),
            fix: "gpuwhy doctor".into(),
        })
        .collect();
    let is_real =
        |e: &gpuwhy_schema::Entity| e.kind == EntityKind::Gpu && !e.key.starts_with("sim:");
    if !catalog.entity.iter().any(is_real) {
        out.push(report::NotCollected {
            what: "GPU counters and kernels of a real GPU".into(),
            why: "no such source was recorded".into(),
            fix: "gpuwhy doctor says what this host lets us see of GPUs".into(),
        });
    }
    out
}

fn commands(path: &str, finding: Option<&Finding>) -> Vec<report::CommandLine> {
    let mut out = vec![
        report::CommandLine {
            what: "this verdict again".into(),
            line: format!("gpuwhy diagnose {path} --html report.html"),
        },
        report::CommandLine {
            what: "the timeline in Perfetto".into(),
            line: format!("gpuwhy export {path} --perfetto out.pftrace"),
        },
    ];
    if let Some(cause) = finding.and_then(|f| f.causes.first()) {
        out.push(report::CommandLine { what: "to verify".into(), line: cause.verify.clone() });
    }
    out
}
