//! What a span costs the program that marks it, in ns of its own CPU time.
//!
//! `cargo run --release -p gpuwhy-wire --example ring_cost` prints one line of JSON: for each kind of
//! call the fastest, the median and the slowest of 31 rounds, each of as many calls as fit the
//! ring, so that nothing is lost. The consumer empties the ring between rounds, unmeasured; the
//! clock is CLOCK_THREAD_CPUTIME_ID. A span is its begin and its end: two readings of the clock and
//! one record. `work_and_span` has other work between the spans, of which `work` is what it takes
//! alone. `clock_call` is what one reading would take as a call of clock_gettime, `empty` what
//! the loop takes.

use std::hint::black_box;

use gpuwhy_wire::{Consumer, Options, Producer, Ring};

const ROUNDS: usize = 31;
const CALLS: u32 = 1 << 14;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ring = Ring::memfd(Options { slots: CALLS, ..Options::default() })?;
    let mut consumer = Consumer::open(ring.path())?;
    let on = Producer::open(ring.path())?;
    let off = Producer::none();
    let name = on.name("step");
    let mut work = vec![0u64; 8 << 10];
    let lines = [
        measure("span", &mut consumer, || drop(on.phase(name))),
        measure("span_by_text", &mut consumer, || drop(on.phase("step"))),
        measure("step", &mut consumer, || drop(on.step(name).size(4096).rank(1))),
        measure("mark", &mut consumer, || on.mark(name, Some(1.0))),
        measure("span_without_ring", &mut consumer, || drop(black_box(&off).phase("step"))),
        measure("clock", &mut consumer, || {
            black_box(gpuwhy_wire::now());
        }),
        measure("work", &mut consumer, || other_work(&mut work)),
        measure("work_and_span", &mut consumer, || {
            other_work(&mut work);
            drop(on.phase(name));
        }),
        measure("clock_call", &mut consumer, || {
            black_box(time(libc::CLOCK_MONOTONIC));
        }),
        measure("empty", &mut consumer, || {
            black_box(());
        }),
    ];
    println!("{{{}}}", lines.join(","));
    Ok(())
}

/// Takes the first-level cache away, as a program does between its spans: 64 KiB are read and written.
fn other_work(work: &mut [u64]) {
    work.iter_mut().step_by(8).for_each(|word| *word = black_box(word.wrapping_add(1)));
}

fn time(clock: libc::clockid_t) -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for a timespec.
    unsafe { libc::clock_gettime(clock, &mut t) };
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

fn measure(what: &str, consumer: &mut Consumer, mut call: impl FnMut()) -> String {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = time(libc::CLOCK_THREAD_CPUTIME_ID);
            for _ in 0..CALLS {
                call();
            }
            let ns = (time(libc::CLOCK_THREAD_CPUTIME_ID) - start) / CALLS as f64;
            let drained = consumer.drain(usize::MAX, |_| {});
            assert_eq!(drained.lost, 0);
            assert!([0, CALLS as usize].contains(&(drained.records as usize)), "{drained:?}");
            ns
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    let (low, median, high) = (rounds[0], rounds[ROUNDS / 2], rounds[ROUNDS - 1]);
    format!("\"{what}\":{{\"ns\":{median:.1},\"min\":{low:.1},\"max\":{high:.1}}}")
}
