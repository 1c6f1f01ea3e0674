//! What threads did with their time, window by window, and for whom they waited.
//!
//! # What it sees
//! The recorded states of chosen threads. Each is one of a few [`Doing`]s; a sleep is told by the system call that
//! it was in. Waiting for a CPU is waiting for whoever had it; a sleep that another thread ended is waiting for that
//! thread, a wait for bytes for their sender.
//!
//! # Why it matters
//! A recording without steps has nothing that could be slower than usual. Where the time of its busy threads went,
//! for whom they waited, and when that changed can still be said.
//!
//! # What fools it
//! Spinning is running. Of a chain of waits only the first link is told: for whom *that* one waited is in its own
//! row. A thread that is woken for each request waits for its clients, and nothing is wrong with that.

use std::collections::HashMap;
use std::ops::Range;

use gpuwhy_schema::{EntityId, Ns, Rows, ThreadState};

use crate::sweep::Cut;
use crate::syscall::{self, Wait};
use crate::world::{Held, World};

/// What a thread does at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Doing {
    /// It is on a CPU.
    Running,
    /// It waits for a CPU.
    Runnable,
    /// Its group is out of CPU quota.
    Throttled,
    /// Interrupts use its CPU.
    Interrupted,
    /// A signal stopped it.
    Stopped,
    /// It waits for a disk, or for a page.
    Disk,
    /// It sleeps and takes no signals, and not for a disk.
    Uninterruptible,
    /// It waits for another thread: a lock, a condition, a semaphore.
    Futex,
    /// It waits for Python's interpreter lock.
    Gil,
    /// It waits for bytes, or for room for them, in a pipe or socket.
    Socket,
    /// It waits for any of several descriptors.
    Poll,
    /// It sleeps for a time.
    Timer,
    /// It waits in a call of a device driver.
    Driver,
    /// It sleeps in another call, or it is not known in which.
    Asleep,
}

impl Doing {
    /// All of them.
    pub const ALL: [Doing; 14] = [
        Doing::Running,
        Doing::Runnable,
        Doing::Throttled,
        Doing::Interrupted,
        Doing::Stopped,
        Doing::Disk,
        Doing::Uninterruptible,
        Doing::Futex,
        Doing::Gil,
        Doing::Socket,
        Doing::Poll,
        Doing::Timer,
        Doing::Driver,
        Doing::Asleep,
    ];

    /// What a state of a thread is, with its system call; `None` if it is not known.
    pub fn of(state: ThreadState, call: i64) -> Option<Doing> {
        Some(match state {
            ThreadState::Running => Doing::Running,
            ThreadState::Runnable => Doing::Runnable,
            ThreadState::Throttled => Doing::Throttled,
            ThreadState::Hardirq | ThreadState::Softirq => Doing::Interrupted,
            ThreadState::Stopped => Doing::Stopped,
            ThreadState::DiskWait => Doing::Disk,
            ThreadState::Uninterruptible => Doing::Uninterruptible,
            ThreadState::Sleep => match syscall::wait(call) {
                Wait::Futex => Doing::Futex,
                Wait::Gil => Doing::Gil,
                Wait::Read | Wait::Write | Wait::Receive | Wait::Send => Doing::Socket,
                Wait::Poll => Doing::Poll,
                Wait::Timer => Doing::Timer,
                Wait::Ioctl => Doing::Driver,
                Wait::Sync | Wait::FileLock | Wait::None | Wait::Other => Doing::Asleep,
            },
            ThreadState::Unknown => return None,
        })
    }

    /// Whether the thread had something to do: it ran, or would have.
    pub fn is_busy(self) -> bool {
        matches!(self, Doing::Running | Doing::Runnable | Doing::Throttled | Doing::Interrupted)
    }

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Doing::Running => "running",
            Doing::Runnable => "runnable",
            Doing::Throttled => "throttled",
            Doing::Interrupted => "interrupted",
            Doing::Stopped => "stopped",
            Doing::Disk => "disk",
            Doing::Uninterruptible => "uninterruptible",
            Doing::Futex => "futex",
            Doing::Gil => "gil",
            Doing::Socket => "socket",
            Doing::Poll => "poll",
            Doing::Timer => "timer",
            Doing::Driver => "driver",
            Doing::Asleep => "asleep",
        }
    }
}

