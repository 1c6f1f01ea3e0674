//! Busy periods of the threads of a recording without steps and rounds: see [`gpuwhy_derive::busy_periods`].

use std::collections::{HashMap, VecDeque};

use gpuwhy_derive::busy_periods::{BusyPeriods, Period};
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
/// Of more messages none is looked at.
const MESSAGES: usize = 1 << 22;

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
    let mut messages = messages_of(source, threads)?;
    let tracks = state_tracks(source);
    let mut of: HashMap<EntityId, (BusyPeriods, Vec<Period>)> = HashMap::new();
    for rows in source.trace().read::<State>(EVER) {
        for row in rows? {
            let Some(thread) = tracks.get(&row.track).filter(|t| threads.contains_key(t)) else {
                continue;
            };
            let (periods, list) = of.entry(*thread).or_default();
            let end = row.ts.saturating_add(row.dur.unwrap_or(Ns::ZERO));
            if let Some(messages) = messages.get_mut(thread) {
                while let Some(message) = messages.pop_front_if(|message| message.ts < end) {
                    list.extend(periods.exchange(&message));
                }
            }
            list.extend(periods.take(&row));
        }
    }
    Ok(of.into_iter().map(|(thread, (_, list))| (thread, list)).collect())
}

/// What each thread sent and received by stream sockets. None of all, if it was too much to be held.
fn messages_of(
    source: &TraceSource,
    threads: &HashMap<EntityId, EntityId>,
) -> Result<HashMap<EntityId, VecDeque<Message>>> {
    let (mut of, mut held) = (HashMap::<EntityId, VecDeque<Message>>::new(), 0);
    for rows in source.trace().read::<Message>(EVER) {
        for message in rows? {
            if threads.contains_key(&message.thread) {
                of.entry(message.thread).or_default().push_back(message);
                held += 1;
            }
        }
        if held > MESSAGES {
            return Ok(HashMap::new());
        }
    }
    Ok(of)
}
