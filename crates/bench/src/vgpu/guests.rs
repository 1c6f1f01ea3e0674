//! Guests that are traced as well, by clocks of their own: how many of their requests are joined with the host's, and how
//! far what is said of their clocks and their waits is from the truth.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use gpuwhy_diagnose::stats::Random;
use gpuwhy_engine::vgpu::{GuestTrace, JoinedReport, Options, vgpu};
use gpuwhy_schema::terminal;
use gpuwhy_testkit::gvt::{self, Guest, Load, Setup, Trace, Vgpu};

use super::{MS, between, imported, load};
use crate::result::Figure;

/// What came of a host's guests.
#[derive(Default)]
struct Outcome {
    guests: usize,
    refused: usize,
    /// Requests of those that were joined, and how many of them are.
    requests: usize,
    joined: usize,
    /// By how much each guest's clock is off, µs.
    clock_errors: Vec<f64>,
    /// Those that are further off than was said to be possible.
    outside: usize,
    /// By how much the sum of a tenant's waits differs from the truth, share.
    wait_errors: Vec<f64>,
}

/// Simulates hosts with traced guests, joins them and compares.
pub(super) fn figures(hosts: u64, seed: u64) -> Result<BTreeMap<&'static str, Figure>> {
    let mut all = Outcome::default();
    for at in 0..hosts {
        let seed = seed.wrapping_mul(7_368_787) ^ at << 3 ^ 5;
        host(seed, &mut all).with_context(|| format!("host {at} with traced guests"))?;
        terminal::status(format_args!("traced guests: {} of {hosts}", at + 1));
    }
    Ok(BTreeMap::from([
        ("guest_refused", Figure::share(all.refused, all.guests)),
        ("guest_requests_joined", Figure::share(all.joined, all.requests)),
        ("guest_clock_error_us", Figure::of(&all.clock_errors)),
        ("guest_clock_outside", Figure::share(all.outside, all.guests - all.refused)),
        ("guest_wait_error", Figure::of(&all.wait_errors)),
    ]))
}

/// A machine whose driver hands over one request or two at a time and has up to four; its clock gains or loses up to 50 µs a
/// second.
fn machine(random: &mut Random) -> Vgpu {
    let guest = Guest {
        ports: 1 + random.below(2) as u32,
        ahead: between(random, 0, 1_000_000 * MS),
        gains: between(random, -50_000, 50_000),
    };
    let own = load(random, (500, 12_000), (200, 20_000), 4_000 * MS);
    let own = Load { depth: 1 + random.below(4) as u32, spread: 0.3, ..own };
    Vgpu { guest: Some(guest), ..Vgpu::with(own) }
}

fn host(seed: u64, all: &mut Outcome) -> Result<()> {
    let mut random = Random::new(seed);
    let machines = between(&mut random, 2, 5);
    let setup = Setup::kernel((0..machines).map(|_| machine(&mut random)).collect(), seed);
    let trace = gvt::run(&setup);
    let folder = tempfile::tempdir()?;
    let path = imported(&trace.events, folder.path(), "host")?;
    let guests = trace.guests.iter().enumerate();
    let guests: Vec<GuestTrace> = guests
        .map(|(at, events)| {
            let path = imported(events, folder.path(), &format!("guest{at}"))?;
            Ok(GuestTrace { vgpu: (at + 1).to_string(), path })
        })
        .collect::<Result<_>>()?;
    for (at, guest) in guests.into_iter().enumerate() {
        all.guests += 1;
        let asked = Options { guests: vec![guest], ..Options::default() };
        match vgpu(&path, &asked) {
            Err(gpuwhy_engine::Error::Guest { .. }) => all.refused += 1,
            Err(other) => return Err(other.into()),
            Ok(found) => {
                let name = format!("vGPU {}", at + 1);
                let tenant = found.report.tenants.iter().find(|one| one.name == name);
                let waited = tenant.map_or(0.0, |one| one.waits.total_ms);
                compare(at, &setup, &trace, (&found.report.guests[0], waited), all);
            }
        }
    }
    Ok(())
}

/// What is told of a guest beside the truth.
fn compare(
    at: usize,
    setup: &Setup,
    trace: &Trace,
    (told, waited): (&JoinedReport, f64),
    all: &mut Outcome,
) {
    let Some(guest) = setup.vgpus[at].guest else { return };
    let own: Vec<_> = trace.requests.iter().filter(|one| one.vgpu == at).collect();
    all.requests += own.len();
    all.joined += told.requests;
    // The host's time at which the guest's clock shows what was told of, to the ns.
    let host = (told.clock_at_s + told.clock_s) * 1e9;
    let shown = guest.shows(host as i64) as f64;
    let error = (shown - told.clock_at_s * 1e9).abs() / 1e3;
    all.clock_errors.push(error);
    // A time in s as a floating-point number is good to a quarter of a µs here.
    all.outside += usize::from(error > told.uncertain_us.unwrap_or(0.0) + 0.25);
    let truly: i64 = own.iter().map(|one| one.from - one.made).sum();
    all.wait_errors.push((waited * 1e6 / truly.max(1) as f64 - 1.0).abs());
}
