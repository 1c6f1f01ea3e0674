//! The events that are open, in a bounded array, and the handles that NCCL keeps of them.
//!
//! NCCL has called plug-ins with handles of events that had ended long ago, from other threads, and has
//! never ended others (its issues 1992 and 2000). So a handle is not an address but a place and a
//! generation: a handle of an earlier generation matches nothing and is ignored.
//!
//! Places are given out in rotation, so that an event that has ended can still be read for one round:
//! children begin after their parents ended. A place whose event never ends is taken back after
//! [`AGE`], when the rotation meets it.
//!
//! One word for each place holds everything that two threads could disagree on: the generation, the
//! state, and how many children hold it.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// An event that has not ended for this long is given up if its place is needed, ns.
pub const AGE: u64 = 60_000_000_000;

const GENERATIONS: u64 = (1 << 28) - 1;
const HOLDERS: u64 = (1 << 32) - 1;
/// The most places of all pools together that a handle can distinguish.
pub const PLACES: usize = (1 << 20) - 1;

/// The state of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// Never used.
    Free = 0,
    /// Being filled or taken back.
    Busy = 1,
    /// Begun.
    Live = 2,
    /// Ended, but its children have not.
    Stopped = 3,
    /// Its record is being written.
    Reporting = 4,
    /// Over; what is kept of it can still be read.
    Done = 5,
}

/// A place's word: `generation << 36 | state << 32 | holders`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    fn new(generation: u64, state: State, holders: u64) -> Word {
        Word((generation & GENERATIONS) << 36 | (state as u64) << 32 | holders)
    }

    /// How often the place has been given out.
    pub fn generation(self) -> u64 {
        self.0 >> 36
    }

    /// How many children hold it.
    pub fn holders(self) -> u64 {
        self.0 & HOLDERS
    }

    /// The state of its event.
    pub fn state(self) -> State {
        match self.0 >> 32 & 15 {
            0 => State::Free,
            2 => State::Live,
            3 => State::Stopped,
            4 => State::Reporting,
            5 => State::Done,
            _ => State::Busy,
        }
    }
}

/// What NCCL gets for an event: `process << 48 | generation << 20 | place`, with places from 1, so that no
/// handle is null. `process` keeps handles of other processes, and of a parent before a fork,
/// apart from ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub u64);

impl Handle {
    /// No event.
    pub const NONE: Handle = Handle(0);

    /// The handle of place `place` of all pools.
    pub fn new(process: u16, generation: u64, place: usize) -> Handle {
        Handle((process as u64) << 48 | (generation & GENERATIONS) << 20 | (place as u64 + 1))
    }

    /// The place in all pools, if it is a handle of this process.
    pub fn place(self, process: u16) -> Option<usize> {
        let place = (self.0 & PLACES as u64) as usize;
        (process != 0 && self.0 >> 48 == process as u64 && place != 0).then(|| place - 1)
    }

    /// The generation that the place must have.
    pub fn generation(self) -> u64 {
        self.0 >> 20 & GENERATIONS
    }
}

/// A type that a pool can hold.
pub trait Empty {
    /// The content of an empty place: all zero.
    const EMPTY: Self;
}

/// A place.
pub struct Place<T> {
    word: AtomicU64,
    born: AtomicU64,
    /// What the event is; all of it atomic, since a stale handle may come at any time.
    pub of: T,
}

impl<T> Place<T> {
    /// Its word now.
    #[inline]
    pub fn word(&self) -> Word {
        Word(self.word.load(Acquire))
    }

    /// Moves the event of `generation` from one of the states `from` to `to`; false if it is in none of
    /// them.
    pub fn turn(&self, generation: u64, from: &[State], to: State) -> bool {
        self.change(|word| {
            (word.generation() == generation && from.contains(&word.state()))
                .then(|| Word::new(generation, to, word.holders()))
        })
        .is_some()
    }

