//! From an analysis to the page: what the report shows of a trace.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::Result;
use gpuwhy_diagnose::verdict::{self, Culprit, Evidence, Finding, Outcome};
use gpuwhy_report as report;
use gpuwhy_report::detail::{self, View};
use gpuwhy_schema::{
    Counter, EntityId, EntityKind, Measure, Ns, Rows, Shape, SourceState, State, Track, names,
};
use gpuwhy_store::Trace;

use crate::analysis::Analysis;

/// Lanes of threads shown at most.
const THREADS: usize = 8;
/// Lanes of counters shown at most.
const COUNTERS: usize = 28;

/// Adds findings and causes to `rows`, on a track of their own.
pub fn findings_into(analysis: &Analysis, rows: &mut Rows) {
    let Some(host) = rows.entity.iter().find(|e| e.kind == EntityKind::Host).map(|e| e.id) else {
        return;
    };
    let track = gpuwhy_schema::TrackId(rows.track.iter().map(|t| t.id.0).max().unwrap_or(0) + 1);
    let Some(source) = rows.source.first().map(|s| s.id) else { return };
    rows.track.push(Track {
        id: track,
        entity: host,
        parent: None,
        shape: Shape::Span,
        name: names::FINDINGS.into(),
        unit: None,
        measure: None,
        discipline: Some(gpuwhy_schema::Discipline::Overlap),
        source,
    });
    for (n, finding) in analysis.findings.iter().enumerate() {
        let id = gpuwhy_schema::Id::new(u16::MAX, n as u64 + 1);
        rows.append(&mut verdict::rows(finding, id, track));
    }
    rows.part.extend(analysis.parts.iter().cloned());
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

/// The page of an analysis.
pub fn render(trace: &Trace, analysis: &Analysis, path: &str) -> Result<String> {
    Ok(report::render(&data(trace, analysis, path)?))
}

fn data(trace: &Trace, analysis: &Analysis, path: &str) -> Result<report::ReportData> {
    let start = analysis.steps.iter().map(|s| s.ts).min().unwrap_or(Ns::ZERO);
    let end = analysis.steps.iter().map(|s| s.end()).max().unwrap_or(start);
    let close: Vec<(Ns, Ns)> = analysis
        .incidents
        .iter()
        .take(1)
        .map(|i| (i.from.saturating_sub(Ns::millis(300)), i.from.saturating_add(Ns::millis(700))))
        .collect();
    let view = View::new(start, end, &close);
    let page = |ns: i64| ns.saturating_sub(start.0);
    let finding = analysis.findings.first();
    let host = analysis.lanes.entity.iter().find(|e| e.kind == EntityKind::Host);
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
        steps: steps(analysis, start, end),
        parts: finding.map_or(vec![], parts),
        culprits: finding.map_or(vec![], culprits),
        causes: finding.map_or(vec![], |f| causes(f, start)),
        tracks: tracks(trace, analysis, &view, start, end)?,
        sources: sources(analysis),
        gaps: gaps(analysis, page),
        not_collected: not_collected(analysis),
        commands: commands(path, finding),
    })
}

