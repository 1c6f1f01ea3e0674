//! Makes a ring and prints what programs write into it.
//!
//! `cargo run -p gpuwhy-wire --example listen -- /dev/shm/ring 5` listens for five seconds; run
//! programs with `GPUWHY_RING=/dev/shm/ring` meanwhile.

use std::time::{Duration, Instant};

use gpuwhy_wire::{Consumer, Ring};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: listen RING [SECONDS]")?;
    let seconds: f64 = args.next().as_deref().unwrap_or("10").parse()?;
    let ring = Ring::create(&path, 1 << 14)?;
    let mut consumer = Consumer::open(&path)?;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        let drained = consumer.drain(usize::MAX, |record| println!("{record:?}"));
        if (drained.lost, drained.torn, drained.abandoned) != (0, 0, 0) {
            eprintln!("{drained:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(ring.remove()?)
}
