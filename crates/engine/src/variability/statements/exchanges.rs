//! Data that go back and forth, and exchanges between devices by way of the host.

use std::collections::BTreeSet;

use gpuwhy_diagnose::exchange;
use gpuwhy_schema::Ns;

use super::Statement;
use crate::variability::clocks::Clocks;
use crate::variability::sums::Sums;
use crate::variability::{Device, NS_MS};

/// The most of each kind that are listed.
const LISTED: usize = 3;

/// The largest of both kinds; and what is not said of devices whose copies have no common order.
pub fn statements(
    sums: &Sums,
    devices: &[Device],
    clocks: &Clocks,
) -> (Vec<Statement>, Option<String>) {
    let label = |number: u32| {
        devices.get(number as usize).map_or_else(|| number.to_string(), Device::label)
    };
    let comparable = |a: u32, b: u32| clocks.between(a, b).carries(Ns(exchange::CARRIES));
    let found = exchange::exchanges(&sums.moved, &comparable);
    let ping_pong = found.ping_pong.iter().take(LISTED).map(|found| {
        let says = format!(
            "{} bytes went to {} and back {} times ({:.1} ms): they could have stayed there",
            found.bytes,
            label(found.device),
            found.rounds,
            found.ns as f64 / NS_MS
        );
        Statement::new("ping_pong", says)
    });
    let host_staged = found.host_staged.iter().take(LISTED).map(|found| {
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
    let between = found.undecided.iter().map(|of| clocks.between(of.from, of.to)).max();
    let not_said = between.map(|error| {
        format!(
            "not said whether what leaves {} goes on to a device of another file by way of the host, or could \
             have stayed: {error}, and such a copy follows within 1 ms",
            match found.undecided.iter().map(|of| of.from).collect::<BTreeSet<u32>>() {
                one if one.len() == 1 => one.into_iter().map(label).collect(),
                several => format!("{} devices", several.len()),
            }
        )
    });
    (host_staged.chain(ping_pong).collect(), not_said)
}
