//! The entities and tracks of one file.

use std::collections::BTreeSet;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Discipline, EntityId, EntityKind, Lane, Measure, Name, SourceId, TrackId, names,
};

use super::event::Event;
use super::identity::Identity;
use super::job::Job;
use super::reader::About;
use super::text::Number;

/// Names that are held once for all their events; later ones are held for each event.
const NAMES: usize = 1 << 17;

/// A pid or tid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TaskId {
    /// As the system numbers it.
    Number(i64),
    /// As the profiler names it, for rows of its own.
    Text(Name),
}

impl std::fmt::Display for TaskId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TaskId::Number(n) => write!(f, "{n}"),
            TaskId::Text(text) => write!(f, "{text}"),
        }
    }
}

/// What an event is: by its phase, and a span by its category.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// A kernel.
    Kernel,
    /// A copy between host and devices.
    Copy,
    /// A memset.
    Memset,
    /// A call of the CUDA or HIP runtime or driver.
    Call,
    /// An operator of the framework.
    Operator,
    /// A function of Python.
    Python,
    /// A range that the user named.
    Annotation,
    /// Such a range as the device passed through it.
    GpuAnnotation,
    /// The profiler's own overhead.
    Overhead,
    /// A point in time.
    Mark,
    /// A value of the counter of this name.
    Counter(Name),
    /// A span of another category.
    Other(Name),
}

/// What the trace has of one file besides rows of events.
pub(super) struct Tracks {
    /// What the file contains about itself, as far as it has been read.
    pub about: About,
    identity: Identity,
    /// How its times were moved, in words for its source; empty for a single file.
    aligned: String,
    source: Option<SourceId>,
    names: HashMap<Box<[u8]>, Name>,
    /// By pid and tid, or by device and stream.
    tracks: HashMap<(TaskId, TaskId, Kind), TrackId>,
    gpus: HashMap<i64, EntityId>,
    /// The processes that have a rank, or a host, above them.
    processes: BTreeSet<EntityId>,
}

impl Tracks {
    /// Of a file of this identity, whose times were moved as `aligned` says.
    pub fn new(identity: Identity, aligned: String) -> Tracks {
        Tracks {
            about: About::default(),
            identity,
            aligned,
            source: None,
            names: HashMap::new(),
            tracks: HashMap::new(),
            gpus: HashMap::new(),
            processes: BTreeSet::new(),
        }
    }

    /// The rank of its processes.
    fn rank(&self) -> Option<u32> {
        self.about.rank.or(self.identity.rank)
    }

    /// The name of a device or process, with that of the file where nothing else says whose it is.
    pub fn called(&self, name: Name) -> Name {
        match (self.rank(), &self.identity.label) {
            (None, Some(label)) => format!("{name} ({label})").as_str().into(),
            _ => name,
        }
    }

    /// The source of the rows of this file.
    pub fn source(&mut self, job: &mut Job) -> SourceId {
        *self.source.get_or_insert_with(|| {
            let name = self.identity.file_name.replace(' ', "_");
            let config = format!("file={name} {}", self.aligned);
            let config = config.trim_end();
            job.lanes.source("kineto", "PyTorch profiler", "unknown", config)
        })
    }

    /// A name, held once for all events that have it.
    pub fn name(&mut self, bytes: &[u8]) -> Name {
        if let Some(name) = self.names.get(bytes) {
            return name.clone();
        }
        let name: Name = String::from_utf8_lossy(bytes).into();
        if self.names.len() < NAMES {
            self.names.insert(bytes.into(), name.clone());
        }
        name
    }

    /// The pid or tid of an event.
    pub fn task_id(&mut self, number: Option<Number>, text: &[u8]) -> TaskId {
        match number.and_then(|n| n.int()) {
            Some(n) => TaskId::Number(n),
            None => TaskId::Text(self.name(text)),
        }
    }