    /// As [`Place::turn`], if no child holds it.
    pub fn turn_if_free(&self, generation: u64, from: State, to: State) -> bool {
        self.change(|word| {
            (word == Word::new(generation, from, 0)).then(|| Word::new(generation, to, 0))
        })
        .is_some()
    }

    /// Keeps the place from being given out, if it still is of `generation`.
    pub fn hold(&self, generation: u64) -> bool {
        self.change(|word| {
            let known = !matches!(word.state(), State::Free | State::Busy);
            (word.generation() == generation && known && word.holders() < HOLDERS)
                .then_some(Word(word.0 + 1))
        })
        .is_some()
    }

    /// Takes back one [`Place::hold`].
    pub fn let_go(&self, generation: u64) {
        self.change(|word| {
            (word.generation() == generation && word.holders() > 0).then_some(Word(word.0 - 1))
        });
    }

    /// The last step of giving a place out: from now on its handle is valid.
    pub fn begin(&self, generation: u64) {
        self.word.store(Word::new(generation, State::Live, 0).0, Release);
    }

    #[inline]
    fn change(&self, to: impl Fn(Word) -> Option<Word>) -> Option<Word> {
        self.word.fetch_update(AcqRel, Acquire, |word| to(Word(word)).map(|w| w.0)).ok().map(Word)
    }
}

/// A fixed number of places.
pub struct Pool<T, const N: usize> {
    places: [Place<T>; N],
    turn: AtomicU64,
}

impl<T: Empty, const N: usize> Pool<T, N> {
    /// All places free.
    pub const fn new() -> Pool<T, N> {
        Pool {
            places: [const { Place { word: AtomicU64::new(0), born: AtomicU64::new(0), of: T::EMPTY } };
                N],
            turn: AtomicU64::new(0),
        }
    }

    /// A place to fill, with its index and generation, or `None` if the next `probes` are all in use.
    /// `given_up` is called with an event that never ended before its place is reused.
    #[inline]
    pub fn give(
        &self,
        now: u64,
        probes: usize,
        given_up: impl Fn(usize, u64),
    ) -> Option<(usize, u64, &Place<T>)> {
        for _ in 0..probes.min(N) {
            let index = self.turn.fetch_add(1, Relaxed) as usize % N;
            let place = &self.places[index];
            let word = place.word();
            let old = now.saturating_sub(place.born.load(Relaxed)) > AGE;
            let free = match word.state() {
                State::Free => true,
                State::Done => word.holders() == 0 || old,
                State::Live | State::Stopped if old => {
                    let reporting = Word::new(word.generation(), State::Reporting, word.holders());
                    if place.word.compare_exchange(word.0, reporting.0, AcqRel, Relaxed).is_err() {
                        continue;
                    }
                    given_up(index, word.generation());
                    place.turn(word.generation(), &[State::Reporting], State::Busy);
                    self.claim(place, word.generation() + 1, now);
                    return Some((index, (word.generation() + 1) & GENERATIONS, place));
                }
                _ => false,
            };
            let generation = (word.generation() + 1) & GENERATIONS;
            let busy = Word::new(generation, State::Busy, 0);
            if free && place.word.compare_exchange(word.0, busy.0, AcqRel, Relaxed).is_ok() {
                place.born.store(now, Relaxed);
                return Some((index, generation, place));
            }
        }
        None
    }

    fn claim(&self, place: &Place<T>, generation: u64, now: u64) {
        place.word.store(Word::new(generation, State::Busy, 0).0, Release);
        place.born.store(now, Relaxed);
    }

    /// The place, whatever is in it.
    #[inline]
    pub fn at(&self, index: usize) -> Option<&Place<T>> {
        self.places.get(index)
    }

    /// All places.
    pub fn all(&self) -> impl Iterator<Item = (usize, &Place<T>)> {
        self.places.iter().enumerate()
    }

