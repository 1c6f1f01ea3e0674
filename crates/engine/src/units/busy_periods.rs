//! Busy periods of the threads of a recording without steps and rounds: see [`gpuwhy_derive::busy_periods`].

use std::collections::HashMap;

use gpuwhy_derive::busy_periods::{BusyPeriods, Connections, Flows, is_received};
use gpuwhy_diagnose::detect::Step;
use gpuwhy_schema::{Entity, EntityId, Finding, Message, Name, Ns, State, names};

use super::rounds::{Recurring, RoundsOfProcess, round_id};
use crate::error::Result;
use crate::source::{EVER, TraceSource};
use crate::threads::{Busy, state_tracks};

/// Threads with fewer busy periods are not looked at: nothing can be usual of them.
const NEEDED: usize = 100;
/// Threads that are looked at, those with most to do.
const THREADS: usize = 1024;
/// Of more busy periods one in so many is looked at.
const PERIODS: usize = 1 << 20;

/// A busy period, how many messages its thread received in it, if it ever received one, and by which connections it sent
/// and received.
struct Period {
    from: Ns,
    to: Ns,
    messages: Option<i64>,
    flows: Option<Flows>,
}

/// The busy periods of a trace, ordered by their ends.
///
/// # Errors
/// The trace cannot be read.
pub fn of_trace(source: &TraceSource, busy: &Busy) -> Result<(Vec<Step>, Vec<RoundsOfProcess>)> {
    let has_findings = source.trace().read::<Finding>(EVER).next().transpose()?.is_some();
    if has_findings {
        return Ok((Vec::new(), Vec::new()));
    }
    let processes: HashMap<EntityId, EntityId> =
        busy.threads.iter().take(THREADS).map(|t| (t.id, t.process)).collect();
    let mut periods = of_threads(source, &processes)?;
    periods.retain(|_, list| list.len() >= NEEDED);
    count_messages(source, &mut periods)?;
    periods.values_mut().for_each(without_pauses);
    let entities: HashMap<EntityId, &Entity> =
        source.entities_and_tracks().entity.iter().map(|e| (e.id, e)).collect();
    let mut of_process: HashMap<EntityId, usize> = HashMap::new();
    for (thread, list) in &periods {
        *of_process.entry(processes[thread]).or_default() += list.len();
    }
    let one_in = periods.values().map(Vec::len).sum::<usize>().div_ceil(PERIODS).max(1);
    let mut found: Vec<RoundsOfProcess> = of_process
        .into_iter()
        .filter_map(|(process, rounds)| {
            let entity = entities.get(&process)?;
            let (process, pid) = (entity.name.to_string(), entity.number);
            let of = Recurring::BusyPeriods;
            Some(RoundsOfProcess { process, pid, of, each: one_in, rounds, phase: None })
        })
        .collect();
    found.sort_by(|a, b| (b.rounds, a.pid).cmp(&(a.rounds, b.pid)));
    let all = periods
        .iter()
        .flat_map(|(thread, list)| list.iter().step_by(one_in).map(|period| (*thread, period)));
    let mut all: Vec<(EntityId, &Period)> = all.collect();
    all.sort_unstable_by_key(|(thread, period)| (period.to, period.from, *thread));
    let name: Name = names::BUSY_PERIOD.into();
    let step = |(n, (thread, period)): (usize, (EntityId, &Period))| Step {
        id: round_id(n),
        ts: period.from,
        dur: period.to - period.from,
        thread,
        rank: None,
        name: name.clone(),
        size: period.messages,
        ran: None,
        expected: Default::default(),
    };
    Ok((all.into_iter().enumerate().map(step).collect(), found))
}

/// The busy periods of threads.
fn of_threads(
    source: &TraceSource,
    threads: &HashMap<EntityId, EntityId>,
) -> Result<HashMap<EntityId, Vec<Period>>> {
    let tracks = state_tracks(source);
    let mut of: HashMap<EntityId, (BusyPeriods, Vec<Period>)> = HashMap::new();
    for rows in source.trace().read::<State>(EVER) {
        for row in rows? {
            let Some(thread) = tracks.get(&row.track).filter(|t| threads.contains_key(t)) else {
                continue;
            };
            let (periods, list) = of.entry(*thread).or_default();
            let period = periods.take(&row);
            list.extend(period.map(|(from, to)| Period { from, to, messages: None, flows: None }));
        }
    }
    Ok(of.into_iter().map(|(thread, (_, list))| (thread, list)).collect())
}

/// Leaves out periods of a thread that serves one connection at a time in which it waited for the next one.
fn without_pauses(list: &mut Vec<Period>) {
    let mut connections = Connections::default();
    list.iter().filter_map(|period| period.flows).for_each(|flows| connections.take(flows));
    if connections.is_one_at_a_time() {
        list.retain(|period| period.flows.is_none_or(|flows| !flows.several));
    }
}

/// Counts the messages that were received in the busy periods of threads, for those that received any.
fn count_messages(
    source: &TraceSource,
    periods: &mut HashMap<EntityId, Vec<Period>>,
) -> Result<()> {
    for rows in source.trace().read::<Message>(EVER) {
        let rows = rows?;
        for message in &rows {
            let Some(list) = periods.get_mut(&message.thread) else { continue };
            let counts = is_received(message);
            if counts && list[0].messages.is_none() {
                list.iter_mut().for_each(|period| period.messages = Some(0));
            }
            let at = list.partition_point(|period| period.to < message.ts);
            let Some(period) = list.get_mut(at).filter(|period| period.from <= message.ts) else {
                continue;
            };
            let (first, last, several) = (message.flow, message.flow, false);
            let flows = period.flows.get_or_insert(Flows { first, last, several });
            flows.several |= flows.last != message.flow;
            flows.last = message.flow;
            if let Some(count) = period.messages.as_mut().filter(|_| counts) {
                *count += 1;
            }
        }
    }
    Ok(())
}
