//! The entities and tracks of one file.

use std::path::Path;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Discipline, EntityId, EntityKind, Lane, Measure, Name, SourceId, TrackId, names,
};

use super::event::Event;
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
    file_name: String,
    source: Option<SourceId>,
    names: HashMap<Box<[u8]>, Name>,
    /// By pid and tid, or by device and stream.
    tracks: HashMap<(TaskId, TaskId, Kind), TrackId>,
    gpus: HashMap<i64, EntityId>,
}

impl Tracks {
    /// Of the file at `path`.
    pub fn new(path: &Path) -> Tracks {
        Tracks {
            about: About::default(),
            file_name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            source: None,
            names: HashMap::new(),
            tracks: HashMap::new(),
            gpus: HashMap::new(),
        }
    }

    fn tag(&self) -> &str {
        self.file_name.split('.').next().unwrap_or_default()
    }

    /// The source, if an event has been read.
    pub fn known_source(&self) -> Option<SourceId> {
        self.source
    }

    /// The source of the rows of this file.
    pub fn source(&mut self, job: &mut Job) -> SourceId {
        *self.source.get_or_insert_with(|| {
            let config = format!("file={}", self.file_name.replace(' ', "_"));
            job.lanes.source("kineto", "PyTorch profiler", "unknown", &config)
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

    /// The kind of a span, by its category in old and new spellings.
    pub fn kind(&mut self, category: &[u8]) -> Kind {
        let is = |names: &[&str]| names.iter().any(|n| category.eq_ignore_ascii_case(n.as_bytes()));
        match () {
            () if is(&["kernel"]) => Kind::Kernel,
            () if is(&["gpu_memcpy", "memcpy"]) => Kind::Copy,
            () if is(&["gpu_memset", "memset"]) => Kind::Memset,
            () if is(&["cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime"]) => {
                Kind::Call
            }
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
        let model = self.about.gpus.iter().find(|g| g.0 == device).map_or("", |g| &g.1);
        let name = format!("GPU {device} {model}");
        let key = format!("kineto:{}:cuda{device}", self.owner());
        let gpu = job.lanes.entity(EntityKind::Gpu, &key, |e| {
            e.name = name.trim().into();
            e.number = Some(device);
        });
        self.gpus.insert(device, gpu);
        gpu
    }

    /// Distinguishes processes of this file from those of the job's other files: the rank, else the name
    /// of the file.
    pub fn owner(&self) -> String {
        self.about.rank.map_or_else(|| self.tag().to_owned(), |rank| format!("rank{rank}"))
    }

    /// The process of this pid.
    pub fn process(&mut self, pid: &TaskId, job: &mut Job) -> EntityId {
        let rank = self.about.rank.map(|rank| {
            job.lanes.entity(EntityKind::Rank, &format!("rank:{rank}"), |e| {
                e.name = format!("rank {rank}").as_str().into();
                e.number = Some(i64::from(rank));
            })
        });
        let key = format!("kineto:{}:{pid}", self.owner());
        job.lanes.entity(EntityKind::Process, &key, |e| {
            e.name = match pid {
                TaskId::Number(pid) => format!("pid {pid}").as_str().into(),
                TaskId::Text(text) => text.clone(),
            };
            e.number = if let TaskId::Number(pid) = pid { Some(*pid) } else { None };
            e.parent = rank;
        })
    }

    /// The thread of this tid.
    pub fn thread(&mut self, pid: &TaskId, tid: &TaskId, job: &mut Job) -> EntityId {
        let process = self.process(pid, job);
        let key = format!("kineto:{}:{pid}:{tid}", self.owner());
        job.lanes.entity(EntityKind::Thread, &key, |e| {
            e.name = match tid {
                TaskId::Number(tid) => format!("tid {tid}").as_str().into(),
                TaskId::Text(text) => text.clone(),
            };
            e.number = if let TaskId::Number(tid) = tid { Some(*tid) } else { None };
            e.parent = Some(process);
        })
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
        let key = format!("kineto:{}:cuda{device}:{stream}", self.owner());
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