    /// Ends all events: they were another process's.
    pub fn forget(&self) {
        for place in &self.places {
            let word = place.word();
            if word.state() != State::Free {
                let generation = word.generation() + 1;
                place.word.store(Word::new(generation, State::Done, 0).0, Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Empty for AtomicU64 {
        const EMPTY: AtomicU64 = AtomicU64::new(0);
    }

    type Four = Pool<AtomicU64, 4>;

    fn give(pool: &Four, now: u64) -> Option<(usize, u64)> {
        let (index, generation, place) = pool.give(now, 4, |_, _| {})?;
        place.begin(generation);
        Some((index, generation))
    }

    fn end(pool: &Four, (index, generation): (usize, u64)) -> bool {
        pool.at(index).unwrap().turn(generation, &[State::Live], State::Done)
    }

    #[test]
    fn a_full_pool_refuses_until_something_ends() {
        let pool = Four::new();
        let all: Vec<_> = (0..4).map(|_| give(&pool, 1).unwrap()).collect();
        assert_eq!(give(&pool, 1), None);
        assert!(end(&pool, all[2]));
        assert!(!end(&pool, all[2]), "a second stop changes nothing");
        let again = give(&pool, 1).unwrap();
        assert_eq!(again, (2, 2));
        assert!(!end(&pool, all[2]), "a handle of the last generation fits nothing");
        assert!(end(&pool, again));
    }

    #[test]
    fn an_event_that_has_ended_can_be_read_for_one_round() {
        let pool = Four::new();
        let first = give(&pool, 1).unwrap();
        end(&pool, first);
        for _ in 0..3 {
            let next = give(&pool, 1).unwrap();
            assert!(pool.at(0).unwrap().hold(first.1), "still the first");
            pool.at(0).unwrap().let_go(first.1);
            end(&pool, next);
        }
        give(&pool, 1).unwrap();
        assert!(!pool.at(0).unwrap().hold(first.1));
    }

    #[test]
    fn what_is_held_is_not_given_out() {
        let pool = Four::new();
        let first = give(&pool, 1).unwrap();
        end(&pool, first);
        assert!(pool.at(0).unwrap().hold(first.1));
        for _ in 0..9 {
            let next = give(&pool, 1).unwrap();
            assert_ne!(next.0, 0);
            end(&pool, next);
        }
    }

    #[test]
    fn what_never_ends_is_given_up_after_a_while() {
        let pool = Four::new();
        let first: Vec<_> = (0..4).map(|_| give(&pool, 1).unwrap()).collect();
        assert_eq!(give(&pool, 1 + AGE), None);
        let given_up = core::cell::Cell::new(None);
        let (index, generation, _) =
            pool.give(2 + AGE, 4, |i, g| given_up.set(Some((i, g)))).unwrap();
        assert_eq!(given_up.get(), Some(first[index]));
        assert_eq!(generation, first[index].1 + 1);
        assert!(!end(&pool, first[index]));
    }

    #[test]
    fn handles_of_others_match_nothing() {
        let handle = Handle::new(7, 3, 41);
        assert_eq!((handle.place(7), handle.generation()), (Some(41), 3));
        assert_eq!(handle.place(8), None);
        assert_eq!(Handle(0).place(0), None);
        assert_eq!(Handle::NONE.place(7), None);
        assert_eq!(Handle::new(7, 0, PLACES - 1).place(7), Some(PLACES - 1));
        let wrapped = Handle::new(7, GENERATIONS + 1, 0);
        assert_eq!((wrapped.generation(), wrapped.place(7)), (0, Some(0)));
    }

    #[test]
    fn threads_never_share_a_place() {
        let pool = Four::new();
        std::thread::scope(|scope| {
            let pool = &pool;
            let work = |thread: u64| {
                scope.spawn(move || {
                    for i in 0..20_000 {
                        let Some((index, generation, place)) = pool.give(1, 4, |_, _| {}) else {
                            continue;
                        };
                        let mine = thread << 32 | i;
                        place.of.store(mine, Relaxed);
                        place.begin(generation);
                        assert_eq!(place.of.load(Relaxed), mine);
                        assert!(end(pool, (index, generation)));
                    }
                })
            };
            // Joined by name: what a scope does at its end no thread sanitizer sees.
            let threads = [1, 2, 3].map(work);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
