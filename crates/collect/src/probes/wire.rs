//! Steps, phases, launches and device work that programs mark themselves.
//!
//! *What it sees*: the records of a `gpuwhy-wire` ring, written by any number of processes. *Why
//! it matters*: a step that its program marked is the best one there is: it has a size and a rank.
//! *What fools it*: a record names its writer by the pid of the writer's own namespace, and whoever may
//! write to the ring may write any: see [`crate::ring_writers`]. A program may write anything else as
//! well, so that spans that would cross on a thread or overlap on a stream are dropped and counted.
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
use crate::quota::{self, Bucket};
use crate::ring_writers::RingWriters;

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |config| config.wire.is_some(),
    required_if: |_| true,
    ..ProbeSpec::new("wire", &sources::WIRE, "steps that programs mark", start)
};

/// A writer that cannot be verified and that has written nothing for so long has ended.
const SILENT: Ns = Ns::secs(60);

struct Wire {
    consumer: Consumer,
    rows: EventRows,
    writers: RingWriters,
    /// What all writers together may still write.
    records: Bucket,
    next_check: Ns,
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
    let writers = RingWriters::of(consumer.file(), start.source);
    let rows = EventRows::new(start.source, Devices::Simulated);
    let records = Bucket::new(quota::ALL_RECORDS);
    Ok(Box::new(Wire { consumer, rows, writers, records, next_check: Ns::MIN }))
}

impl Probe for Wire {
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        self.rows.tick(now, cx);
        self.records.refill(now);
        // First who has ended: what it wrote is in the ring by now.
        let ended = self.writers.ended(now);
        let most = usize::try_from(self.records.left()).unwrap_or(usize::MAX);
        let (rows, writers) = (&mut self.rows, &mut self.writers);
        let drained =
            self.consumer.drain(most, |record| match writers.guest(record.pid, rows, cx) {
                Some(guest) => rows.record(guest, &record, cx),
                None => rows.dropped = rows.dropped.saturating_add(1),
            });
        self.records.take(drained.slots());
        self.rows.missed(&drained);
        // Records that were left in the ring may still be theirs.
        if (drained.slots() as usize) < most {
            for own_pid in ended {
                if let Some(guest) = self.writers.remove(own_pid) {
                    self.rows.end(guest, cx);
                }
            }
        }
        if now >= self.next_check {
            self.next_check = now.saturating_add(Ns::secs(1));
            let silent: Vec<u32> = self.rows.silent(now.saturating_sub(SILENT)).collect();
            for guest in silent {
                if self.rows.host_of(guest).is_none() {
                    self.writers.forget(guest);
                    self.rows.end(guest, cx);
                }
            }
        }
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
    use gpuwhy_wire::{Event, Producer, Record};

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

    /// Finding 1: a container's step with the pid 1, or a liar's.
    #[test]
    fn a_pid_in_the_ring_of_marked_steps_is_believed_only_of_who_maps_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        let config = crate::Config { wire: Some(path.clone()), ..crate::Config::only(&["wire"]) };
        let mut recorder = crate::Recorder::start(config).unwrap();
        let producer = Producer::open(&path).unwrap();
        let (me, name, at) = (std::process::id(), producer.name("m"), gpuwhy_wire::now());
        let mut other =
            std::process::Command::new("sleep").arg("100").spawn().expect("sleep is there");
        for (pid, value) in [(1, 1.0), (other.id(), 2.0), (me, 3.0), (0x7fff_fff0, 4.0)] {
            let event = Event::Mark { name, at, value: Some(value) };
            let ring = producer.raw().unwrap();
            ring.push(&mut gpuwhy_wire::encode(&Record { pid, tid: pid, event }));
        }
        let mut rows = recorder.poll(std::time::Duration::from_millis(20)).unwrap();
        rows.append(&mut recorder.finish());
        let _ = other.kill().and_then(|()| other.wait());
        let process = |mark: &gpuwhy_schema::Mark| {
            let track = rows.track.iter().find(|t| t.id == mark.track).unwrap();
            let of = |id| rows.entity.iter().find(|e| e.id == id).unwrap();
            (mark.value.unwrap(), of(of(track.entity).parent.unwrap()).number)
        };
        let mut marks: Vec<_> = rows.mark.iter().map(process).collect();
        marks.sort_by(|a, b| a.0.total_cmp(&b.0));
        let believed = Some(i64::from(me));
        assert_eq!(marks, [(1.0, None), (2.0, None), (3.0, believed), (4.0, None)]);
    }
}
