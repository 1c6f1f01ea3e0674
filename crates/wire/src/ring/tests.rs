use proptest::prelude::*;

use super::*;
use crate::record::{Event, Record, encode};

const PATIENCE: u64 = 100;

/// A ring of 4 slots and 4 names in memory of its own, which is leaked: it is small.
fn ring() -> RawRing {
    #[repr(align(64))]
    struct Memory([u8; total_bytes(4, 4)]);
    let memory = Box::leak(Box::new(Memory([0; total_bytes(4, 4)])));
    // SAFETY: aligned, of this length, and never freed.
    unsafe {
        RawRing::init(NonNull::from(&mut memory.0).cast(), total_bytes(4, 4), 4, 4, 0).unwrap()
    }
}

fn mark(at: u64) -> [u64; RECORD_WORDS] {
    let event = Event::Mark { name: NameId(0), at, value: None };
    encode(&Record { pid: 1, tid: 1, event })
}

/// What a consumer sees at `now`: marks by their time, `!` torn, `x` abandoned, `~` waiting.
fn look(tail: &mut Tail, now: u64) -> String {
    let mut seen = Vec::new();
    for _ in 0..tail.ring().slots {
        seen.push(match tail.take(now) {
            Taken::Record(Record { event: Event::Mark { at, .. }, .. }) => at.to_string(),
            Taken::Record(_) => "?".to_string(),
            Taken::Torn => "!".to_string(),
            Taken::Abandoned => "x".to_string(),
            Taken::Waiting => {
                seen.push("~".to_string());
                break;
            }
            Taken::Empty => break,
        });
    }
    seen.join(" ")
}

fn push(ring: &RawRing, at: u64) -> Pushed {
    ring.push(&mut mark(at))
}

#[test]
fn a_full_ring_counts_and_goes_on() {
    let ring = ring();
    let mut tail = Tail::new(ring, PATIENCE);
    let pushed: Vec<_> = (0..6).map(|at| push(&ring, at)).collect();
    assert_eq!(pushed[3..], [Pushed::Published, Pushed::Full, Pushed::Full]);
    assert_eq!(look(&mut tail, 0), "0 1 2 3");
    assert_eq!((tail.lost(), tail.lost()), (Lost::Records(2), Lost::Records(0)));
    push(&ring, 6);
    assert_eq!(look(&mut tail, 0), "6");
}

#[test]
fn slots_of_dead_producers_are_waited_for_once() {
    let ring = ring();
    let mut tail = Tail::new(ring, PATIENCE);
    push(&ring, 0);
    ring.reserve().unwrap();
    push(&ring, 2);
    ring.reserve().unwrap();
    assert_eq!(look(&mut tail, 1000), "0 ~");
    assert_eq!(look(&mut tail, 1099), "~");
    assert_eq!(look(&mut tail, 1100), "x 2 x");
    push(&ring, 4);
    assert_eq!(look(&mut tail, 1101), "4");
}

#[test]
fn a_slot_that_was_reserved_later_has_time_of_its_own() {
    let ring = ring();
    let mut tail = Tail::new(ring, PATIENCE);
    ring.reserve().unwrap();
    assert_eq!(look(&mut tail, 1000), "~");
    let later = ring.reserve().unwrap();
    assert_eq!(look(&mut tail, 1100), "x ~");
    assert_eq!(ring.publish(later, &mut mark(7)), Pushed::Published);
    assert_eq!(look(&mut tail, 1101), "7");
}

#[test]
fn a_producer_that_comes_back_late_is_refused() {
    let ring = ring();
    let mut tail = Tail::new(ring, PATIENCE);
    let stopped = ring.reserve().unwrap();
    assert_eq!(look(&mut tail, 0), "~");
    assert_eq!(look(&mut tail, 100), "x");
    assert_eq!(ring.publish(stopped, &mut mark(9)), Pushed::Late);
    assert_eq!(look(&mut tail, 200), "");
    assert_eq!(ring.header().late.load(Relaxed), 1);
    push(&ring, 1);
    assert_eq!(look(&mut tail, 200), "1");
}

#[test]
fn a_late_producer_that_writes_over_another_lap_is_seen_as_torn() {
    let ring = ring();
    let mut tail = Tail::new(ring, PATIENCE);
    let stopped = ring.reserve().unwrap();
    look(&mut tail, 0);
    look(&mut tail, 100);
    for at in 1..5 {
        push(&ring, at);
    }
    // A whole record, but of the lap before.
    assert_eq!(ring.publish(stopped, &mut mark(9)), Pushed::Late);
    assert_eq!(look(&mut tail, 200), "1 2 3 !");
    // A part of a record.
    push(&ring, 5);
    ring.slot(5).words[3].store(77, Relaxed);
    assert_eq!(look(&mut tail, 200), "!");
}

#[test]
fn a_new_consumer_goes_on_where_the_last_one_left_off() {
    let ring = ring();
    let mut first = Tail::new(ring, PATIENCE);
    for at in 0..3 {
        push(&ring, at);
    }
    first.take(0);
    assert_eq!(look(&mut Tail::new(ring, PATIENCE), 0), "1 2");
}

