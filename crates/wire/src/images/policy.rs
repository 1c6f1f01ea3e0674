//! Policies: what a program tells of its memory and launches, and what it is asked for. Two queues and some counts,
//! in memory that both ends have mapped ([`Exchange`]).
//!
//! Many threads of the program write to the first queue and the controller reads it; the controller writes to the
//! second and one thread of the program reads it. Nobody waits: where a queue is full, the loss is counted. The
//! controller says ever again that it is alive ([`Exchange::beat`]), so that what it asked for ends with it.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::memory::Memory;

/// How many parameters of a launch that point into managed memory are told.
pub const POINTERS: usize = 4;
/// Words of what is told, and of what is asked for.
const TOLD_WORDS: usize = 11 + 2 * POINTERS;
const REQUEST_WORDS: usize = 4;
/// A thread that meets so many others at once counts its event as lost.
const TRIES: u32 = 1000;

// Words of the header.
const BEAT: usize = 0;
const CLOSED: usize = 8;
const COUNTS: usize = 512;

/// What the program tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Memory was allocated, or is given back.
    Memory {
        /// Its number in the process, from 1.
        number: u64,
        /// Its first byte.
        address: u64,
        /// How many.
        bytes: u64,
        /// Managed memory, and not memory of a device alone.
        managed: bool,
        /// The device's ordinal in the program.
        device: u64,
        /// It is given back.
        freed: bool,
    },
    /// A kernel is about to be launched.
    Launch {
        /// Its number in the process, from 1.
        number: u64,
        /// The hash of the kernel's name ([`super::name_hash`]); 0 if that is not known.
        kernel: u64,
        /// The stream's number in the process, from 1; 0 for default streams and those that are not known.
        stream: u64,
        /// Blocks in each direction.
        grid: [u32; 3],
        /// Threads of a block in each direction.
        block: [u32; 3],
        /// How many of its parameters point into managed memory.
        pointers: u64,
        /// The first of these: the allocation's number, and the offset in it.
        pointer: [(u64, u64); POINTERS],
    },
}

/// What the program is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Move managed memory to the device on which it was allocated.
    Prefetch {
        /// Its first byte.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// Advise the driver about managed memory.
    Advise {
        /// Its first byte.
        address: u64,
        /// How many.
        bytes: u64,
        /// CUDA's number of the advice, or 7: it prefers the host.
        advice: u64,
    },
    /// From now on delay launches of a kernel; by 0 not any more.
    Delay {
        /// The hash of its name; 0 for all.
        kernel: u64,
        /// By so much, us.
        us: u64,
    },
    /// Give streams that are created from now on a priority.
    Priority {
        /// Which one, from 1; 0 for all.
        stream: u64,
        /// The priority.
        priority: i64,
    },
}

/// What is counted by the program's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Count {
    /// Ranges that the driver was asked to prefetch,
    Prefetches,
    /// and their bytes.
    PrefetchedBytes,
    /// Advice that the driver was given.
    Advised,
    /// Rules of delay that were taken,
    DelayRules,
    /// launches that were delayed by them,
    LaunchesDelayed,
    /// by so many ns in all,
    DelayedNs,
    /// and one by so many at most.
    LongestDelayNs,
    /// Launches that were to be delayed for longer than one may be, and were for as long as that.
    DelaysCut,
    /// Launches that were not delayed, since all together had been for as long as they may.
    DelaysLeftOut,
    /// Rules of priority that were taken,
    PriorityRules,
    /// and streams that got theirs.
    StreamsPrioritised,
    /// Refused: the range lies in no managed memory of the program.
    NotManaged,
    /// Refused: there is no such advice.
    NoSuchAdvice,
    /// Refused: more rules than there is room for.
    TooManyRules,
    /// Refused by the driver,
    ByDriver,
    /// the last time with this `CUresult`.
    DriverCode,
}

impl Count {
    /// All of them.
    pub const ALL: [Count; 16] = [
        Count::Prefetches,
        Count::PrefetchedBytes,
        Count::Advised,
        Count::DelayRules,
        Count::LaunchesDelayed,
        Count::DelayedNs,
        Count::LongestDelayNs,
        Count::DelaysCut,
        Count::DelaysLeftOut,
        Count::PriorityRules,
        Count::StreamsPrioritised,
        Count::NotManaged,
        Count::NoSuchAdvice,
        Count::TooManyRules,
        Count::ByDriver,
        Count::DriverCode,
    ];
}

