//! Situations of a guest beside its host, written as events.

use std::fmt::Write as _;

use super::super::metrics::{Usage, tenant};
use super::super::tests::followed;
use super::*;

/// How far the guest's clock is ahead, ns.
const AHEAD: i64 = 5_000_000_000;

/// When a request comes, which differs from one to the next.
fn comes(at: i64) -> i64 {
    at * 10_000_000 + (at * at * 7_919 + at * 104_729) % 613 * 5_000
}

/// Requests of a guest to an engine: its driver has each for 40 µs, of which 30 since something is not done, and hears of
/// its end 20 µs after the host.
fn in_guest(requests: std::ops::Range<i64>, ring: i64) -> String {
    let mut out = String::new();
    for at in requests {
        let came = comes(at) + AHEAD;
        let lines = [
            (0, "add", "global=0"),
            (30_000, "submit", "global=0"),
            (40_000, "in", "global_seqno=0 port=0"),
            (2_570_000, "out", "global=0"),
        ];
        for (after, name, more) in lines {
            let time = came + after;
            let _ = writeln!(
                out,
                "{time} i915_gem_request_{name} dev=0 ctx=2 ring={ring} seqno={at} {more}"
            );
        }
    }
    out
}

/// The same of the host, which catches each 10 µs later and hands it over after half a ms; it runs for 2 ms.
fn on_host(requests: std::ops::Range<i64>, ring: i64) -> String {
    let mut out = String::new();
    for at in requests {
        let caught = comes(at) + 50_000;
        let work = format!("dev=0 vgpu_id=1 ring_id={ring} workload={}", 0xa0 + at);
        let own = format!("dev=0 ctx=17 ring={ring} seqno={at}");
        let lines = [
            (0, format!("gvt_workload_queue {work}")),
            (500_000, format!("gvt_workload_submit {work} ctx=17 seqno={at}")),
            (500_000, format!("i915_gem_request_in {own} global_seqno={at} port=0")),
            (2_500_000, format!("i915_gem_request_out {own} global={at}")),
            (2_510_000, format!("gvt_workload_complete {work}")),
        ];
        for (after, line) in lines {
            let _ = writeln!(out, "{} {line}", caught + after);
        }
    }
    out
}

fn joined(host: &str, guest: &str) -> (Vec<Request>, Result<Joined, Unaligned>) {
    let (host_model, mut host) = followed(host);
    let (guest_model, guest) = followed(guest);
    let said = join((&host_model, &mut host), 0, (&guest_model, &guest));
    (host, said)
}

#[test]
fn a_request_has_its_stages_in_the_guest_and_its_wait_begins_there() {
    let (host, said) = joined(&on_host(1..40, 0), &in_guest(1..40, 0));
    let said = said.unwrap();
    assert_eq!((said.journeys.len(), said.only_host, said.only_guest), (39, 0, 0));
    // 10 µs there and 20 back: the clock is 5 µs off, of 15 that it may be.
    let uncertain = said.clock.uncertain.unwrap();
    assert!(
        (15_000..=15_300).contains(&uncertain) && said.clock.contradicted == 0,
        "{:?}",
        said.clock
    );
    let off = said.clock.host(comes(7) + AHEAD) - comes(7);
    assert_eq!(off, -5_000);
    let one = host.iter().find(|one| one.sequence == 7).unwrap();
    assert_eq!(one.when(Stage::GuestQueued), Some(comes(7) + off));
    assert_eq!(one.when(Stage::GuestSubmitted), Some(comes(7) + 30_000 + off));
    assert_eq!(one.queued(), one.when(Stage::GuestQueued));
    let journey = said.journeys.iter().find(|one| one.heard == comes(7) + 50_000).unwrap();
    assert_eq!(journey.handed, comes(7) + 40_000 + off);
    assert_eq!(
        (journey.done, journey.told),
        (Some(comes(7) + 2_550_000), Some(comes(7) + 2_570_000 + off))
    );
    let own = tenant(0, &host, &Usage::new(&host), (0, i64::MAX));
    assert_eq!(own.wait.guest, 39 * (50_000 - off));
    let parts = own.wait.guest
        + own.wait.predecessor
        + own.wait.reserved
        + own.wait.dependency
        + own.wait.host;
    assert_eq!((parts, own.wait.behind()), (own.wait.total, 0));
    assert_eq!(own.waits.p50, 550_000 - off);
}

#[test]
fn requests_of_two_engines_are_joined_by_one_clock_and_what_one_trace_lacks_is_counted() {
    let host = format!("{}{}", on_host(1..40, 0), on_host(100..104, 1));
    let guest = format!("{}{}", in_guest(5..60, 0), in_guest(100..104, 1));
    // Of the guest's second engine one is lost, and of the host's first one.
    let lost = |text: &str, seqno: i64, ring: i64| -> String {
        let (own, work) =
            (format!("ring={ring} seqno={seqno} "), format!("workload={}", 0xa0 + seqno));
        let keeps = |line: &&str| {
            !format!("{line} ").contains(&own)
                && !line.ends_with(&work)
                && !line.contains(&format!("{work} "))
        };
        text.lines().filter(keeps).fold(String::new(), |all, line| all + line + "\n")
    };
    let (host, said) = joined(&lost(&host, 20, 0), &lost(&guest, 102, 1));
    let said = said.unwrap();
    assert_eq!(said.journeys.len(), (39 - 4 - 1) + 3);
    assert_eq!((said.only_host, said.only_guest), (1, 1));
    let known = host.iter().filter(|one| one.when(Stage::GuestQueued).is_some());
    assert_eq!(known.count(), 37);
}

#[test]
fn behind_an_own_request_that_the_host_has_a_wait_in_the_guest_is_as_that_ones() {
    // The guest makes each request twice as early: it waits there until the one before is done.
    let early = |line: &str| {
        let (time, rest) = line.split_once(' ').unwrap();
        let seqno: i64 =
            rest.split("seqno=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        let made = comes(seqno - 1) + AHEAD + 1_000_000;
        match rest.contains("_add") && seqno > 1 {
            true => format!("{made} {rest}"),
            false => format!("{time} {rest}"),
        }
    };
    let mut guest: Vec<String> = in_guest(1..30, 0).lines().map(early).collect();
    guest.sort_by_key(|line| line.split(' ').next().unwrap().parse::<i64>().unwrap());
    let (host, said) = joined(&on_host(1..30, 0), &guest.join("\n"));
    let clock = said.unwrap().clock;
    let off = clock.host(AHEAD);
    let one = host.iter().find(|one| one.sequence == 9).unwrap();
    let wait = Usage::new(&host).wait(one).unwrap();
    let made = comes(8) + 1_000_000 + off;
    assert_eq!(one.queued(), Some(made));
    // The one before ran from 550 µs after it came until 2,550.
    assert_eq!(wait.predecessor, comes(8) + 2_550_000 - made);
    assert_eq!(wait.guest, comes(9) + 50_000 - (comes(8) + 2_550_000));
    assert_eq!(wait.total, wait.predecessor + wait.guest + wait.reserved + wait.host);
}
