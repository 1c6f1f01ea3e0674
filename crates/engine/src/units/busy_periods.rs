//! Busy periods of the threads of a recording without steps and rounds: see [`gpuwhy_derive::busy_periods`].

use std::collections::{HashMap, HashSet, VecDeque};

use gpuwhy_derive::busy_periods::{BusyPeriods, Period};
use gpuwhy_derive::wandering::Requests;
use gpuwhy_schema::{EntityId, Message, Ns, State};

use crate::error::Result;
use crate::source::{EVER, TraceSource};
use crate::threads::Busy;

/// Threads with fewer busy periods are not looked at: nothing can be usual of them.
const NEEDED: usize = 100;
/// Threads that are looked at, those with most to do.
const THREADS: usize = 1024;
/// A thread that sleeps for a time again and again paces itself if it does so for as long as this; else it waits for
/// something to begin.
const PACED: Ns = Ns::secs(5);
/// Of more messages none is looked at.
const MESSAGES: usize = 1 << 22;

/// The busy periods of each thread.
type PeriodsOf = HashMap<EntityId, Vec<Period>>;

/// The busy periods of threads, as their states are read.
pub(super) struct PeriodsOfThreads {
    messages: HashMap<EntityId, VecDeque<Message>>,
    of: HashMap<EntityId, OfThread>,
    /// The requests to each process, and those that were answered, by who answered.
    requests: HashMap<EntityId, (Requests<EntityId>, PeriodsOf)>,
}

/// The busy periods of one thread.
struct OfThread {
    process: EntityId,
    periods: BusyPeriods,
    list: Vec<Period>,
}

impl PeriodsOfThreads {
    /// Of the threads of a trace that have most to do.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn new(source: &TraceSource, busy: &Busy) -> Result<PeriodsOfThreads> {
        let of = busy.threads.iter().take(THREADS).map(|thread| {
            let (periods, list) = (BusyPeriods::default(), Vec::new());
            (thread.id, OfThread { process: thread.process, periods, list })
        });
        let of = of.collect();
        Ok(PeriodsOfThreads { messages: messages_of(source, &of)?, of, requests: HashMap::new() })
    }

    /// Takes the next state of a thread.
    pub fn take(&mut self, thread: EntityId, state: &State) {
        let Some(OfThread { process, periods, list }) = self.of.get_mut(&thread) else { return };
        let end = state.ts.saturating_add(state.dur.unwrap_or(Ns::ZERO));
        if let Some(messages) = self.messages.get_mut(&thread) {
            let (requests, answered) = self.requests.entry(*process).or_default();
            while let Some(message) = messages.pop_front_if(|message| message.ts < end) {
                let (request, period) = requests.take_with(thread, &message, periods);
                if let Some((by, request)) = request {
                    answered.entry(by).or_default().push(request);
                }
                list.extend(period);
            }
        }
        list.extend(periods.take(state));
    }

    /// Those of threads that have enough: of such that wait for work, and of such that pace themselves. Where requests outlast
    /// them, each thread has those that it answered; and of which processes these are alike, whoever answers.
    pub fn finish(self) -> (PeriodsOf, PeriodsOf, HashSet<EntityId>) {
        let outlast = self.requests.into_iter().filter(|(_, (requests, _))| requests.outlast());
        let outlast: Vec<_> = outlast.collect();
        let alike = outlast.iter().filter(|(_, (requests, _))| requests.are_alike());
        let alike: HashSet<EntityId> = alike.map(|(process, _)| *process).collect();
        let answered: HashMap<EntityId, PeriodsOf> =
            outlast.into_iter().map(|(process, (_, answered))| (process, answered)).collect();
        let lasted = |list: &[Period]| Some(list.last()?.to - list.first()?.from);
        let (paced, served): (Vec<_>, Vec<_>) =
            self.of.into_iter().partition(|(_, of)| of.periods.is_paced());
        let served = served.into_iter().filter(|(_, of)| !answered.contains_key(&of.process));
        let served: Vec<_> = served.map(|(thread, of)| (thread, of.list)).collect();
        let paced = paced.into_iter().map(|(thread, of)| (thread, of.list));
        let paced = paced.filter(|(_, list)| lasted(list) >= Some(PACED));
        let enough = |(_, list): &(EntityId, Vec<Period>)| list.len() >= NEEDED;
        let served: Vec<_> = served.into_iter().filter(enough).collect();
        let many = |of: &PeriodsOf| of.values().map(Vec::len).sum::<usize>() >= NEEDED;
        let (of_processes, of_threads): (Vec<_>, Vec<_>) =
            answered.into_iter().partition(|(process, of)| alike.contains(process) && many(of));
        let wander = of_processes.iter().map(|(process, _)| *process).collect();
        let of_threads = of_threads.into_iter().flat_map(|(_, of)| of).filter(enough);
        let answered = of_processes.into_iter().flat_map(|(_, of)| of).chain(of_threads);
        (served.into_iter().chain(answered).collect(), paced.filter(enough).collect(), wander)
    }
}

/// What each thread sent and received by stream sockets. None of all, if it was too much to be held.
fn messages_of<T>(
    source: &TraceSource,
    threads: &HashMap<EntityId, T>,
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