/// A queue in the memory: where it begins, how many entries it has, and their words.
struct Queue {
    /// Offset of three words: entries that were begun, entries that were taken, and those that found no room.
    head: usize,
    slots: usize,
    room: u64,
    words: usize,
}

const TOLD: Queue = Queue { head: 64, slots: 4096, room: 2048, words: TOLD_WORDS };
const REQUESTS: Queue = Queue { head: 128, slots: TOLD.end(), room: 4096, words: REQUEST_WORDS };

impl Queue {
    /// Where it ends. An entry has one word more: its number and 1, once it is whole.
    const fn end(&self) -> usize {
        self.slots + self.room as usize * 8 * (self.words + 1)
    }

    fn slot(&self, ticket: u64) -> usize {
        self.slots + (ticket % self.room) as usize * 8 * (self.words + 1)
    }

    /// Adds an entry; whether there was room.
    fn push(&self, memory: &Memory, entry: &[u64]) -> bool {
        let [next, taken, lost] = [0, 8, 16].map(|at| memory.word(self.head + at));
        let Some(((next, taken), lost)) = next.zip(taken).zip(lost) else { return false };
        let mut ticket = next.load(Relaxed);
        for _ in 0..TRIES {
            if ticket.wrapping_sub(taken.load(Acquire)) >= self.room {
                break;
            }
            match next.compare_exchange(ticket, ticket.wrapping_add(1), AcqRel, Relaxed) {
                Err(now) => ticket = now,
                Ok(_) => {
                    let at = self.slot(ticket);
                    for (number, value) in entry.iter().enumerate() {
                        if let Some(word) = memory.word(at + 8 + 8 * number) {
                            word.store(*value, Relaxed);
                        }
                    }
                    if let Some(turn) = memory.word(at) {
                        turn.store(ticket.wrapping_add(1), Release);
                    }
                    return true;
                }
            }
        }
        lost.fetch_add(1, Relaxed);
        false
    }

    /// Hands over the entries that are whole, in order; at most as many as there is room for. By one thread at a time.
    fn take<const WORDS: usize>(&self, memory: &Memory, mut each: impl FnMut([u64; WORDS])) {
        let Some(taken) = memory.word(self.head + 8) else { return };
        for _ in 0..self.room {
            let ticket = taken.load(Relaxed);
            let at = self.slot(ticket);
            let turn = memory.word(at).map_or(0, |turn| turn.load(Acquire));
            if turn != ticket.wrapping_add(1) {
                return;
            }
            let word = |number| memory.word(at + 8 + 8 * number).map_or(0, |w| w.load(Relaxed));
            let entry = core::array::from_fn(word);
            taken.store(ticket.wrapping_add(1), Release);
            each(entry);
        }
    }

    fn lost(&self, memory: &Memory) -> u64 {
        memory.word(self.head + 16).map_or(0, |lost| lost.load(Relaxed))
    }
}

/// The two queues and the counts of one process.
#[derive(Debug)]
pub struct Exchange(Memory);

impl Exchange {
    const BYTES: usize = REQUESTS.end();

    /// An empty one, the controller's.
    ///
    /// # Errors
    /// The system gives no memory.
    pub fn new() -> io::Result<Exchange> {
        Memory::new(Exchange::BYTES).map(Exchange)
    }

