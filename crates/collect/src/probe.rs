//! What a probe is: how it describes itself, what it is given, and what it offers.

use std::rc::Rc;

use gpuwhy_schema::sources::SourceKind;
use gpuwhy_schema::{EntityId, Id, Name, Ns, SourceId, State, TrackId};

use crate::bpf::{Bpf, Knobs};
use crate::config::{Config, Target};
use crate::context::Context;
use crate::error::CollectError;
use crate::shed::Shed;

/// A probe's description of itself. `probes.rs` lists all of them.
///
/// A probe whose name is the stem of a `.bpf.c` file owns the ring records of that file.
#[derive(Debug)]
pub(crate) struct ProbeSpec {
    /// As in `Config::off` and in `gpuwhy doctor`.
    pub name: &'static str,
    /// The kind of its `source` row, with the classes that its rows are evidence for.
    pub source: &'static SourceKind,
    /// What it records, in words, for `gpuwhy doctor`.
    pub records: &'static str,
    /// Whether it has anything to record; without, the trace does not mention it.
    pub wanted_if: fn(&Config) -> bool,
    /// Whether the user asked for it by name, so that a recording without it is an error.
    pub required_if: fn(&Config) -> bool,
    /// What of its rows can be left out when recording costs too much.
    pub sheds: &'static [Shedding],
    /// If set, [`Probe::step_hangs`] is called every second with whether a step has been open for longer
    /// than this.
    pub hang_after: Option<Ns>,
    /// Starts it.
    pub start: StartFn,
}

/// Starts a probe.
pub(crate) type StartFn = fn(Start<'_>) -> Result<Box<dyn Probe>, CollectError>;

impl ProbeSpec {
    /// A probe that is always wanted, never required, and never shed.
    pub const fn new(
        name: &'static str,
        source: &'static SourceKind,
        records: &'static str,
        start: StartFn,
    ) -> ProbeSpec {
        ProbeSpec {
            name,
            source,
            records,
            wanted_if: |_| true,
            required_if: |_| false,
            sheds: &[],
            hang_after: None,
            start,
        }
    }
}

/// Something of a probe's rows that can be left out.
#[derive(Debug)]
pub(crate) struct Shedding {
    /// When it is left out.
    pub shed: Shed,
    /// How it is left out.
    pub how: How,
    /// What is missing then, for the source's note.
    pub missing: &'static str,
}

/// How something is left out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// By [`Probe::pause`].
    Pause,
    /// By a knob that the BPF programs read while they run.
    Knob(fn(&mut Knobs)),
    /// The recorder asks no probe for detail.
    NoDetail,
    /// The recorder ticks a tenth as often.
    FewerTicks,
}

/// What a probe is started with.
pub(crate) struct Start<'a> {
    /// Shared maps, and the loader of BPF objects.
    pub bpf: &'a Rc<Bpf>,
    /// What the user asked for.
    pub config: &'a Config,
    /// Where rows go.
    pub cx: &'a mut Context,
    /// The probe's own source, whose state the recorder keeps; a probe that sees less than it was
    /// asked to sets `Degraded` and a note by itself.
    pub source: SourceId,
}

/// A step that has begun and not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenStep {
    /// The id that its span will have.
    pub id: Id,
    /// When it began.
    pub ts: Ns,
    /// The thread that takes it.
    pub thread: EntityId,
    /// The track that its span will lie on.
    pub track: TrackId,
    /// Its number on its thread.
    pub seq: u64,
    /// What it is called.
    pub name: Name,
    /// How much there is to do.
    pub size: Option<i64>,
    /// The rank that takes it.
    pub rank: Option<u32>,
}

/// One source of rows, started and running until it is dropped.
pub(crate) trait Probe {
    /// Called every tick, after the ring was drained: reads aggregates into `cx.rows`.
    ///
    /// # Errors
    /// A reading that failed; the recorder writes it to the probe's source and goes on.
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError>;

    /// A ring record of the probe's own BPF programs; `bytes` is all of it, head included.
    fn event(&mut self, _kind: u8, _bytes: &[u8], _cx: &mut Context) {}

    /// Events lost in other ways than to a full ring, so far.
    fn dropped(&self) -> u64 {
        0
    }

    /// Events recorded in other ways than by the ring, as rows or in sums, so far.
    fn recorded(&self) -> u64 {
        0
    }

    /// One more target. Probes that know no targets ignore it.
    ///
    /// # Errors
    /// The kernel refuses.
    fn add_target(&mut self, _target: Target, _cx: &mut Context) -> Result<(), CollectError> {
        Ok(())
    }

    /// Stops recording for a while, or goes on. Only for probes that [`How::Pause`] leaves out.
    ///
    /// # Errors
    /// The kernel refuses.
    fn pause(&mut self, _paused: bool) -> Result<(), CollectError> {
        Ok(())
    }

    /// Records more closely during an incident, and no longer. Probes that have nothing more to
    /// record ignore it.
    ///
    /// # Errors
    /// The kernel refuses.
    fn detail(&mut self, _on: bool) -> Result<(), CollectError> {
        Ok(())
    }

    /// Whether a step has been open for longer than [`ProbeSpec::hang_after`]; called every second
    /// where that is set.
    fn step_hangs(&mut self, _hangs: bool) {}

    /// Steps that have begun before `before` and not ended, as far as this probe knows of them.
    fn open_steps(&self, _before: Ns, _out: &mut Vec<OpenStep>) {}

    /// What threads do since their last row, if they still do it: states without an end.
    fn open_states(&self, _out: &mut Vec<State>) {}

    /// The recording ends at `now`: writes rows for what is still open.
    fn finish(&mut self, _now: Ns, _cx: &mut Context) {}
}
