//! Busy periods of the threads of a recording without steps and rounds: see [`gpuwhy_derive::busy_periods`].

use std::collections::{HashMap, VecDeque};

use gpuwhy_derive::busy_periods::{BusyPeriods, Period};
use gpuwhy_schema::{EntityId, Message, Ns, State};

use super::of_threads::{OfThreads, Unit};
use crate::error::Result;
use crate::source::{EVER, TraceSource};
use crate::threads::{Busy, state_tracks};

/// Threads with fewer busy periods are not looked at: nothing can be usual of them.
const NEEDED: usize = 100;
/// Threads that are looked at, those with most to do.
const THREADS: usize = 1024;
/// A thread that sleeps for a time again and again paces itself if it does so for as long as this; else it waits for
/// something to begin.
const PACED: Ns = Ns::secs(5);
/// Of more messages none is looked at.
const MESSAGES: usize = 1 << 22;

/// The busy periods of a trace.
///
/// # Errors
/// The trace cannot be read.
pub fn of_trace(source: &TraceSource, busy: &Busy) -> Result<OfThreads> {
    let processes: HashMap<EntityId, EntityId> =
        busy.threads.iter().take(THREADS).map(|t| (t.id, t.process)).collect();
    let mut units = of_threads(source, &processes)?;
    units.retain(|_, list| list.len() >= NEEDED);
    Ok(OfThreads { of: Unit::BusyPeriod, units })
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
    let lasted = |list: &[Period]| Some(list.last()?.to - list.first()?.from);
    let is_taken = |periods: &BusyPeriods, list: &[Period]| {
        !periods.is_paced() || lasted(list).is_some_and(|lasted| lasted >= PACED)
    };
    let taken = of.into_iter().filter(|(_, (periods, list))| is_taken(periods, list));
    Ok(taken.map(|(thread, (_, list))| (thread, list)).collect())
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
