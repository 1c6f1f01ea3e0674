//! Data that go back and forth, and exchanges between devices by way of the host.

use gpuwhy_diagnose::exchange;

use super::Statement;
use crate::variability::sums::Sums;
use crate::variability::{Device, NS_MS};

/// The most of each kind that are listed.
const LISTED: usize = 3;

/// The largest of both kinds.
pub fn statements(sums: &Sums, devices: &[Device]) -> Vec<Statement> {
    let mut copies = sums.moved.clone();
    copies.sort_by_key(|copy| copy.start);
    let label = |number: u32| {
        devices.get(number as usize).map_or_else(|| number.to_string(), Device::label)
    };
    let back_and_forth = exchange::ping_pong(&copies);
    let by_host = exchange::host_staged(&copies);
    let ping_pong = back_and_forth.iter().take(LISTED).map(|found| {
        let says = format!(
            "{} bytes went to {} and back {} times ({:.1} ms): they could have stayed there",
            found.bytes,
            label(found.device),
            found.rounds,
            found.ns as f64 / NS_MS
        );
        Statement::new("ping_pong", says)
    });
    let host_staged = by_host.iter().take(LISTED).map(|found| {
        let says = format!(
            "{} exchanges from {} to {} go by way of the host ({} bytes, {:.1} ms), and none directly",
            found.times,
            label(found.from),
            label(found.to),
            found.bytes,
            found.ns as f64 / NS_MS
        );
        Statement::new("host_staged", says)
    });
    host_staged.chain(ping_pong).collect()
}