/// How late after its wakeup a thread may have taken the bytes that it waited for.
const TAKEN_WITHIN: Ns = Ns::millis(50);
/// Others for whom one thread waits that are told apart. The rest is summed as one that has no name.
const OTHERS: usize = 256;
/// Those beyond that.
pub const OTHERS_TOGETHER: EntityId = EntityId(0);

/// What a thread did in each window, in ns.
#[derive(Clone, Debug)]
pub struct TimeOfThread {
    /// By what it did; of time that was not recorded nothing is in any of them.
    doing: HashMap<Doing, Vec<i64>>,
    waited: HashMap<(Doing, EntityId), Waited>,
}

/// How long a thread waited for another one.
#[derive(Clone, Debug, Default)]
pub struct Waited {
    /// In each window, ns.
    pub ns: Vec<i64>,
    /// How often.
    pub times: u64,
}

impl TimeOfThread {
    /// What it spent on `doing` in each window, ns; nothing if it never did that.
    pub fn spent_on(&self, doing: Doing) -> &[i64] {
        self.doing.get(&doing).map_or(&[], Vec::as_slice)
    }

    /// For whom it waited: for a CPU behind processes, else for threads.
    pub fn waited_for(&self) -> impl Iterator<Item = (Doing, EntityId, &Waited)> {
        self.waited.iter().map(|((doing, whom), waited)| (*doing, *whom, waited))
    }
}

/// What chosen threads did.
#[derive(Clone, Debug)]
pub struct TimeOfThreads {
    cut: Cut,
    threads: HashMap<EntityId, TimeOfThread>,
}

impl TimeOfThreads {
    /// Nothing yet, of these threads.
    pub fn new(cut: Cut, threads: impl IntoIterator<Item = EntityId>) -> TimeOfThreads {
        let nothing = || TimeOfThread { doing: HashMap::new(), waited: HashMap::new() };
        TimeOfThreads { cut, threads: threads.into_iter().map(|id| (id, nothing())).collect() }
    }

    /// How time is cut.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// What a thread did.
    pub fn of(&self, thread: EntityId) -> Option<&TimeOfThread> {
        self.threads.get(&thread)
    }

    /// Adds the states that end in `ended`, `(from, to]`. States that have not ended count as ending at the end of
    /// time. `rows` are states, wakeups and messages around that, with entities and tracks.
    pub fn add(&mut self, rows: &Rows, ended: Range<Ns>) {
        let world = World::new(rows);
        let cut = self.cut;
        for (thread, time) in &mut self.threads {
            for held in world.states(*thread, (Ns::MIN, Ns::MAX)) {
                if held.to <= ended.start || held.to > ended.end {
                    continue;
                }
                let Some(doing) = Doing::of(held.state, held.arg) else { continue };
                let span = (held.from, held.to);
                let sums = time.doing.entry(doing).or_default();
                spread(&cut, span, sums);
                if doing == Doing::Runnable {
                    time.behind(&world, &cut, held);
                } else if let Some(whom) = waited_for(&world, *thread, held, doing) {
                    time.wait(&cut, (doing, whom), span);
                }
            }
        }
    }
}

impl TimeOfThread {
    /// Waiting for a CPU: for the processes that had it.
    fn behind(&mut self, world: &World, cut: &Cut, held: &Held) {
        let window = (held.from, held.to);
        for &(from, to, who) in world.occupants(held.arg, window) {
            if who != EntityId(0) {
                let key = (Doing::Runnable, world.process(who));
                self.wait(cut, key, (from.max(window.0), to.min(window.1)));
            }
        }
    }

    fn wait(&mut self, cut: &Cut, (doing, whom): (Doing, EntityId), span: (Ns, Ns)) {
        let key = match self.waited.len() < OTHERS || self.waited.contains_key(&(doing, whom)) {
            true => (doing, whom),
            false => (doing, OTHERS_TOGETHER),
        };
        let waited = self.waited.entry(key).or_default();
        waited.times += 1;
        spread(cut, span, &mut waited.ns);
    }
}