#[test]
fn a_consumer_that_died_after_freeing_a_slot_delays_nobody() {
    let ring = ring();
    for at in 0..3 {
        push(&ring, at);
    }
    let mut first = Tail::new(ring, PATIENCE);
    first.take(0);
    first.take(0);
    ring.header().tail.store(1, Relaxed);
    push(&ring, 3);
    push(&ring, 4);
    let mut second = Tail::new(ring, PATIENCE);
    assert_eq!(second.position(), 2);
    assert_eq!(look(&mut second, 0), "2 3 4");
}

#[test]
fn names_are_kept_once_and_their_table_has_an_end() {
    let ring = ring();
    let step = ring.intern("step");
    assert_eq!(ring.intern("step"), step);
    let mut buffer = [0; NAME_BYTES];
    assert_eq!(ring.name(step, &mut buffer), Some(4));
    assert_eq!(&buffer[..4], b"step");
    let ids: Vec<_> = ["a", "b", "c", "d"].map(|n| ring.intern(n)).to_vec();
    assert_eq!(ids.iter().filter(|id| id.0 == 0).count(), 1);
    assert_eq!(ring.header().names_lost.load(Relaxed), 1);
    assert_eq!(ring.intern("step"), step);
    for unknown in [0, 5, u32::MAX] {
        assert_eq!(ring.name(NameId(unknown), &mut buffer), None);
    }
}

#[test]
fn a_long_name_is_cut_between_characters() {
    let ring = ring();
    let id = ring.intern(&"\u{20ac}".repeat(50));
    let mut buffer = [0; NAME_BYTES];
    let bytes = ring.name(id, &mut buffer).unwrap();
    assert_eq!(std::str::from_utf8(&buffer[..bytes]), Ok("\u{20ac}".repeat(40).as_str()));
}

#[test]
fn a_name_whose_writer_died_is_passed_over() {
    let ring = ring();
    let text = u64::from_le_bytes(*b"step\0\0\0\0");
    let hash = hash(&[text], 4);
    let entry = ring.name_entry(hash & 3);
    entry.state.store((hash as u64) << 32 | 4 << 8 | NAME_CLAIMED, Relaxed);
    let id = ring.intern("step");
    assert_ne!(id, NameId((hash & 3) + 1));
    let mut buffer = [0; NAME_BYTES];
    assert_eq!(ring.name(NameId((hash & 3) + 1), &mut buffer), None);
    assert_eq!(ring.name(id, &mut buffer), Some(4));
}

proptest! {
    /// Whatever lies in the memory, a consumer looks at no more slots than there are, and then
    /// the ring works again.
    #[test]
    fn an_overwritten_ring_is_survived_and_repaired(
        slots in prop::collection::vec(prop_oneof![0u64..12, any::<u64>()], 32),
        head in prop_oneof![0u64..12, any::<u64>()],
        start in prop_oneof![0u64..12, any::<u64>()],
        names in prop::collection::vec(any::<u64>(), 64),
    ) {
        let ring = ring();
        for (i, words) in slots.chunks(8).enumerate() {
            let slot = ring.slot(i as u64);
            slot.sequence.store(words[0], Relaxed);
            for (to, from) in slot.words.iter().zip(&words[1..]) {
                to.store(*from, Relaxed);
            }
        }
        for (i, words) in names.chunks(16).enumerate() {
            let entry = ring.name_entry(i as u32);
            entry.state.store(words[0], Relaxed);
            for (to, from) in entry.text.iter().zip(&words[1..]) {
                to.store(*from, Relaxed);
            }
        }
        ring.header().head.store(head, Relaxed);
        ring.header().tail.store(start, Relaxed);

        push(&ring, 1);
        ring.intern("step");
        let mut buffer = [0; NAME_BYTES];
        for id in 0..6 {
            ring.name(NameId(id), &mut buffer);
        }
        let mut tail = Tail::new(ring, PATIENCE);
        let mut now = 0;
        // A slot is repaired when the consumer comes to it: within a lap.
        for at in 0..16 {
            look(&mut tail, now);
            now += PATIENCE;
            push(&ring, at);
        }
        look(&mut tail, now);
        prop_assert_eq!(tail.take(now), Taken::Empty);
        for at in 0..12 {
            prop_assert_eq!(push(&ring, at), Pushed::Published);
            prop_assert_eq!(look(&mut tail, now), at.to_string());
        }
    }

    /// A header of any bytes is opened only if all of the ring lies within the memory.
    #[test]
    fn a_header_is_believed_only_within_the_memory(
        slots: u32, names: u32, slot_bytes in 0u32..128, version in 0u32..3, short: bool,
    ) {
        let ring = ring();
        let header = ring.header();
        header.slots.store(slots, Relaxed);
        header.names.store(names, Relaxed);
        header.slot_bytes.store(slot_bytes, Relaxed);
        header.version.store(version, Relaxed);
        let bytes = total_bytes(4, 4) - short as usize;
        // SAFETY: `ring` leaked this memory, of at least this length.
        if let Ok(opened) = unsafe { RawRing::open(ring.base, bytes) } {
            prop_assert!(total_bytes(opened.slots, opened.names) <= bytes);
        }
    }
}
