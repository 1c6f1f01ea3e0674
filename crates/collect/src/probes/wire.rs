//! Steps, phases, launches and device work that programs mark themselves.
//!
//! *What it sees*: the records of a `gpuwhy-wire` ring, written by any number of processes. *Why
//! it matters*: a step that its program marked is the best one there is: it has a size and a rank.
//! *What fools it*: pids and tids are those of the writer's own pid namespace, so that a
//! container's steps find their threads only if it shares the host's; a program may write
//! anything, so that spans that would cross on a thread or overlap on a stream are dropped and
//! counted.
//!
//! Processes that write become targets, so that the states of their threads are recorded.

use gpuwhy_schema::{Ns, sources};
use gpuwhy_wire::{Consumer, Ring};

use crate::config::WIRE_RING_SLOTS;
use crate::context::Context;
use crate::error::CollectError;
use crate::event_rows::{Devices, EventRows};
use crate::probe::{OpenStep, Probe, ProbeSpec, Start};
use crate::procfs::state_letter;

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |config| config.wire.is_some(),
    required_if: |_| true,
    ..ProbeSpec::new("wire", &sources::WIRE, "steps that programs mark", start)
};

struct Wire {
    consumer: Consumer,
    rows: EventRows,
}

/// Opens the ring; creates it if there is none yet.
fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let Some(path) = &start.config.wire else {
        return Err(CollectError::Unsupported {
            missing: "no ring was named".into(),
            fix: "name one to record marked steps".into(),
        });
    };
    let failed = |source| CollectError::Ring { path: path.clone(), source };
    if !path.exists() {
        Ring::create(path, WIRE_RING_SLOTS).map_err(failed)?;
    }
    let consumer = Consumer::open(path).map_err(failed)?;
    Ok(Box::new(Wire { consumer, rows: EventRows::new(start.source, Devices::Simulated) }))
}

impl Probe for Wire {
    fn tick(&mut self, _now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let rows = &mut self.rows;
        let drained = self.consumer.drain(usize::MAX, |record| rows.record(&record, cx));
        rows.recorded += drained.records;
        rows.dropped += drained.lost + drained.torn + drained.abandoned;
        Ok(())
    }

    fn recorded(&self) -> u64 {
        self.rows.recorded
    }

    fn dropped(&self) -> u64 {
        self.rows.dropped
    }

    fn open_steps(&self, before: Ns, out: &mut Vec<OpenStep>) {
        let lives = |pid, tid| state_letter(pid, tid).is_some_and(|letter| !"ZXx".contains(letter));
        out.append(&mut self.rows.open_steps(before, lives));
    }

    fn finish(&mut self, _now: Ns, cx: &mut Context) {
        self.rows.finish(cx);
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_wire::Producer;

    #[test]
    fn steps_written_by_a_program_come_out_of_the_recorder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        // Without the probes that need privileges.
        let config = crate::Config { wire: Some(path.clone()), ..crate::Config::only(&["wire"]) };
        let mut recorder = crate::Recorder::start(config).unwrap();
        let producer = Producer::open(&path).unwrap();
        for size in 0..3 {
            let step = producer.step("step").size(size).rank(0);
            producer.phase("load").end();
            step.end();
        }
        let mut rows = recorder.poll(std::time::Duration::from_millis(20)).unwrap();
        rows.append(&mut recorder.finish());
        assert_eq!(
            rows.step.iter().map(|s| s.size).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2)]
        );
        assert_eq!(rows.span.iter().filter(|s| &*s.name == "load").count(), 3);
        let wire = rows.source.iter().rev().find(|s| &*s.kind == "wire").unwrap();
        assert_eq!((wire.recorded, wire.dropped), (6, 0));
    }
}