    /// The kind of a span, by its category in old and new spellings and for every accelerator.
    pub fn kind(&mut self, category: &[u8], name: &[u8]) -> Kind {
        let is = |names: &[&str]| names.iter().any(|n| category.eq_ignore_ascii_case(n.as_bytes()));
        let ends = |end: &str| {
            let from = category.len().checked_sub(end.len());
            from.is_some_and(|from| category[from..].eq_ignore_ascii_case(end.as_bytes()))
        };
        match () {
            // What MTIA's control processors ran is its name for kernels; those that move memory are
            // `dma…` (kineto, ActivityType.h; HolisticTraceAnalysis, types.py).
            () if is(&["mtia_ccp_events"]) && name.starts_with(b"dma") => Kind::Copy,
            () if is(&["kernel", "concurrent_kernel", "mtia_ccp_events"]) => Kind::Kernel,
            // `gpu_memcpy`, and what backends of others have in its place (`gcu_memcpy`).
            () if ends("memcpy") => Kind::Copy,
            () if ends("memset") => Kind::Memset,
            // `cuda_runtime`, `hip_runtime`, `mtia_runtime`, `xpu_driver`, `privateuse1_runtime` …;
            // Habana's and Glow's calls, too, are calls of a runtime.
            () if ends("runtime") || ends("driver") || is(&["hpu_op"]) => Kind::Call,
            () if is(&["cpu_op", "operator"]) => Kind::Operator,
            () if is(&["python_function"]) => Kind::Python,
            () if is(&["user_annotation"]) => Kind::Annotation,
            () if is(&["gpu_user_annotation"]) => Kind::GpuAnnotation,
            () if is(&["overhead"]) => Kind::Overhead,
            () => Kind::Other(self.name(category)),
        }
    }

    /// The CUDA ordinal of the device of a kernel or copy.
    pub fn device_of(&self, event: &Event) -> i64 {
        event.args.device.or(event.pid.and_then(|n| n.int())).unwrap_or(0)
    }

    /// The GPU of this CUDA ordinal.
    pub fn gpu(&mut self, device: i64, job: &mut Job) -> EntityId {
        if let Some(&known) = self.gpus.get(&device) {
            return known;
        }
        let (name, host) = (self.gpu_name(device), self.host(job));
        let key = format!("kineto:{}:cuda{device}", self.identity.key);
        let gpu = job.lanes.entity(EntityKind::Gpu, &key, |e| {
            e.name = name;
            e.number = Some(device);
            e.parent = Some(host);
        });
        self.gpus.insert(device, gpu);
        gpu
    }

    /// Its number, and its model where the file has it.
    fn gpu_name(&self, device: i64) -> Name {
        let model = self.about.gpus.iter().find(|g| g.0 == device).map_or("", |g| &g.1);
        let name = format!("GPU {device} {model}");
        self.called(name.trim().into())
    }

    /// The host on which the file was recorded; files that name none are of hosts of their own.
    pub fn host(&self, job: &mut Job) -> EntityId {
        let (key, name) = match &self.about.host {
            Some(host) => (format!("kineto:host:{host}"), host.clone()),
            None => {
                let file = &self.identity.file_name;
                (format!("kineto:{}", self.identity.key), format!("host of {file}"))
            }
        };
        job.lanes.entity(EntityKind::Host, &key, |e| e.name = name.as_str().into())
    }

    /// What its processes belong to: the rank, else the host.
    fn above(&self, job: &mut Job) -> EntityId {
        let host = self.host(job);
        let Some(rank) = self.rank() else { return host };
        job.lanes.entity(EntityKind::Rank, &format!("rank:{rank}"), |e| {
            e.name = format!("rank {rank}").as_str().into();
            e.number = Some(i64::from(rank));
            e.parent = Some(host);
        })
    }

    /// At the end of the file: files that other tools have rewritten say only there who they are.
    pub fn settle(&mut self, job: &mut Job) {
        let (above, host) = (self.above(job), self.host(job));
        for process in &self.processes {
            job.lanes.update(*process, |e| e.parent = Some(above));
        }
        let mut gpus: Vec<(i64, EntityId)> =
            self.gpus.iter().map(|(no, gpu)| (*no, *gpu)).collect();
        gpus.sort_unstable();
        for (device, gpu) in gpus {
            let name = self.gpu_name(device);
            job.lanes.update(gpu, |e| (e.name, e.parent) = (name, Some(host)));
        }
    }