    /// What was received.
    ///
    /// # Errors
    /// It is too small.
    pub fn of(fd: OwnedFd) -> io::Result<Exchange> {
        let memory = Memory::of(fd)?;
        if memory.len() < Exchange::BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Exchange(memory))
    }

    /// The program tells something; whether there was room.
    pub fn tell(&self, told: Told) -> bool {
        TOLD.push(&self.0, &told.words())
    }

    /// What the program has told since.
    pub fn told(&self, mut each: impl FnMut(Told)) {
        TOLD.take(&self.0, |words| {
            if let Some(told) = Told::read(words) {
                each(told);
            }
        });
    }

    /// What the program had to tell and found no room for.
    pub fn untold(&self) -> u64 {
        TOLD.lost(&self.0)
    }

    /// The controller asks for something; whether there was room.
    pub fn ask(&self, request: Request) -> bool {
        REQUESTS.push(&self.0, &request.words())
    }

    /// What the program was asked for since.
    pub fn asked(&self, mut each: impl FnMut(Request)) {
        REQUESTS.take(&self.0, |words| {
            if let Some(request) = Request::read(words) {
                each(request);
            }
        });
    }

    /// The controller is alive, at a time (CLOCK_MONOTONIC, ns).
    pub fn beat(&self, now: u64) {
        self.0.set(BEAT, now);
    }

    /// When it was that the last time.
    pub fn beaten(&self) -> u64 {
        self.0.get(BEAT)
    }

    /// The program has ended as programs do, and has told all.
    pub fn close(&self) {
        self.0.set(CLOSED, 1);
    }

    /// Whether it has.
    pub fn is_closed(&self) -> bool {
        self.0.get(CLOSED) == 1
    }

    /// Adds to a count.
    pub fn count(&self, count: Count, more: u64) {
        self.0.add(COUNTS + 8 * count as usize, more);
    }

    /// Raises a count to a value, or sets it where it is the last of several.
    pub fn raise(&self, count: Count, to: u64) {
        if let Some(word) = self.0.word(COUNTS + 8 * count as usize) {
            match count {
                Count::DriverCode => word.store(to, Relaxed),
                _ => _ = word.fetch_max(to, Relaxed),
            }
        }
    }

    /// A count.
    pub fn counted(&self, count: Count) -> u64 {
        self.0.get(COUNTS + 8 * count as usize)
    }
}

impl AsFd for Exchange {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Told {
    fn words(self) -> [u64; TOLD_WORDS] {
        let mut words = [0; TOLD_WORDS];
        match self {
            Told::Memory { number, address, bytes, managed, device, freed } => {
                let all = [1, number, address, bytes, managed.into(), device, freed.into()];
                words[..all.len()].copy_from_slice(&all);
            }
            Told::Launch { number, kernel, stream, grid, block, pointers, pointer } => {
                words[..4].copy_from_slice(&[2, number, kernel, stream]);
                let sides = grid.into_iter().chain(block);
                words[4..10].iter_mut().zip(sides).for_each(|(to, side)| *to = side.into());
                words[10] = pointers;
                for (to, (allocation, offset)) in words[11..].chunks_exact_mut(2).zip(pointer) {
                    to.copy_from_slice(&[allocation, offset]);
                }
            }
        }
        words
    }

    fn read(words: [u64; TOLD_WORDS]) -> Option<Told> {
        let [kind, number, a, b, rest @ ..] = words;
        Some(match kind {
            1 => Told::Memory {
                number,
                address: a,
                bytes: b,
                managed: rest[0] != 0,
                device: rest[1],
                freed: rest[2] != 0,
            },
            2 => {
                let side = |at: usize| u32::try_from(words[at]).ok();
                let three = |at: usize| Some([side(at)?, side(at + 1)?, side(at + 2)?]);
                Told::Launch {
                    number,
                    kernel: a,
                    stream: b,
                    grid: three(4)?,
                    block: three(7)?,
                    pointers: words[10],
                    pointer: core::array::from_fn(|n| (words[11 + 2 * n], words[12 + 2 * n])),
                }
            }
            _ => return None,
        })
    }
}

impl Request {
    fn words(self) -> [u64; REQUEST_WORDS] {
        match self {
            Request::Prefetch { address, bytes } => [1, address, bytes, 0],
            Request::Advise { address, bytes, advice } => [2, address, bytes, advice],
            Request::Delay { kernel, us } => [3, kernel, us, 0],
            Request::Priority { stream, priority } => [4, stream, priority as u64, 0],
        }
    }

