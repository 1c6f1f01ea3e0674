//! What the recording itself costs: run time of its BPF programs, its own CPU time and memory.
//!
//! *What it sees*: once a second, the kernel's run time statistics of our own programs, and
//! /proc/self. *Why it matters*: a recorder that slows what it records should be the first to say
//! so. *What fools it*: the statistics themselves add 20 to 40 ns to each run of a program, and
//! the tracepoint's own jump into BPF is not in them. Switched off, nothing is measured and
//! nothing is added.

use std::fs;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use gpuwhy_schema::{Counter, Lane, Measure, Ns, SourceId, SourceState, TrackId, names};

use crate::kernel::{self, Kernel};
use crate::{CollectError, Context, Probe, Start};

struct SelfCost {
    kernel: Rc<Kernel>,
    source: SourceId,
    next: Ns,
    last: [Ns; 2],
    tracks: [Option<TrackId>; 3],
    counted: u64,
    /// The kernel measures while it is open.
    _statistics: Option<OwnedFd>,
}

/// Starts the probe; without CAP_SYS_ADMIN the run time of BPF programs is seen only where
/// somebody else has switched it on.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let statistics = kernel::enable_bpf_stats();
    if let Err(error) = &statistics
        && fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled")
            .map_or(true, |s| s.trim() != "1")
    {
        start.cx.lanes.update_source(start.source, |s| {
            s.state = SourceState::Degraded;
            s.note = Some(
                format!(
                    "the run time of BPF programs is not measured ({error}): add CAP_SYS_ADMIN, \
                     or `sysctl kernel.bpf_stats_enabled=1`"
                )
                .as_str()
                .into(),
            );
        });
    }
    Ok(Box::new(SelfCost {
        kernel: Rc::clone(start.kernel),
        source: start.source,
        next: kernel::monotonic() + Ns::secs(1),
        last: [Ns::ZERO, kernel::cpu_time()],
        tracks: [None; 3],
        counted: 0,
        _statistics: statistics.ok(),
    }))
}

impl Probe for SelfCost {
    fn name(&self) -> &'static str {
        "self_cost"
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if now < self.next {
            return Ok(());
        }
        self.next = now + Ns::secs(1);
        let (bpf, runs) = self.kernel.bpf_time();
        let cpu = kernel::cpu_time();
        if runs > 0 {
            let delta = bpf - self.last[0];
            self.row(0, names::SELF_BPF, "ns", Measure::Delta, delta.0 as f64, now, cx);
        }
        let delta = cpu - self.last[1];
        self.row(1, names::SELF_CPU, "ns", Measure::Delta, delta.0 as f64, now, cx);
        self.row(2, names::SELF_RSS, "By", Measure::Gauge, resident() as f64, now, cx);
        self.last = [bpf, cpu];
        Ok(())
    }

    fn counted(&self) -> u64 {
        self.counted
    }
}

impl SelfCost {
    #[allow(clippy::too_many_arguments)] // a row has that many columns
    fn row(
        &mut self,
        i: usize,
        name: &str,
        unit: &str,
        measure: Measure,
        value: f64,
        ts: Ns,
        cx: &mut Context,
    ) {
        let track = *self.tracks[i].get_or_insert_with(|| {
            cx.lanes.track(cx.host, None, Lane::counter(name, unit, measure), self.source)
        });
        self.counted += 1;
        cx.rows.counter.push(Counter { ts, track, value });
    }
}

/// Resident memory of this process in bytes; 0 if /proc does not say.
pub fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|s| s.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * kernel::page_size()
}