    /// The process of this pid.
    pub fn process(&mut self, pid: &TaskId, job: &mut Job) -> EntityId {
        let above = self.above(job);
        let key = format!("kineto:{}:{pid}", self.identity.key);
        let name = self.called(match pid {
            TaskId::Number(pid) => format!("pid {pid}").as_str().into(),
            TaskId::Text(text) => text.clone(),
        });
        let process = job.lanes.entity(EntityKind::Process, &key, |e| {
            e.name = name;
            e.number = if let TaskId::Number(pid) = pid { Some(*pid) } else { None };
            e.parent = Some(above);
        });
        self.processes.insert(process);
        process
    }

    /// The thread of this tid.
    pub fn thread(&mut self, pid: &TaskId, tid: &TaskId, job: &mut Job) -> EntityId {
        let process = self.process(pid, job);
        let key = format!("kineto:{}:{pid}:{tid}", self.identity.key);
        job.lanes.entity(EntityKind::Thread, &key, |e| {
            e.name = match tid {
                TaskId::Number(tid) => format!("tid {tid}").as_str().into(),
                TaskId::Text(text) => text.clone(),
            };
            e.number = if let TaskId::Number(tid) = tid { Some(*tid) } else { None };
            e.parent = Some(process);
        })
    }

    /// The name of a track.
    pub fn track_name(&self, track: TrackId) -> Option<&str> {
        let known = self.tracks.iter().find(|(_, known)| **known == track);
        known.map(|((_, _, kind), _)| declared(kind).name)
    }

    /// The track that an event belongs to.
    pub fn track(&mut self, event: &Event, kind: &Kind, job: &mut Job) -> TrackId {
        let on_gpu = matches!(kind, Kind::Kernel | Kind::Copy | Kind::Memset | Kind::GpuAnnotation);
        let (pid, tid) = if on_gpu {
            let stream = event.args.stream.or(event.tid.and_then(|n| n.int())).unwrap_or(0);
            (TaskId::Number(self.device_of(event)), TaskId::Number(stream))
        } else {
            (self.task_id(event.pid, &event.pid_text), self.task_id(event.tid, &event.tid_text))
        };
        // Kernels, copies and memsets of a stream share a track.
        let kind = if matches!(kind, Kind::Copy | Kind::Memset) { &Kind::Kernel } else { kind };
        let key = (pid, tid, kind.clone());
        if let Some(&known) = self.tracks.get(&key) {
            return known;
        }
        let source = self.source(job);
        let (pid, tid) = (&key.0, &key.1);
        let entity = match (on_gpu, pid, tid) {
            (true, TaskId::Number(device), TaskId::Number(stream)) => {
                self.stream(*device, *stream, job)
            }
            _ => self.thread(pid, tid, job),
        };
        let track = job.lanes.track(entity, None, declared(kind), source);
        self.tracks.insert(key, track);
        track
    }

    fn stream(&mut self, device: i64, stream: i64, job: &mut Job) -> EntityId {
        let gpu = self.gpu(device, job);
        let key = format!("kineto:{}:cuda{device}:{stream}", self.identity.key);
        job.lanes.entity(EntityKind::Stream, &key, |e| {
            e.name = format!("stream {stream}").as_str().into();
            e.number = Some(stream);
            e.parent = Some(gpu);
        })
    }
}

/// How the track of events of a kind is declared.
fn declared(kind: &Kind) -> Lane<'_> {
    let (nested, overlap) = (Discipline::Nested, Discipline::Overlap);
    match kind {
        Kind::Kernel | Kind::Copy | Kind::Memset => Lane::spans(names::STREAM, overlap),
        Kind::GpuAnnotation => Lane::spans(names::GPU_ANNOTATIONS, overlap),
        Kind::Call => Lane::spans(names::CUDA_CALLS, nested),
        Kind::Operator => Lane::spans(names::OPERATORS, nested),
        Kind::Python => Lane::spans(names::PYTHON, nested),
        Kind::Annotation => Lane::spans(names::ANNOTATIONS, nested),
        Kind::Overhead => Lane::spans(names::PROFILER_OVERHEAD, nested),
        Kind::Mark => Lane::marks(names::MARKS),
        Kind::Counter(name) => Lane::counter(name, "1", Measure::Gauge),
        Kind::Other(name) if name.is_empty() => Lane::spans("other", overlap),
        Kind::Other(name) => Lane::spans(name, overlap),
    }
}
