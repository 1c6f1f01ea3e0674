//! Time that interrupts take from every CPU.
//!
//! *What it sees*: entry and exit of each softirq vector and of each interrupt handler; an
//! interrupt inside a softirq counts once, as interrupt. *Why it matters*: this time is taken
//! from whichever thread happens to run, and NET_RX of one process starves the next. *What fools
//! it*: handlers that are entered without a tracepoint (NMI, the local timer before its softirq,
//! hypervisor callbacks) are not in it.

use std::rc::Rc;

use gpuwhy_schema::{Counter, Lane, Measure, Ns, SourceId, TrackId, names};

use crate::kernel::{Cpu, Kernel, Loaded, SOFTIRQS, bpf_object};
use crate::{CollectError, Context, Probe, Start};

/// One counter for each vector and one for handlers.
const LANES: usize = SOFTIRQS.len() + 1;

struct Interrupts {
    kernel: Rc<Kernel>,
    source: SourceId,
    cpus: Vec<Lanes>,
    counted: u64,
    _loaded: Loaded,
}

/// What was last read of one CPU, and where its rows go.
#[derive(Default)]
struct Lanes {
    last: [u64; LANES],
    /// Whether the last row was not zero, so that a return to zero is written once.
    up: [bool; LANES],
    tracks: [Option<TrackId>; LANES],
}

/// Starts the probe.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let mut loaded = start.kernel.load("interrupts", bpf_object!("interrupts"), |_| Ok(()))?;
    loaded.attach()?;
    let cpus = (0..start.kernel.cpu_count())
        .map(|i| Lanes { last: times(&start.kernel.cpu(i)), ..Lanes::default() })
        .collect();
    Ok(Box::new(Interrupts {
        kernel: Rc::clone(start.kernel),
        source: start.source,
        cpus,
        counted: 0,
        _loaded: loaded,
    }))
}

fn times(cpu: &Cpu) -> [u64; LANES] {
    let mut times = [0; LANES];
    times[..SOFTIRQS.len()].copy_from_slice(&cpu.softirq_ns);
    times[SOFTIRQS.len()] = cpu.hardirq_ns;
    times
}

impl Probe for Interrupts {
    fn name(&self) -> &'static str {
        "interrupts"
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        for (i, lanes) in self.cpus.iter_mut().enumerate() {
            let times = times(&self.kernel.cpu(i));
            for (lane, &time) in times.iter().enumerate() {
                let delta = time.wrapping_sub(lanes.last[lane]);
                lanes.last[lane] = time;
                if delta == 0 && !lanes.up[lane] {
                    continue;
                }
                lanes.up[lane] = delta != 0;
                self.counted += 1;
                let track = *lanes.tracks[lane].get_or_insert_with(|| {
                    let name = match SOFTIRQS.get(lane) {
                        Some(vector) => format!("{}{vector}", names::SOFTIRQ_PREFIX),
                        None => names::HARDIRQ.to_owned(),
                    };
                    let lane = Lane::counter(&name, "ns", Measure::Delta);
                    cx.lanes.track(cx.cpus[i], None, lane, self.source)
                });
                cx.rows.counter.push(Counter { ts: now, track, value: delta as f64 });
            }
        }
        Ok(())
    }

    fn counted(&self) -> u64 {
        self.counted
    }
}
