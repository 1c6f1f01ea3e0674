//! What the recording itself costs: run time of its BPF programs, its own CPU time and memory.
//!
//! *What it sees*: once a second, the kernel's run time statistics of our own programs, and
//! /proc/self. *Why it matters*: a recorder that slows what it records should be the first to report
//! it. *What fools it*: the statistics themselves add 20 to 40 ns to each run of a program, and
//! the tracepoint's own jump into BPF is not in them. Switched off, nothing is measured and
//! nothing is added.

use std::fs;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use gpuwhy_schema::{Counter, Lane, Measure, Ns, SourceId, TrackId, names, sources};

use crate::bpf::{Bpf, run_time};
use crate::context::Context;
use crate::error::CollectError;
use crate::probe::{How, Probe, ProbeSpec, Shedding, Start};
use crate::shed::Shed;
use crate::{procfs, sys};

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    sheds: &[Shedding {
        shed: Shed::Ticks,
        how: How::FewerTicks,
        missing: "aggregates are read a tenth as often",
    }],
    ..ProbeSpec::new("self_cost", &sources::SELF_COST, "what the recording itself costs", start)
};

struct SelfCost {
    bpf: Rc<Bpf>,
    source: SourceId,
    next: Ns,
    last: [Ns; 2],
    tracks: [Option<TrackId>; 3],
    recorded: u64,
    /// The kernel measures while it is open.
    _statistics: Option<OwnedFd>,
}

/// Without CAP_SYS_ADMIN the run time of BPF programs is known only where the administrator has
/// switched its measurement on.
fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let statistics = run_time::measure();
    let is_on =
        || fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|s| s.trim() == "1");
    if let Err(error) = &statistics
        && !is_on()
    {
        let note = format!(
            "the run time of BPF programs is not measured ({error}): add CAP_SYS_ADMIN, or `sysctl \
             kernel.bpf_stats_enabled=1`"
        );
        start.cx.degraded(start.source, &note);
    }
    Ok(Box::new(SelfCost {
        bpf: Rc::clone(start.bpf),
        source: start.source,
        next: sys::monotonic() + Ns::secs(1),
        last: [Ns::ZERO, sys::cpu_time()],
        tracks: [None; 3],
        recorded: 0,
        _statistics: statistics.ok(),
    }))
}

impl Probe for SelfCost {
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if now < self.next {
            return Ok(());
        }
        self.next = now + Ns::secs(1);
        let (bpf, runs) = self.bpf.run_time();
        let cpu = sys::cpu_time();
        if runs > 0 {
            let kind = Lane::counter(names::SELF_BPF, "ns", Measure::Delta);
            self.row(0, kind, now, (bpf - self.last[0]).0 as f64, cx);
        }
        let kind = Lane::counter(names::SELF_CPU, "ns", Measure::Delta);
        self.row(1, kind, now, (cpu - self.last[1]).0 as f64, cx);
        let kind = Lane::counter(names::SELF_RSS, "By", Measure::Gauge);
        self.row(2, kind, now, procfs::resident_bytes() as f64, cx);
        self.last = [bpf, cpu];
        Ok(())
    }

    fn recorded(&self) -> u64 {
        self.recorded
    }
}

impl SelfCost {
    fn row(&mut self, i: usize, kind: Lane<'_>, ts: Ns, value: f64, cx: &mut Context) {
        let track = *self.tracks[i]
            .get_or_insert_with(|| cx.catalog.track(cx.host, None, kind, self.source));
        self.recorded += 1;
        cx.rows.counter.push(Counter { ts, track, value });
    }
}