    fn read([kind, a, b, c]: [u64; REQUEST_WORDS]) -> Option<Request> {
        Some(match kind {
            1 => Request::Prefetch { address: a, bytes: b },
            2 => Request::Advise { address: a, bytes: b, advice: c },
            3 => Request::Delay { kernel: a, us: b },
            4 => Request::Priority { stream: a, priority: b as i64 },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> (Exchange, Exchange) {
        let ours = Exchange::new().unwrap();
        let theirs = Exchange::of(ours.as_fd().try_clone_to_owned().unwrap()).unwrap();
        (ours, theirs)
    }

    fn memory(number: u64) -> Told {
        Told::Memory { number, address: 7, bytes: 9, managed: true, device: 1, freed: false }
    }

    fn told(exchange: &Exchange) -> Vec<Told> {
        let mut all = Vec::new();
        exchange.told(|told| all.push(told));
        all
    }

    #[test]
    fn what_is_told_and_asked_is_what_is_read_in_order() {
        let (controller, program) = both();
        let launch = Told::Launch {
            number: 3,
            kernel: u64::MAX,
            stream: 2,
            grid: [1, 2, u32::MAX],
            block: [4, 5, 6],
            pointers: 6,
            pointer: [(1, 2), (3, 4), (5, 6), (7, 8)],
        };
        let all = [memory(1), launch, memory(2)];
        assert!(all.into_iter().all(|one| program.tell(one)));
        assert_eq!(told(&controller), all);
        assert!(told(&controller).is_empty());
        let requests = [
            Request::Prefetch { address: 1, bytes: 2 },
            Request::Advise { address: 1, bytes: 2, advice: 3 },
            Request::Delay { kernel: 0, us: 5 },
            Request::Priority { stream: 1, priority: -4 },
        ];
        assert!(requests.into_iter().all(|one| controller.ask(one)));
        let mut asked = Vec::new();
        program.asked(|request| asked.push(request));
        assert_eq!(asked, requests);
    }

    #[test]
    fn what_finds_no_room_is_counted_and_the_rest_arrives() {
        let (controller, program) = both();
        (0..TOLD.room + 5).for_each(|number| _ = program.tell(memory(number)));
        assert_eq!((controller.untold(), told(&controller).len() as u64), (5, TOLD.room));
        assert!(program.tell(memory(77)));
        assert_eq!(told(&controller), [memory(77)]);
    }

    #[test]
    fn an_entry_that_is_being_written_holds_up_those_behind_it() {
        let (controller, program) = both();
        let next = program.0.word(TOLD.head).unwrap();
        let ticket = next.fetch_add(1, AcqRel);
        program.tell(memory(2));
        assert!(told(&controller).is_empty());
        program.0.word(TOLD.slot(ticket)).unwrap().store(ticket + 1, Release);
        assert_eq!(told(&controller), [memory(2)], "what was not written is of no kind");
    }

    #[test]
    fn threads_that_tell_at_once_lose_nothing_while_there_is_room() {
        let (controller, program) = both();
        let mut all = Vec::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let program = &program;
                scope.spawn(move || {
                    (0..400).for_each(|n| assert!(program.tell(memory(1000 * thread + n))));
                });
            }
        });
        controller.told(|told| all.push(told));
        assert_eq!((all.len(), controller.untold()), (1600, 0));
    }

    /// Whatever the other end writes into the queue's own words.
    #[test]
    fn numbers_that_make_no_sense_end_a_reading() {
        let (controller, program) = both();
        for value in [u64::MAX, 1 << 40, 5] {
            program.tell(memory(1));
            program.0.word(TOLD.head + 8).unwrap().store(value, Relaxed);
            assert!(told(&controller).len() as u64 <= TOLD.room);
            program.0.word(TOLD.slots).unwrap().store(value, Relaxed);
            assert!(told(&controller).len() as u64 <= TOLD.room);
        }
    }

    #[test]
    fn counts_are_added_raised_and_set() {
        let (controller, program) = both();
        program.count(Count::DelayedNs, 5);
        program.count(Count::DelayedNs, 6);
        program.raise(Count::LongestDelayNs, 6);
        program.raise(Count::LongestDelayNs, 5);
        program.raise(Count::DriverCode, 801);
        program.raise(Count::DriverCode, 1);
        let of = [Count::DelayedNs, Count::LongestDelayNs, Count::DriverCode];
        assert_eq!(of.map(|count| controller.counted(count)), [11, 6, 1]);
        assert_eq!((controller.is_closed(), program.beaten()), (false, 0));
        controller.beat(9);
        program.close();
        assert_eq!((controller.is_closed(), program.beaten()), (true, 9));
        assert!((0..).zip(Count::ALL).all(|(at, count)| at == count as usize));
    }
}
