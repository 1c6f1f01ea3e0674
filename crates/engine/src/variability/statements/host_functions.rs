//! Functions that the host's threads were in while devices stalled, by samples of their stacks.
//!
//! A function counts once a sample, wherever in the stack it is. A function is reported if it was
//! sampled much more often during stalls than otherwise: `main` is in every sample, the copy that a
//! stall waits for is not.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use gpuwhy_schema::{Frame, Sample, Stack};
use gpuwhy_store::Trace;

use super::Statement;
use crate::error::Result;

/// Samples in stalls, and outside of them, that are needed to say anything.
const LEAST: u64 = 20;
/// A function that is reported was in at least this share of the samples in stalls,
const SHARE: f64 = 0.2;
/// and in at least this many times the share of the other samples.
const LIFT: f64 = 3.0;
/// The most functions that are reported.
const LISTED: usize = 3;
/// The deepest stack that is followed: a hostile trace may hold a loop.
const DEPTH: usize = 1024;

/// In how many samples a function was, in stalls and otherwise, and how deep in their stacks.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    within: u64,
    without: u64,
    depths: u64,
}

/// All samples of a trace, by function.
#[derive(Default)]
struct Sampled {
    functions: HashMap<u32, Counts>,
    within: u64,
    without: u64,
}

/// Statements on the functions that threads were in during these times, which must not overlap.
pub fn statements(trace: &Trace, stalls: &[Range<i64>]) -> Result<Vec<Statement>> {
    let mut nodes: HashMap<u32, (Option<u32>, u32)> = HashMap::new();
    for rows in trace.all::<Stack>() {
        nodes.extend(rows?.into_iter().map(|s| (s.id, (s.parent, s.frame))));
    }
    if nodes.is_empty() || stalls.is_empty() {
        return Ok(Vec::new());
    }
    let sampled = count(trace, stalls, &nodes)?;
    let found = most_frequent(&sampled);
    let mut frames: HashMap<u32, Frame> = HashMap::new();
    for rows in trace.all::<Frame>() {
        frames.extend(rows?.into_iter().map(|f| (f.id, f)));
    }
    let clauses: Vec<String> = stalls
        .iter()
        .map(|stall| format!("ts between {} and {}", stall.start, stall.end - 1))
        .collect();
    let sql = format!("select * from 'sample/*.parquet' where {}", clauses.join(" or "));
    let statement = |(frame, counts): &(u32, Counts)| {
        let frame = frames.get(frame)?;
        let (in_stalls, otherwise) = sampled.shares(counts);
        let name: String = frame.name.chars().take(90).collect();
        let module = frame.module.as_deref().map_or(String::new(), |module| {
            format!(" ({})", module.rsplit('/').next().unwrap_or(module))
        });
        let says = format!(
            "while devices stall, threads are in {name}{module}: in {:.0} % of {} samples, and in \
             {:.1} % of {} otherwise",
            100.0 * in_stalls,
            sampled.within,
            100.0 * otherwise,
            sampled.without
        );
        Some(Statement::new("host_in_stalls", says).with_sql(sql.clone()))
    };
    Ok(found.iter().filter_map(statement).collect())
}

fn count(
    trace: &Trace,
    stalls: &[Range<i64>],
    nodes: &HashMap<u32, (Option<u32>, u32)>,
) -> Result<Sampled> {
    let mut sampled = Sampled::default();
    let mut in_this_stack: HashSet<u32> = HashSet::new();
    for rows in trace.all::<Sample>() {
        for sample in rows? {
            let stalls = stalls.iter().any(|stall| stall.contains(&sample.ts.0));
            *(if stalls { &mut sampled.within } else { &mut sampled.without }) += 1;
            in_this_stack.clear();
            let (mut at, mut path) = (sample.stack, Vec::new());
            while let Some((parent, frame)) = at.and_then(|at| nodes.get(&at)).copied()
                && path.len() < DEPTH
            {
                path.push(frame);
                at = parent;
            }
            for (depth, frame) in path.into_iter().rev().enumerate() {
                if in_this_stack.insert(frame) {
                    let function = sampled.functions.entry(frame).or_default();
                    *(if stalls { &mut function.within } else { &mut function.without }) += 1;
                    function.depths += depth as u64;
                }
            }
        }
    }
    Ok(sampled)
}

impl Sampled {
    /// The share of the samples in stalls, and of the others, in which a function was.
    fn shares(&self, of: &Counts) -> (f64, f64) {
        (of.within as f64 / self.within as f64, of.without as f64 / self.without as f64)
    }
}

/// The functions that are in many more samples in stalls than otherwise. A caller and its callee are
/// sampled together; the outer one is closer to what a user wrote, and comes first.
fn most_frequent(sampled: &Sampled) -> Vec<(u32, Counts)> {
    if sampled.within < LEAST || sampled.without < LEAST {
        return Vec::new();
    }
    let stands_out = |(_, counts): &(&u32, &Counts)| {
        let (in_stalls, otherwise) = sampled.shares(counts);
        in_stalls >= SHARE && in_stalls >= LIFT * otherwise
    };
    let functions = sampled.functions.iter().filter(stands_out);
    let mut found: Vec<(u32, Counts)> = functions.map(|(id, counts)| (*id, *counts)).collect();
    let depth = |of: &Counts| of.depths as f64 / (of.within + of.without) as f64;
    found.sort_by(|(a_id, a), (b_id, b)| {
        b.within.cmp(&a.within).then(depth(a).total_cmp(&depth(b))).then(a_id.cmp(b_id))
    });
    found.truncate(LISTED);
    found
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{EntityKind, Lane, Lanes, Ns, Rows, Shape};
    use gpuwhy_store::{Bulk, Options};

    use super::*;

    /// Samples of a thread in `main`, which calls `compute`, except 30 from 1000 ns on, when it calls
    /// `copy`.
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

    fn sentences(trace: &Trace, stall: Range<i64>) -> Vec<String> {
        statements(trace, &[stall]).unwrap().into_iter().map(|s| s.says).collect()
    }

    #[test]
    fn functions_sampled_in_stalls_only_are_reported_and_those_always_there_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let trace = trace(dir.path(), None);
        assert_eq!(
            sentences(&trace, 1000..1400),
            [
                "while devices stall, threads are in copy (app.so): in 75 % of 40 samples, and in 0.0 % \
                 of 160 otherwise"
            ]
        );
        assert_eq!(sentences(&trace, 0..500), [""; 0]);
        // Too few to say anything.
        assert_eq!(sentences(&trace, 1000..1100), [""; 0]);
    }

    #[test]
    fn a_stack_that_is_a_loop_ends() {
        let dir = tempfile::tempdir().unwrap();
        // `main` is called by `copy`, which is so on every stack.
        assert_eq!(sentences(&trace(dir.path(), Some(3)), 1000..1400), [""; 0]);
    }
}