fn the_verdict(analysis: &Analysis, finding: Option<&Finding>) -> report::Verdict {
    let all_steps = analysis.steps.len() as u64;
    let Some(f) = finding else {
        return report::Verdict {
            outcome: report::Outcome::Nothing,
            sentence: match all_steps {
                0 => "This trace holds no steps.".into(),
                n => format!("Nothing anomalous in {n} {}.", analysis.what()),
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
        baseline_ms: f.usual_ms,
        observed_ms: f.slow_ms,
        unexplained_ms: f.unexplained_ms,
        confidence: Some(f.confidence),
        runner_up: f.causes.get(1).map(|c| (c.class.to_string(), c.confidence)),
        slow_steps: f.series.iter().map(|s| s.steps as u64).sum(),
        all_steps,
    }
}

fn steps(analysis: &Analysis, start: Ns, end: Ns) -> report::StepPlot {
    let slowed: HashSet<usize> = analysis
        .incidents
        .iter()
        .flat_map(|i| &i.slowed)
        .flat_map(|s| s.slow.iter().copied())
        .collect();
    // The series of the first finding's main signature name; other names would mix scales.
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for step in &analysis.steps {
        *count.entry(&step.name).or_default() += 1;
    }
    let name = analysis
        .incidents
        .first()
        .and_then(|i| i.slowed.first())
        .map(|s| s.signature.name.to_string())
        .or_else(|| count.iter().max_by_key(|c| c.1).map(|c| c.0.to_string()))
        .unwrap_or_default();
    let entities: HashMap<EntityId, _> = analysis.lanes.entity.iter().map(|e| (e.id, e)).collect();
    let whole = report::Interval { from: 0, to: (end - start).0 };
    let mut by_thread: BTreeMap<EntityId, Vec<report::StepPoint>> = BTreeMap::new();
    for (i, step) in analysis.steps.iter().enumerate().filter(|(_, s)| *s.name == *name) {
        by_thread.entry(step.thread).or_default().push(report::StepPoint {
            at: (step.end() - start).0,
            ms: step.dur.as_millis_f64(),
            slow: slowed.contains(&i),
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

/// The lanes worth a look: states of the step threads, who had the CPUs, and what counted.
fn tracks(
    trace: &Trace,
    analysis: &Analysis,
    view: &View,
    start: Ns,
    end: Ns,
) -> Result<Vec<report::TimeTrack>> {
    let entities: HashMap<EntityId, _> = analysis.lanes.entity.iter().map(|e| (e.id, e)).collect();
    let label = |id: EntityId| -> String {
        entities.get(&id).map_or(String::new(), |e| match (e.kind, e.number) {
            (EntityKind::Thread | EntityKind::Process, Some(n)) => format!("{} ({n})", e.name),
            (EntityKind::Cpu, Some(n)) => format!("cpu {n}"),
            _ => e.name.to_string(),
        })
    };
    let mut threads: Vec<EntityId> = Vec::new();
    let of_incident = analysis.incidents.iter().flat_map(|i| &i.slowed).map(|s| s.signature.thread);
    for thread in of_incident.chain(analysis.steps.iter().map(|s| s.thread)) {
        if threads.len() < THREADS && !threads.contains(&thread) {
            threads.push(thread);
        }
    }
    let mut wanted: Vec<&Track> = Vec::new();
    for track in &analysis.lanes.track {
        let thread_state = &*track.name == names::THREAD_STATE && threads.contains(&track.entity);
        if thread_state || &*track.name == names::OCCUPANT {
            wanted.push(track);
        }
    }
    let mut states: HashMap<_, Vec<State>> = wanted.iter().map(|t| (t.id, Vec::new())).collect();
    let mut seen = 0usize;
    for rows in trace.read::<State>(start..end) {
        for row in rows? {
            if let Some(list) = states.get_mut(&row.track) {
                list.push(row);
                seen += 1;
            }
        }
        // A page is a picture; beyond this the trace viewer is the better tool.
        if seen > 3_000_000 {
            break;
        }
    }
    let mut out = Vec::new();
    for track in &wanted {
        let rows = states.get(&track.id).map_or(&[][..], Vec::as_slice);
        if rows.is_empty() {
            continue;
        }
        let lane = if &*track.name == names::OCCUPANT {
            detail::bands(rows, view, |s| match s.value {
                0 => "idle".into(),
                id => label(EntityId(u32::try_from(id).unwrap_or(0))),
            })
        } else {
            detail::thread_states(rows, view)
        };
        let what = track.name.replace('_', " ");
        out.push(report::TimeTrack { group: label(track.entity), label: what, lane });
    }
    out.sort_by_key(|t| t.label != "thread state");
    out.extend(counters(trace, analysis, view, start, end, &label)?);
    Ok(out)
}

fn counters(
    trace: &Trace,
    analysis: &Analysis,
    view: &View,
    start: Ns,
    end: Ns,
    label: &dyn Fn(EntityId) -> String,
) -> Result<Vec<report::TimeTrack>> {
    let order = [
        // On a host that has one, the GPU comes first.
        names::SM_CLOCK,
        names::THROTTLED_POWER,
        names::THROTTLED_HW_THERMAL,
        names::THROTTLED_SW_THERMAL,
        names::PROCESS_SM_UTILIZATION,
        names::GPU_POWER,
        names::PCIE_REPLAY,
        names::RUNQ_WAIT,
        "softirq.NET_RX",
        "softirq.BLOCK",
        names::HARDIRQ,
        names::STEAL,
        names::THROTTLED,
        names::DISK_BYTES,
        names::DISK_TIME,
        names::NIC_TX_BYTES,
        names::NIC_QUEUE,
        names::NIC_QUEUE_DELAY,
        names::PAGE_CACHE_EVICTED,
        names::RECLAIM,
        names::SWITCHES,
    ];
    let rank = |t: &Track| order.iter().position(|o| *o == &*t.name);
    let mut wanted: Vec<&Track> = analysis
        .lanes
        .track
        .iter()
        .filter(|t| t.shape == Shape::Counter && rank(t).is_some())
        .collect();
    wanted.sort_by_key(|t| (rank(t), t.parent.is_some(), t.id));
    let mut values: HashMap<_, Vec<Counter>> = wanted.iter().map(|t| (t.id, Vec::new())).collect();
    for rows in trace.read::<Counter>(start..end) {
        for row in rows? {
            if let Some(list) = values.get_mut(&row.track) {
                list.push(row);
            }
        }
    }
    Ok(wanted
        .into_iter()
        .filter_map(|t| Some((t, values.get(&t.id).filter(|v| v.len() > 1)?)))
        .take(COUNTERS)
        .map(|(track, rows)| report::TimeTrack {
            group: label(track.entity),
            label: track.name.to_string(),
            lane: detail::counter(
                rows,
                track.measure.unwrap_or(Measure::Gauge),
                track.unit.as_deref().unwrap_or("1"),
                view,
            ),
        })
        .collect())
}

fn sources(analysis: &Analysis) -> Vec<report::SourceRow> {
    analysis
        .lanes
        .source
        .iter()
        .map(|s| report::SourceRow {
            kind: s.kind.to_string(),
            state: s.state.to_string(),
            note: s.note.as_deref().unwrap_or("").to_string(),
            recorded: s.recorded,
            dropped: s.dropped,
            one_in: s.one_in,
        })
        .collect()
}

/// Stretches of the steps' threads of which nothing was recorded.
fn gaps(analysis: &Analysis, page: impl Fn(i64) -> i64) -> Vec<report::Gap> {
    let unseen = analysis
        .parts
        .iter()
        .filter(|p| p.kind == gpuwhy_schema::PartKind::Unknown && p.hops == 0)
        .filter(|p| p.dur >= Ns::millis(1))
        .take(200);
    unseen
        .map(|p| report::Gap {
            during: report::Interval { from: page(p.ts.0), to: page(p.ts.0 + p.dur.0) },
            what: "the step's thread: not recorded, or not understood".into(),
        })
        .collect()
}

fn not_collected(analysis: &Analysis) -> Vec<report::NotCollected> {
    let mut out: Vec<report::NotCollected> = analysis
        .lanes
        .source
        .iter()
        .filter(|s| s.state != SourceState::Ok)
        .map(|s| report::NotCollected {
            what: s.kind.to_string(),
            why: s.note.as_deref().unwrap_or("no reason given").to_string(),
            fix: "gpuwhy doctor".into(),
        })
        .collect();
    if !analysis
        .lanes
        .entity
        .iter()
        .any(|e| e.kind == EntityKind::Gpu && !e.key.starts_with("sim:"))
    {
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
