//! The ring under loom: small situations, in every order of events with a bound on preemptions
//! (`scripts/loom.sh`). What a relaxed load may see is tried too.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;

use super::*;
use crate::record::{Event, Record, encode};
use crate::sync::AtomicU64;

/// Preemptions in one execution; most errors take two (Musuvathi and Qadeer, 2007).
const PREEMPTIONS: usize = 2;
/// A clock for a consumer that never gives a slot up.
const PATIENT: u64 = u64::MAX;

fn model(f: impl Fn() + Sync + Send + 'static) {
    crate::sync::model(PREEMPTIONS, f);
}

/// A ring in memory of its own, whose atomics were each made in place.
struct Made {
    ring: RawRing,
    layout: Layout,
}

impl Made {
    fn new(slots: u32, names: u32) -> Made {
        let layout = Layout::from_size_align(total_bytes(slots, names), 64).unwrap();
        // SAFETY: the layout has a size.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        let made = RawRing { base, slots, names };
        macro_rules! words {
            ($of:expr; $($field:ident: $type:ident),*) => {
                // SAFETY: each word lies in the memory that was just allocated and is ours alone.
                $(unsafe { (&raw const $of.$field).cast_mut().write($type::new(0)) };)*
            };
        }
        use crate::sync::AtomicU32;
        let header = made.header();
        words!(header; magic: AtomicU64, version: AtomicU32, slot_bytes: AtomicU32,
            slots: AtomicU32, names: AtomicU32, name_bytes: AtomicU32, reserved: AtomicU32,
            total_bytes: AtomicU64, created: AtomicU64, head: AtomicU64, lost: AtomicU64,
            late: AtomicU64, names_lost: AtomicU64, tail: AtomicU64, lost_reported: AtomicU64,
            records: AtomicU64, torn: AtomicU64, abandoned: AtomicU64);
        for i in 0..slots as u64 {
            let slot = made.slot(i);
            words!(slot; sequence: AtomicU64);
            for word in &slot.words {
                // SAFETY: as above.
                unsafe { (&raw const *word).cast_mut().write(AtomicU64::new(0)) };
            }
        }
        for i in 0..names {
            let entry = made.name_entry(i);
            words!(entry; state: AtomicU64);
            for word in &entry.text {
                // SAFETY: as above.
                unsafe { (&raw const *word).cast_mut().write(AtomicU64::new(0)) };
            }
        }
        // SAFETY: aligned, of this length, and freed when no thread has it any more.
        let ring = unsafe { RawRing::init(base, layout.size(), slots, names, 0) }.unwrap();
        Made { ring, layout }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the last one who had it is gone.
        unsafe { dealloc(self.ring.base.as_ptr(), self.layout) };
    }
}

/// A record whose fields all follow from one number.
fn mark(number: u64, name: NameId) -> [u64; RECORD_WORDS] {
    let event = Event::Mark { name, at: number, value: Some(number as f64) };
    encode(&Record { pid: number as u32, tid: number as u32 + 1, event })
}

/// The number that all fields follow from.
fn number(record: Record) -> (u64, NameId) {
    let Event::Mark { name, at, value: Some(value) } = record.event else {
        panic!("no thread wrote {record:?}")
    };
    assert_eq!((value, record.pid, record.tid), (at as f64, at as u32, at as u32 + 1));
    (at, name)
}

/// What a consumer has taken.
#[derive(Default)]
struct Seen {
    records: Vec<u64>,
    torn: u64,
    abandoned: u64,
}

impl Seen {
    fn look(&mut self, tail: &mut Tail, now: u64) -> Taken {
        let taken = tail.take(now);
        match taken {
            Taken::Record(record) => self.records.push(number(record).0),
            Taken::Torn => self.torn += 1,
            Taken::Abandoned => self.abandoned += 1,
            Taken::Waiting | Taken::Empty => {}
        }
        taken
    }

    fn rest(&mut self, tail: &mut Tail, now: u64) {
        for _ in 0..16 {
            if self.look(tail, now) == Taken::Empty {
                return;
            }
        }
        panic!("the ring does not come to rest");
    }
}

