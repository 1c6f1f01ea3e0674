//! Where the threads of the host were while devices stalled, by samples of their stacks.
//!
//! A function counts once a sample, wherever in the stack it lies. What is told is what was seen much
//! more often during stalls than otherwise: `main` is always there, the copy that a stall waits for is
//! not.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use anyhow::Result;
use gpuwhy_schema::{Frame, Sample, Stack};
use gpuwhy_store::Trace;

use super::Statement;

/// Samples in stalls that are needed to say anything.
const LEAST: u64 = 20;
/// A function that is told was in at least this share of the samples in stalls.
const SHARE: f64 = 0.2;
/// And so many times as often as otherwise.
const LIFT: f64 = 3.0;
/// Functions that are told at most.
const TOLD: usize = 3;

/// A function: how often it was seen in stalls and otherwise, and how deep in the stacks.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    within: u64,
    without: u64,
    depths: u64,
}

/// Statements on the functions that threads were in during these times, which must not overlap.
pub fn during(trace: &Trace, stalls: &[Range<i64>]) -> Result<Vec<Statement>> {
    let mut nodes: HashMap<u32, (Option<u32>, u32)> = HashMap::new();
    for rows in trace.all::<Stack>() {
        nodes.extend(rows?.into_iter().map(|s| (s.id, (s.parent, s.frame))));
    }
    if nodes.is_empty() || stalls.is_empty() {
        return Ok(Vec::new());
    }
    let mut functions: HashMap<u32, Seen> = HashMap::new();
    let (mut within, mut without) = (0u64, 0u64);
    let mut seen: HashSet<u32> = HashSet::new();
    for rows in trace.all::<Sample>() {
        for sample in rows? {
            let stalls = stalls.iter().any(|stall| stall.contains(&sample.ts.0));
            *(if stalls { &mut within } else { &mut without }) += 1;
            seen.clear();
            let (mut at, mut path) = (sample.stack, Vec::new());
            // A hostile trace may lead in a circle.
            while let Some((parent, frame)) = at.and_then(|at| nodes.get(&at)).copied()
                && path.len() < 1024
            {
                path.push(frame);
                at = parent;
            }
            for (depth, frame) in path.into_iter().rev().enumerate() {
                if seen.insert(frame) {
                    let function = functions.entry(frame).or_default();
                    *(if stalls { &mut function.within } else { &mut function.without }) += 1;
                    function.depths += depth as u64;
                }
            }
        }
    }
    if within < LEAST || without < LEAST {
        return Ok(Vec::new());
    }
    let shares =
        |seen: &Seen| (seen.within as f64 / within as f64, seen.without as f64 / without as f64);
    let mut told: Vec<(u32, Seen)> = functions
        .into_iter()
        .filter(|(_, seen)| {
            let (in_stalls, otherwise) = shares(seen);
            in_stalls >= SHARE && in_stalls >= LIFT * otherwise
        })
        .collect();
    let depth = |seen: &Seen| seen.depths as f64 / (seen.within + seen.without) as f64;
    // What calls and what is called are seen together; the outer one is closer to what a user wrote.
    told.sort_by(|(a_id, a), (b_id, b)| {
        b.within.cmp(&a.within).then(depth(a).total_cmp(&depth(b))).then(a_id.cmp(b_id))
    });
    told.truncate(TOLD);
    let mut frames: HashMap<u32, Frame> = HashMap::new();
    for rows in trace.all::<Frame>() {
        frames.extend(rows?.into_iter().map(|f| (f.id, f)));
    }
    let clauses: Vec<String> = stalls
        .iter()
        .map(|stall| format!("ts between {} and {}", stall.start, stall.end - 1))
        .collect();
    let sql = format!("select * from 'sample/*.parquet' where {}", clauses.join(" or "));
    let statements = told.iter().filter_map(|(frame, seen)| {
        let frame = frames.get(frame)?;
        let (in_stalls, otherwise) = shares(seen);
        let name: String = frame.name.chars().take(90).collect();
        let module = frame.module.as_deref().map_or(String::new(), |module| {
            format!(" ({})", module.rsplit('/').next().unwrap_or(module))
        });
        Some(Statement {
            kind: "host_in_stalls",
            says: format!(
                "while devices stall, threads are in {name}{module}: in {:.0} % of {within} samples, and in \
                 {:.1} % of {without} otherwise",
                100.0 * in_stalls,
                100.0 * otherwise
            ),
            sql: Some(sql.clone()),
        })
    });
    Ok(statements.collect())
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{EntityKind, Lane, Lanes, Ns, Rows, Shape};
    use gpuwhy_store::{Bulk, Options};

    use super::*;

    /// Samples of a thread in `main`, which calls `compute`, but for 30 from 1000 ns on, when it calls `copy`.
    fn trace(dir: &std::path::Path, parent_of_main: Option<u32>) -> Trace {
        let path = dir.join("t.trace");
        let (mut rows, mut lanes) = (Rows::default(), Lanes::default());
        let source = lanes.source("nsys", "test", "1", "");
        let thread = lanes.entity(EntityKind::Thread, "1", |_| ());
        let lane = Lane {
            name: gpuwhy_schema::names::CPU_SAMPLES,
            shape: Shape::Sample,
            unit: Some("1"),
            measure: None,
            discipline: None,
        };
        let track = lanes.track(thread, None, lane, source);
        lanes.drain(&mut rows);
        for (id, name) in [(1, "main"), (2, "compute"), (3, "copy")] {
            let module = Some("/usr/lib/app.so".into());
            rows.frame.push(Frame { id, name: name.into(), module, file: None, line: None });
            let parent = if id == 1 { parent_of_main } else { Some(1) };
            rows.stack.push(Stack { id, parent, frame: id });
        }
        for n in 0..200 {
            let stack = Some(if (100..130).contains(&n) { 3 } else { 2 });
            rows.sample.push(Sample { ts: Ns(10 * n), track, stack, state: None, weight: 1.0 });
        }
        let mut bulk = Bulk::create(&path, &Options::default(), 1 << 20).unwrap();
        bulk.append(&mut rows).unwrap();
        bulk.finish().unwrap();
        Trace::open(&path).unwrap()
    }

    fn says(trace: &Trace, stall: Range<i64>) -> Vec<String> {
        during(trace, &[stall]).unwrap().into_iter().map(|s| s.says).collect()
    }

    #[test]
    fn what_is_seen_in_stalls_only_is_told_and_what_is_always_there_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let trace = trace(dir.path(), None);
        assert_eq!(
            says(&trace, 1000..1400),
            [
                "while devices stall, threads are in copy (app.so): in 75 % of 40 samples, and in 0.0 % \
                 of 160 otherwise"
            ]
        );
        assert_eq!(says(&trace, 0..500), [""; 0]);
        // Too few to say anything.
        assert_eq!(says(&trace, 1000..1100), [""; 0]);
    }

    #[test]
    fn stacks_that_lead_in_a_circle_end() {
        let dir = tempfile::tempdir().unwrap();
        // `main` is called by `copy`, which is so on every stack.
        assert_eq!(says(&trace(dir.path(), Some(3)), 1000..1400), [""; 0]);
    }
}