/// The thread that a sleep waited for, as far as is known.
fn waited_for(world: &World, thread: EntityId, held: &Held, doing: Doing) -> Option<EntityId> {
    match doing {
        Doing::Running | Doing::Throttled | Doing::Interrupted | Doing::Timer => return None,
        _ => {}
    }
    let waker = world.woken(thread, held.from, held.to).and_then(|woken| woken.waker);
    let at_last = || match doing {
        Doing::Futex | Doing::Gil | Doing::Poll => world.woken_at_last(thread, held)?.waker,
        _ => None,
    };
    let sender = || match doing {
        Doing::Socket | Doing::Poll => {
            let taken = world.message_after(thread, held.to, held.to.saturating_add(TAKEN_WITHIN));
            world.other_end(&taken?)
        }
        _ => None,
    };
    waker.or_else(at_last).or_else(sender)
}

/// Adds a stretch of time to the windows that it lies in.
fn spread(cut: &Cut, (from, to): (Ns, Ns), into: &mut Vec<i64>) {
    into.resize(cut.count, 0);
    let begin = i128::from(cut.origin);
    let end = begin + i128::from(cut.width) * cut.count as i128;
    let (from, to) = (i128::from(from.0).max(begin), i128::from(to.0).min(end));
    let mut at = from;
    while at < to {
        let window = (at - begin) / i128::from(cut.width);
        let until = (begin + (window + 1) * i128::from(cut.width)).min(to);
        into[window as usize] += (until - at) as i64;
        at = until;
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{
        Discipline, EntityKind, Id, Lane, Lanes, SourceId, State, WakeContext, Wakeup, names,
    };

    use super::*;

    /// Threads whose states are drawn: one character is one millisecond.
    #[derive(Default)]
    struct Drawn {
        lanes: Lanes,
        rows: Rows,
    }

    const MS: i64 = 1_000_000;

    impl Drawn {
        fn who(&mut self, name: &str) -> EntityId {
            let process = name.split('/').next().unwrap();
            let process = self.lanes.entity(EntityKind::Process, process, |_| {});
            self.lanes.entity(EntityKind::Thread, name, |e| e.parent = Some(process))
        }

        fn state(&mut self, of: EntityId, track: &str, at: usize, n: usize, value: i64, arg: i64) {
            let lane = Lane::states(track, Discipline::Sparse);
            let track = self.lanes.track(of, None, lane, SourceId(1));
            let (ts, dur) = (Ns(at as i64 * MS), Some(Ns(n as i64 * MS)));
            self.rows.state.push(State { ts, dur, track, value, arg: Some(arg) });
        }

        fn thread(&mut self, name: &str, drawn: &str) -> &mut Drawn {
            let of = self.who(name);
            let chars: Vec<char> = drawn.chars().collect();
            let mut at = 0;
            for run in chars.chunk_by(|a, b| a == b) {
                let (state, arg) = match run[0] {
                    'R' => (ThreadState::Running, 0),
                    'Q' => (ThreadState::Runnable, 0),
                    'D' => (ThreadState::DiskWait, 0),
                    'F' => (ThreadState::Sleep, 202),
                    'S' => (ThreadState::Sleep, 230),
                    'E' => (ThreadState::Sleep, 232),
                    'N' => (ThreadState::Sleep, 45),
                    _ => (ThreadState::Unknown, 0),
                };
                self.state(of, names::THREAD_STATE, at, run.len(), state.code(), arg);
                at += run.len();
            }
            self
        }

        /// Who had CPU 0.
        fn cpu(&mut self, drawn: &str) -> &mut Drawn {
            let cpu = self.lanes.entity(EntityKind::Cpu, "0", |e| e.number = Some(0));
            for (at, c) in drawn.chars().enumerate().filter(|(_, c)| *c != '.') {
                let who = self.who(&format!("{c}/{c}"));
                self.state(cpu, names::OCCUPANT, at, 1, who.0.into(), 0);
            }
            self
        }

        fn wake(&mut self, woken: &str, at: i64, by: &str) -> &mut Drawn {
            let (woken, waker) = (self.who(woken), Some(self.who(by)));
            let (id, ts, context) = (Id::new(0, at as u64), Ns(at * MS), WakeContext::Task);
            self.rows.wakeup.push(Wakeup { id, ts, woken, waker, context, cpu: 0 });
            self
        }

        /// The times of a thread in windows of 4 ms, and for whom it waited, in ms.
        fn told(&mut self, thread: &str, ms: i64) -> String {
            let of = self.who(thread);
            self.lanes.drain(&mut self.rows);
            let cut = Cut::of(0..ms * MS, 4 * MS, 100).unwrap();
            let mut times = TimeOfThreads::new(cut, [of]);
            // In two stretches, as long recordings are read.
            times.add(&self.rows, Ns::MIN..Ns(ms / 2 * MS));
            times.add(&self.rows, Ns(ms / 2 * MS)..Ns::MAX);
            let time = times.of(of).unwrap();
            let ms = |ns: &[i64]| ns.iter().map(|n| (n / MS).to_string()).collect::<Vec<_>>();
            let mut said: Vec<String> = Vec::new();
            for doing in Doing::ALL.into_iter().filter(|d| !time.spent_on(*d).is_empty()) {
                said.push(format!("{} {}", doing.as_str(), ms(time.spent_on(doing)).join(" ")));
            }
            let mut waited: Vec<String> = time
                .waited_for()
                .map(|(doing, whom, waited)| {
                    let whom = &self.lanes.get(whom).unwrap().key;
                    let (n, ms) = (waited.times, ms(&waited.ns).join(" "));
                    format!("{} for {whom} {ms} ({n} times)", doing.as_str())
                })
                .collect();
            waited.sort();
            said.extend(waited);
            said.join("; ")
        }
    }

    #[test]
    fn a_threads_time_is_told_by_what_it_did_and_for_whom_it_waited() {
        let mut drawn = Drawn::default();
        drawn.thread("job/main", "RRFFFFRRQQQQRRDD").wake("job/main", 6, "job/helper");
        drawn.cpu("........hhgg....");
        let said = drawn.told("job/main", 16);
        let expected = "running 2 2 0 2; runnable 0 0 4 0; disk 0 0 0 2; futex 2 2 0 0; \
                        futex for job/helper 2 2 0 0 (1 times); \
                        runnable for g 0 0 2 0 (2 times); runnable for h 0 0 2 0 (2 times)";
        assert_eq!(said, expected);
    }

    #[test]
    fn a_sleep_longer_than_a_stretch_is_told_once_and_by_who_ended_it() {
        let mut drawn = Drawn::default();
        drawn.thread("job/main", "REEEEEEEEEEEEERR").wake("job/main", 14, "proxy/main");
        let expected = "running 1 0 0 2; poll 3 4 4 2; poll for proxy/main 3 4 4 2 (1 times)";
        assert_eq!(drawn.told("job/main", 16), expected);
    }

    #[test]
    fn a_lock_that_is_waited_for_a_few_milliseconds_at_a_time_is_waited_for_who_gave_it_up() {
        let mut drawn = Drawn::default();
        drawn.thread("py/main", "FFFFRFFFFFFFRSSS").wake("py/main", 12, "py/hog");
        let expected = "running 0 1 0 1; futex 4 3 4 0; timer 0 0 0 3; \
                        futex for py/hog 4 3 4 0 (2 times)";
        assert_eq!(drawn.told("py/main", 16), expected);
    }

    #[test]
    fn what_was_not_recorded_is_in_no_sum_and_times_out_of_range_change_nothing() {
        let mut drawn = Drawn::default();
        drawn.thread("job/main", "RR....RR........RRRR");
        assert_eq!(drawn.told("job/main", 16), "running 2 2 0 0");
        let cut = Cut { origin: 0, width: 10, count: 2 };
        let mut sums = Vec::new();
        spread(&cut, (Ns::MIN, Ns::MAX), &mut sums);
        assert_eq!(sums, [10, 10]);
        spread(&cut, (Ns(30), Ns(5)), &mut sums);
        assert_eq!(sums, [10, 10]);
    }
}