/// Two threads write two records each; there is room for two, and a consumer reads meanwhile. Nothing
/// is torn, nothing comes twice or out of order, and what is missing was counted.
#[test]
fn two_producers_a_consumer_and_two_slots() {
    model(|| {
        let made = Arc::new(Made::new(2, 2));
        let threads: Vec<_> = [10, 20]
            .map(|first| {
                let made = made.clone();
                thread::spawn(move || {
                    for number in first..first + 2 {
                        let pushed = made.ring.push(&mut mark(number, NameId(0)));
                        assert_ne!(pushed, Pushed::Late, "no consumer gave the slot up");
                    }
                })
            })
            .into();
        let (mut tail, mut seen) = (Tail::new(made.ring, PATIENT), Seen::default());
        for _ in 0..2 {
            seen.look(&mut tail, 0);
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        seen.rest(&mut tail, 0);
        assert_eq!((seen.torn, seen.abandoned), (0, 0));
        let Lost::Records(lost) = tail.lost() else { panic!("nobody writes garbage") };
        assert_eq!(seen.records.len() as u64 + lost, 4);
        for first in [10, 20] {
            let of: Vec<_> = seen.records.iter().filter(|n| **n / 10 * 10 == first).collect();
            assert!(of.is_sorted_by(|a, b| a < b), "{:?}", seen.records);
        }
        // And the ring works as on its first day.
        for number in 30..32 {
            assert_eq!(made.ring.push(&mut mark(number, NameId(0))), Pushed::Published);
        }
        seen.rest(&mut tail, 0);
        assert_eq!(seen.records[seen.records.len() - 2..], [30, 31]);
    });
}

/// A producer is given up between reserve and publish, and comes back while another one uses its
/// slot in the next lap: what is delivered is whole, and each record was delivered, torn,
/// abandoned or lost.
#[test]
fn a_producer_that_was_given_up_comes_back() {
    model(|| {
        let made = Arc::new(Made::new(2, 2));
        let (mut tail, mut seen) = (Tail::new(made.ring, 0), Seen::default());
        let stopped = made.ring.reserve().unwrap();
        let late = {
            let made = made.clone();
            thread::spawn(move || made.ring.publish(stopped, &mut mark(10, NameId(0))))
        };
        let other = {
            let made = made.clone();
            thread::spawn(move || {
                (20..23)
                    .filter(|n| made.ring.push(&mut mark(*n, NameId(0))) == Pushed::Published)
                    .collect::<Vec<_>>()
            })
        };
        // No patience: a reserved slot is given up at once.
        for _ in 0..3 {
            seen.look(&mut tail, 1);
        }
        let (late, other) = (late.join().unwrap(), other.join().unwrap());
        seen.rest(&mut tail, 1);
        let mut expected = other.clone();
        if late == Pushed::Published {
            expected.push(10);
        }
        // Whole records are those that were written, at most one of them torn by the late producer.
        assert!(seen.records.iter().all(|n| expected.contains(n)), "{:?}", seen.records);
        assert_eq!(seen.records.len() as u64 + seen.torn, expected.len() as u64);
        assert!(seen.torn <= u64::from(late == Pushed::Late));
        made.ring.push(&mut mark(30, NameId(0)));
        seen.rest(&mut tail, 1);
        assert_eq!(seen.records.last(), Some(&30));
    });
}

/// Two threads intern the same name and write records with it: the consumer finds the name.
#[test]
fn two_interners_of_one_name() {
    model(|| {
        let made = Arc::new(Made::new(2, 2));
        let threads: Vec<_> = [10, 20]
            .map(|number| {
                let made = made.clone();
                thread::spawn(move || {
                    let name = made.ring.intern("step");
                    made.ring.push(&mut mark(number, name));
                    name
                })
            })
            .into();
        let mut tail = Tail::new(made.ring, PATIENT);
        let read = |taken| {
            let Taken::Record(record) = taken else { return };
            let (_, name) = number(record);
            let mut buffer = [0; NAME_BYTES];
            assert_eq!(made.ring.name(name, &mut buffer), Some(4), "of {name:?}");
            assert_eq!(&buffer[..4], b"step");
        };
        read(tail.take(0));
        let ids: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        (0..3).for_each(|_| read(tail.take(0)));
        // Two numbers for one name do no harm; no number would.
        assert!(ids.iter().all(|id| id.0 != 0), "{ids:?}");
        assert_eq!(made.ring.header().records.load(Relaxed), 2);
    });
}

/// A consumer that was killed leaves its place in the ring, also in the middle of freeing a slot;
/// the next one goes on while a producer writes.
#[test]
fn a_new_consumer_while_a_producer_writes() {
    model(|| {
        let made = Arc::new(Made::new(2, 2));
        let lost = Arc::new(AtomicU32::new(0));
        let producer = {
            let (made, lost) = (made.clone(), lost.clone());
            thread::spawn(move || {
                for number in 10..13 {
                    if made.ring.push(&mut mark(number, NameId(0))) == Pushed::Full {
                        lost.fetch_add(1, Relaxed);
                    }
                }
            })
        };
        let mut seen = Seen::default();
        let mut first = Tail::new(made.ring, PATIENT);
        seen.look(&mut first, 0);
        // It freed a slot and died before it stored its position.
        let stored = first.position().saturating_sub(1);
        made.ring.header().tail.store(stored, Release);
        let mut second = Tail::new(made.ring, PATIENT);
        seen.look(&mut second, 0);
        producer.join().unwrap();
        seen.rest(&mut second, 0);
        assert_eq!(seen.torn, 0);
        assert!(seen.records.is_sorted_by(|a, b| a < b), "{:?}", seen.records);
        assert_eq!(seen.records.len() as u32 + lost.load(Relaxed), 3);
    });
}
