//! Time that interrupts take from every CPU.
//!
//! *What it sees*: entry and exit of each softirq vector and of each interrupt handler; an
//! interrupt inside a softirq counts once, as interrupt. *Why it matters*: this time is taken
//! from whichever thread happens to run, and NET_RX of one process starves the next. *What fools
//! it*: handlers that are entered without a tracepoint (NMI, the local timer before its softirq,
//! hypervisor callbacks) are not counted.

use std::rc::Rc;

use gpuwhy_schema::{Lane, Measure, Ns, SourceId, names, sources};

use crate::bpf::{Bpf, CpuCounters, LoadedObject, SOFTIRQS, bpf_object};
use crate::context::Context;
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::probe::{Probe, ProbeSpec, Start};

pub(crate) const PROBE: ProbeSpec = ProbeSpec::new(
    "interrupts",
    &sources::INTERRUPTS,
    "time that interrupts take, and whether a wakeup was the waker's own doing",
    start,
);

/// One counter for each softirq vector and one for handlers.
const COUNTERS: usize = SOFTIRQS.len() + 1;

struct Interrupts {
    bpf: Rc<Bpf>,
    source: SourceId,
    cpus: Vec<[DeltaCounter; COUNTERS]>,
    recorded: u64,
    _loaded: LoadedObject,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let mut loaded = start.bpf.load("interrupts", bpf_object!("interrupts"), |_| Ok(()))?;
    loaded.attach()?;
    let cpus = (0..start.bpf.cpu_count())
        .map(|i| times(&start.bpf.cpu(i)).map(DeltaCounter::starting_at))
        .collect();
    Ok(Box::new(Interrupts {
        bpf: Rc::clone(start.bpf),
        source: start.source,
        cpus,
        recorded: 0,
        _loaded: loaded,
    }))
}

fn times(cpu: &CpuCounters) -> [u64; COUNTERS] {
    let mut times = [0; COUNTERS];
    times[..SOFTIRQS.len()].copy_from_slice(&cpu.softirq_ns);
    times[SOFTIRQS.len()] = cpu.hardirq_ns;
    times
}

impl Probe for Interrupts {
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let before = cx.rows.counter.len();
        for (i, counters) in self.cpus.iter_mut().enumerate() {
            let times = times(&self.bpf.cpu(i));
            for (vector, (counter, time)) in counters.iter_mut().zip(times).enumerate() {
                counter.update(time, now, &mut cx.rows, || {
                    let name = match SOFTIRQS.get(vector) {
                        Some(vector) => format!("{}{vector}", names::SOFTIRQ_PREFIX),
                        None => names::HARDIRQ.to_owned(),
                    };
                    let kind = Lane::counter(&name, "ns", Measure::Delta);
                    cx.catalog.track(cx.cpus[i], None, kind, self.source)
                });
            }
        }
        self.recorded += (cx.rows.counter.len() - before) as u64;
        Ok(())
    }

    fn recorded(&self) -> u64 {
        self.recorded
    }
}
