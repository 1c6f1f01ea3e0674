//! What every probe is given, and what it has to offer.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use foldhash::HashSet;
use gpuwhy_schema::{EntityId, Id, Ids, Lanes, Name, Ns, Rows, SourceId, State, TrackId};

use crate::kernel::Kernel;
use crate::{Attribution, Config, Target};

/// Why something could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The kernel refused a BPF object.
    #[error("cannot load the BPF programs of `{probe}`{why}")]
    Load {
        /// The probe.
        probe: &'static str,
        /// What the verifier or libbpf complained of last, in brackets; may be empty.
        why: String,
        /// What libbpf says.
        #[source]
        source: libbpf_rs::Error,
    },
    /// The kernel refused to attach a BPF program.
    #[error("cannot attach `{probe}` to {to}")]
    Attach {
        /// The probe.
        probe: &'static str,
        /// The tracepoint or function.
        to: String,
        /// What libbpf says.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A BPF map could not be read or written.
    #[error("cannot use the BPF map `{map}`")]
    Map {
        /// The map.
        map: &'static str,
        /// What libbpf says.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A file could not be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {what}")]
    System {
        /// What was tried, on what.
        what: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A target that does not exist.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Its number.
        pid: i32,
    },
    /// A ring of marked steps cannot be used.
    #[error("cannot take marked steps from `{path}`")]
    Wire {
        /// The ring.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: gpuwhy_wire::Error,
    },
    /// The socket at which libraries knock cannot be made.
    #[error("cannot listen at `{path}` for libraries inside processes")]
    Door {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: gpuwhy_wire::Error,
    },
    /// A function to be traced was not found.
    #[error("no function `{symbol}` in `{binary}`{hint}")]
    Symbol {
        /// The binary.
        binary: PathBuf,
        /// The function asked for.
        symbol: String,
        /// Near names, or what else would help; begins with a separator.
        hint: String,
    },
    /// This host lacks what the probe needs.
    #[error("{what}; {fix}")]
    Unsupported {
        /// What is missing.
        what: String,
        /// What would change that.
        fix: String,
    },
}

/// What probes write into and look things up in.
#[derive(Debug)]
pub struct Context {
    /// Entities, tracks and sources.
    pub lanes: Lanes,
    /// Rows gathered since the last [`crate::Recorder::poll`].
    pub rows: Rows,
    /// Ids of spans and marks.
    pub ids: Ids,
    /// Whose a tid or pid is.
    pub people: Attribution,
    /// This host.
    pub host: EntityId,
    /// Its CPUs, by index; possible CPUs, so some may be offline.
    pub cpus: Vec<EntityId>,
    /// Processes that a probe found to be targets; the recorder adds them after the tick.
    pub wanted: Vec<Target>,
    /// Bytes of GPU memory that processes have, by pid, as last read.
    pub gpu_memory: HashMap<u32, u64>,
    /// When processes were last seen to use the multiprocessors of a GPU.
    pub gpu_used: HashMap<u32, Ns>,
    /// Processes whose NCCL tells of its collectives from inside, by our plug-in: what is seen of
    /// them from outside would be told twice.
    pub inside: HashSet<u32>,
}

/// What a probe is started with.
pub struct Start<'a> {
    /// Shared maps, and the loader of BPF objects.
    pub kernel: &'a Rc<Kernel>,
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
    /// The span that it will be.
    pub id: Id,
    /// When it began.
    pub ts: Ns,
    /// Whose time it is.
    pub thread: EntityId,
    /// The track that it will lie on.
    pub track: TrackId,
    /// Its number on its thread.
    pub seq: u64,
    /// What it is.
    pub name: Name,
    /// How much there is to do.
    pub size: Option<i64>,
    /// The rank that takes it.
    pub rank: Option<u32>,
}

/// One source of rows, started and running until it is dropped.
///
/// A probe has `fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError>` and a line in
/// the recorder's list.
pub trait Probe {
    /// As in [`Config::off`] and, behind `bpf:` or `proc:`, in `source.kind`.
    fn name(&self) -> &'static str;

    /// Called every tick, after the ring was drained: reads aggregates into `cx.rows`.
    ///
    /// # Errors
    /// A reading that failed; the recorder writes it to the probe's source and goes on.
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError>;

    /// The kinds of ring records that this probe takes.
    fn kinds(&self) -> Range<u16> {
        0..0
    }

    /// A ring record whose kind lies in [`Probe::kinds`]; `bytes` is all of it, head included.
    fn event(&mut self, _kind: u16, _bytes: &[u8], _cx: &mut Context) {}

    /// Events that did not reach the rows by other ways than a full ring, so far.
    fn dropped(&self) -> u64 {
        0
    }

    /// Events that reached the rows in sums, so far.
    fn counted(&self) -> u64 {
        0
    }

    /// One more target. Probes that know no targets ignore it.
    ///
    /// # Errors
    /// The kernel refuses.
    fn add_target(&mut self, _target: Target, _cx: &mut Context) -> Result<(), CollectError> {
        Ok(())
    }

    /// Sees nothing for a while, or sees again. Probes that are never shed ignore it.
    ///
    /// # Errors
    /// The kernel refuses.
    fn pause(&mut self, _paused: bool) -> Result<(), CollectError> {
        Ok(())
    }

    /// Looks more closely while something is the matter, and no longer. Probes that have nothing
    /// more to show ignore it.
    ///
    /// # Errors
    /// The kernel refuses.
    fn detail(&mut self, _wanted: bool) -> Result<(), CollectError> {
        Ok(())
    }

    /// Told every second whether a step has been open for long. Probes that have nothing to say about
    /// that ignore it.
    fn hangs(&mut self, _hangs: bool) {}

    /// Steps that have begun before `ts` and not ended, as far as this probe knows of them.
    fn open_steps(&self, _before: Ns, _out: &mut Vec<OpenStep>) {}

    /// What threads do since their last row, if they still do it: states without an end.
    fn going_on(&self, _out: &mut Vec<State>) {}

    /// The recording ends at `now`: rows for what is still open.
    fn finish(&mut self, _now: Ns, _cx: &mut Context) {}
}

/// The trace clock: CLOCK_MONOTONIC, which is what `bpf_ktime_get_ns` reads as well.
pub fn now() -> Ns {
    crate::kernel::monotonic()
}
