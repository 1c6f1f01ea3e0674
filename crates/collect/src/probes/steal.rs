//! Time that the hypervisor gave to other virtual machines while this one wanted to run.
//!
//! *What it sees*: the `steal` column of `/proc/stat` per CPU, ten times a second, or twice while
//! nothing is stolen. *Why it matters*: a step that waits for a stolen CPU looks as if it ran.
//! Only where the scheduler's probe does not tell it for each slice of a CPU: on kernels without
//! `CONFIG_PARAVIRT_TIME_ACCOUNTING`, or while thread states are not recorded. *What fools it*: the file
//! counts in USER_HZ, so that a reading is true to 10 ms only; a hypervisor that does not report steal shows
//! 0 for ever.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;

use gpuwhy_schema::{Lane, Measure, Ns, SourceId, names, sources};

use crate::bpf::Bpf;
use crate::context::Context;
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::every::Every;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::sys::{self, ns};

pub(crate) const PROBE: ProbeSpec =
    ProbeSpec::new("steal", &sources::STEAL, "time that the hypervisor took", start);

/// Between two readings: making the file costs the kernel up to 100 µs, and it counts in units of
/// 10 ms.
const EVERY: Ns = Ns::millis(100);

/// Between two readings when nothing was stolen for [`QUIET`].
const EVERY_QUIET: Ns = Ns::millis(500);

/// After this time without steal, readings become rarer.
const QUIET: Ns = Ns::secs(2);

/// ns in a tick of USER_HZ, which is 100 on every architecture in use.
const TICK: u64 = 10_000_000;

const PATH: &str = "/proc/stat";

/// While no CPU was told about for so long, the file is read.
const TOLD: Ns = Ns::secs(1);

struct Steal {
    bpf: Rc<Bpf>,
    /// Whether the file was not read lately, since it was told better.
    told: bool,
    source: SourceId,
    file: File,
    buffer: Vec<u8>,
    cpus: Vec<DeltaCounter>,
    reads: Every,
    /// When time was last stolen.
    stolen: Ns,
    recorded: u64,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let file = File::open(PATH).map_err(read_error)?;
    // The lines of the CPUs come first: a name and ten numbers each.
    let mut buffer = vec![0; 256 * (start.cx.cpus.len() + 1)];
    let n = file.read_at(&mut buffer, 0).map_err(read_error)?;
    let mut cpus = vec![DeltaCounter::default(); start.cx.cpus.len()];
    for (cpu, ticks) in steal(&buffer[..n]) {
        if let Some(counter) = cpus.get_mut(cpu) {
            *counter = DeltaCounter::starting_at(ticks * TICK);
        }
    }
    let (source, stolen) = (start.source, sys::monotonic());
    let bpf = Rc::clone(start.bpf);
    Ok(Box::new(Steal {
        bpf,
        told: false,
        source,
        file,
        buffer,
        cpus,
        reads: Every::new(EVERY),
        stolen,
        recorded: 0,
    }))
}

fn read_error(source: std::io::Error) -> CollectError {
    CollectError::Read { path: PathBuf::from(PATH), source }
}

impl Probe for Steal {
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if !self.reads.is_due(now) {
            return Ok(());
        }
        self.reads.wait(if now - self.stolen < QUIET { EVERY } else { EVERY_QUIET }, now);
        // Some CPU switches every second: this thread has just been switched in.
        let told = (0..self.bpf.cpu_count()).map(|i| ns(self.bpf.cpu(i).stolen_at)).max();
        if told.is_some_and(|at| at.0 > 0 && now - at < TOLD) {
            self.told = true;
            return Ok(());
        }
        let n = self.file.read_at(&mut self.buffer, 0).map_err(read_error)?;
        for (cpu, ticks) in steal(&self.buffer[..n]) {
            let (Some(counter), Some(&entity)) = (self.cpus.get_mut(cpu), cx.cpus.get(cpu)) else {
                continue;
            };
            if self.told {
                *counter = counter.rebased(ticks * TICK);
            }
            let added = counter.update(ticks * TICK, now, &mut cx.rows, || {
                let kind = Lane::counter(names::STEAL, "ns", Measure::Delta);
                cx.catalog.track(entity, None, kind, self.source)
            });
            if added > 0 {
                self.recorded += 1;
                self.stolen = now;
            }
        }
        self.told = false;
        Ok(())
    }

    fn recorded(&self) -> u64 {
        self.recorded
    }
}

/// Index and stolen ticks of each CPU that has a whole line.
fn steal(stat: &[u8]) -> impl Iterator<Item = (usize, u64)> {
    let line = |line: &[u8]| {
        let mut fields = str::from_utf8(line).ok()?.split_ascii_whitespace();
        let cpu = fields.next()?.strip_prefix("cpu")?.parse().ok()?;
        // user nice system idle iowait irq softirq steal
        Some((cpu, fields.nth(7)?.parse().ok()?))
    };
    stat.split(|&b| b == b'\n').take_while(|l| l.starts_with(b"cpu")).filter_map(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eighth_number_of_each_cpu_is_its_steal() {
        let text = "cpu  10 0 20 300 4 0 5 66 0 0\ncpu0 5 0 10 150 2 0 3 60 0 0\n\
                    cpu3 5 0 10 150 2 0 2 6 0 0\nintr 12 0\ncpu9 1 1 1 1 1 1 1 1\n";
        let read = |text: &str| steal(text.as_bytes()).collect::<Vec<_>>();
        assert_eq!(read(text), [(0, 60), (3, 6)]);
        assert_eq!(read("cpu0 1 2 3"), []);
        assert_eq!(read(""), []);
    }
}
