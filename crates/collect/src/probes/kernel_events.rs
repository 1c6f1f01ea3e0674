//! Tracepoints with all their fields: those of GPU drivers' schedulers, from which `gpuwhy vgpu` tells whose requests waited
//! for whom, and any others that the user names.
//!
//! *What it sees*: each event as a mark on the thread that ran, or on its CPU where none did; its fields are
//! attributes of the mark, as an import of trace-cmd's or perf's files makes them, so that whatever reads those reads
//! these. Which tracepoints there are and how their fields lie is read from tracefs, so that a driver of any version is
//! understood without its types. *Why it matters*: what shares a GPU is scheduled by its driver, and only the driver
//! says whose request is on the engine.
//!
//! *What fools it*: a driver that has no tracepoints (NVIDIA's has none; `nvml` and CUPTI tell of that). The thread is
//! the one that ran, which for an interrupt is anybody. Fields beyond 456 bytes of an event are left out. The kernel
//! runs no program on a CPU that is running one for another tracepoint; what it left out for that is counted as lost.
//!
//! *What it costs the target*: a copy of 144 or 496 bytes an event.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Attr, EntityId, Lane, Mark, Name, Ns, SourceId, TrackId, names, sources};
use gpuwhy_tracepoint::{Format, Machine, RawEvent};
use libbpf_rs::{Link, TracepointCategory, TracepointOpts};

use crate::bpf::{Head, LoadedObject, bpf_object, from_bytes, shared_with_c};
use crate::config::Config;
use crate::context::Context;
use crate::error::CollectError;
use crate::event_pattern::EventPattern;
use crate::probe::{Probe, ProbeSpec, Start};

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |config| config.kernel_events.as_ref().is_some_and(|named| wanted(named)),
    required_if: named,
    ..ProbeSpec::new(
        "kernel_events",
        &sources::KERNEL_EVENTS,
        "what GPU drivers' schedulers do, request by request, and tracepoints that the user names",
        start,
    )
};

/// Tracepoints of GPU drivers that `gpuwhy vgpu` understands, by their names without the system.
pub const GPU_EVENTS: &[&str] = &[
    "gvt_workload_queue",
    "gvt_workload_submit",
    "gvt_workload_complete",
    "gvt_sched_switch",
    "i915_gem_request_queue",
    "i915_gem_request_add",
    "i915_gem_request_submit",
    "i915_gem_request_in",
    "i915_gem_request_out",
    "intel_engine_notify",
    "i915_gem_request_retire",
    "i915_gem_object_create",
    "i915_gem_object_destroy",
    "i915_gem_evict",
    "i915_request_queue",
    "i915_request_add",
    "i915_request_submit",
    "i915_request_guc_submit",
    "i915_request_in",
    "i915_request_out",
    "i915_request_retire",
    "amdgpu_cs_ioctl",
    "amdgpu_sched_run_job",
    "dma_fence_signaled",
    "amdgpu_bo_move",
    "drm_sched_job",
    "drm_run_job",
    "drm_sched_process_job",
    "drm_sched_job_queue",
    "drm_sched_job_run",
    "drm_sched_job_done",
    "virtio_gpu_cmd_queue",
    "virtio_gpu_cmd_response",
];
/// Every kernel has this one, drivers or not: by itself it is no reason to record.
const ALWAYS: &str = "dma_fence";
/// Where tracefs is.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];
/// Tracepoints at most: each is a descriptor.
const MOST: usize = 256;
/// Threads whose tracks are kept.
const THREADS: usize = 16384;
/// Bytes at the beginning of each record that the tracer keeps for itself, which are not copied.
const COMMON: usize = 8;
/// Bytes of fields that the program for short events copies.
const SHORT: usize = 104;

// The struct of `kernel_events.bpf.c`, where each field is explained.
shared_with_c! {
    objects ["kernel_events"];

    struct EventHead = "event_head" {
        head: Head,
        tgid: u32,
        event: u32,
        comm: [u8; 16],
    }
}

/// A tracepoint of this kernel.
#[derive(Debug)]
struct Tracepoint {
    /// Where tracefs describes it.
    folder: PathBuf,
    system: String,
    name: String,
}

fn named(config: &Config) -> bool {
    config.kernel_events.as_ref().is_some_and(|named| !named.is_empty())
}

/// Whether there is anything to record: what the user named, or a GPU driver that is traced.
fn wanted(named: &[EventPattern]) -> bool {
    let any = |found: Vec<Tracepoint>| found.iter().any(|one| one.system != ALWAYS);
    !named.is_empty() || tracepoints(&[]).is_ok_and(any)
}

/// Where tracefs lists tracepoints, if this process may read that.
fn root() -> Result<&'static Path, CollectError> {
    let readable = |path: &&&str| fs::read_dir(path).is_ok();
    let found = TRACEFS.iter().find(readable).map(Path::new);
    found.ok_or_else(|| CollectError::Unsupported {
        missing: format!("`{}` cannot be read", TRACEFS[0]),
        fix: "tracefs has to be mounted, and only root may read it".into(),
    })
}

/// The tracepoints of GPU drivers and those that are like `named`, in the order of their names.
///
/// # Errors
/// Tracefs cannot be read, there is none that a pattern is like, or there are too many.
fn tracepoints(named: &[EventPattern]) -> Result<Vec<Tracepoint>, CollectError> {
    let root = root()?;
    let mut found = Vec::new();
    let mut is_found = vec![false; named.len()];
    // What ftrace writes itself is listed here too, and is no tracepoint.
    let systems = fs::read_dir(root).into_iter().flatten().flatten();
    for system in systems.filter(|system| system.file_name() != "ftrace") {
        let Ok(events) = fs::read_dir(system.path()) else { continue };
        let system = system.file_name().to_string_lossy().into_owned();
        for event in events.flatten().filter(|event| event.path().is_dir()) {
            let name = event.file_name().to_string_lossy().into_owned();
            let mut is_wanted = GPU_EVENTS.contains(&&*name);
            for (pattern, is_found) in named.iter().zip(&mut is_found) {
                let is_like = pattern.matches(&system, &name);
                (is_wanted, *is_found) = (is_wanted || is_like, *is_found || is_like);
            }
            if is_wanted {
                found.push(Tracepoint { folder: event.path(), system: system.clone(), name });
            }
        }
    }
    let missing = named.iter().zip(is_found).find(|(_, is_found)| !is_found);
    if let Some((pattern, _)) = missing {
        return Err(CollectError::Unsupported {
            missing: format!("this kernel has no tracepoint like `{pattern}`"),
            fix: format!("`ls {}` lists their systems", root.display()),
        });
    }
    if found.len() > MOST {
        return Err(CollectError::Unsupported {
            missing: format!("{} tracepoints are more than {MOST}", found.len()),
            fix: "name fewer".into(),
        });
    }
    found.sort_by(|a, b| (&a.system, &a.name).cmp(&(&b.system, &b.name)));
    Ok(found)
}

/// A tracepoint that is recorded.
struct Kind {
    name: Name,
    format: Format,
    keys: Vec<Name>,
}

impl Kind {
    fn new(format: Format) -> Kind {
        let keys = format.fields.iter().map(|field| field.name.clone()).collect();
        Kind { name: format.name.as_str().into(), format, keys }
    }

    /// The program that copies its fields.
    fn program(&self) -> &'static str {
        match self.format.length() {
            Some(length) if length <= COMMON + SHORT => "copies_short",
            _ => "copies_long",
        }
    }
}

struct KernelEvents {
    /// Its programs are attached while it lives.
    _loaded: LoadedObject,
    rows: EventRows,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let named = start.config.kernel_events.as_deref().unwrap_or_default();
    let found = tracepoints(named)?;
    let mut loaded = start.bpf.load("kernel_events", bpf_object!("kernel_events"), |_| Ok(()))?;
    let mut rows = EventRows::new(start.source);
    let mut not_read = Vec::new();
    for one in found {
        let of = format!("{}:{}", one.system, one.name);
        let kind = match described(&one) {
            Ok(kind) => kind,
            Err(why) => {
                not_read.push(format!("{of}: {why}"));
                continue;
            }
        };
        match attach(&loaded, &one, &kind, rows.kinds.len() as u64) {
            Ok(link) => loaded.links.push(link),
            Err(source) if named.is_empty() => {
                not_read.push(format!("{of}: {source}"));
                continue;
            }
            Err(source) => {
                return Err(CollectError::Attach { probe: "kernel_events", target: of, source });
            }
        }
        rows.kinds.push(kind);
    }
    if !not_read.is_empty() {
        let note = format!("left out: {}", not_read.join("; "));
        start.cx.degraded(start.source, &note);
    }
    Ok(Box::new(KernelEvents { _loaded: loaded, rows }))
}

/// Attaches the program that copies a tracepoint's fields; `cookie` is the number by which its records name it.
fn attach(
    loaded: &LoadedObject,
    tracepoint: &Tracepoint,
    kind: &Kind,
    cookie: u64,
) -> Result<Link, libbpf_rs::Error> {
    let wanted = kind.program();
    let found = loaded.object.progs_mut().find(|one| one.name().to_string_lossy() == wanted);
    let missing = || libbpf_rs::Error::from(io::Error::from(io::ErrorKind::NotFound));
    let category = TracepointCategory::Custom(tracepoint.system.clone());
    let options = TracepointOpts { cookie, ..TracepointOpts::default() };
    found.ok_or_else(missing)?.attach_tracepoint_with_opts(category, &tracepoint.name, options)
}

/// A tracepoint by its format file.
fn described(tracepoint: &Tracepoint) -> Result<Kind, String> {
    let text = fs::read_to_string(tracepoint.folder.join("format"));
    Ok(Kind::new(Format::parse(&text.map_err(|error| error.to_string())?, MACHINE)?))
}

/// How this machine writes numbers.
const MACHINE: Machine = Machine { is_big: cfg!(target_endian = "big"), long: size_of::<usize>() };

impl Probe for KernelEvents {
    fn event(&mut self, _kind: u8, bytes: &[u8], cx: &mut Context) {
        self.rows.event(bytes, cx);
    }

    fn tick(&mut self, _now: Ns, _cx: &mut Context) -> Result<(), CollectError> {
        Ok(())
    }
}

/// Turns records into rows.
struct EventRows {
    source: SourceId,
    kinds: Vec<Kind>,
    tracks: HashMap<EntityId, TrackId>,
    /// The fields of a record as the tracer would have written it.
    record: Vec<u8>,
    event: RawEvent,
}

impl EventRows {
    fn new(source: SourceId) -> EventRows {
        let (record, event) = (Vec::new(), RawEvent::default());
        EventRows { source, kinds: Vec::new(), tracks: HashMap::new(), record, event }
    }

    fn event(&mut self, bytes: &[u8], cx: &mut Context) {
        let Some(head) = from_bytes::<EventHead>(bytes) else { return };
        let Some(kind) = self.kinds.get(head.event as usize) else { return };
        self.record.clear();
        self.record.resize(COMMON, 0);
        self.record.extend_from_slice(&bytes[size_of::<EventHead>()..]);
        self.event.clear();
        kind.format.values(&self.record, MACHINE, &mut self.event);
        let who = match head.head.tid {
            // Nobody: the CPU was idle.
            0 => cx.cpus.get(usize::from(head.head.cpu)).copied().unwrap_or(cx.host),
            tid => cx.thread(tid, head.tgid, Some(&head.comm)),
        };
        if self.tracks.len() >= THREADS {
            self.tracks.clear();
        }
        let Context { catalog, rows, ids, .. } = cx;
        let new = || catalog.track(who, None, Lane::marks(names::MARKS), self.source);
        let track = *self.tracks.entry(who).or_insert_with(new);
        let (id, ts) = (ids.next_id(), Ns(head.head.ts as i64));
        rows.mark.push(Mark { id, ts, track, name: kind.name.clone(), value: None });
        rows.attr.extend(kind.keys.iter().enumerate().filter_map(|(place, key)| {
            let value = self.event.shown(place)?;
            Some(Attr { id, key: key.clone(), value: value.as_str().into() })
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.12 describes it.
    const SIGNALED: &str = "name: dma_fence_signaled\nID: 551\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:__data_loc char[] driver;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:__data_loc char[] timeline;\toffset:12;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned int context;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned int seqno;\toffset:20;\tsize:4;\tsigned:0;\n\n\
        print fmt: \"driver=%s\", __get_str(driver)\n";
    /// A process that does not exist, so that /proc has nothing about it.
    const PID: u32 = 4_000_000_000;

    fn rows_of(format: &str) -> (EventRows, Context) {
        let mut cx = Context::new();
        let source = cx.catalog.source("bpf:kernel_events", "test", "0", "");
        let mut rows = EventRows::new(source);
        rows.kinds.push(Kind::new(Format::parse(format, MACHINE).unwrap()));
        (rows, cx)
    }

    fn record(tid: u32, event: u32, fields: &[u8]) -> Vec<u8> {
        let head = Head { ts: 7, tid, ..Head::default() };
        let comm = *b"trainer\0\0\0\0\0\0\0\0\0";
        let mut bytes = crate::bpf::bytes_of(&EventHead { head, tgid: tid, event, comm }).to_vec();
        bytes.extend_from_slice(fields);
        bytes
    }

    #[test]
    fn an_event_is_a_mark_of_who_ran_and_its_fields_are_attributes() {
        let (mut rows, mut cx) = rows_of(SIGNALED);
        assert_eq!(rows.kinds[0].program(), "copies_long", "texts may be long");
        let mut fields: Vec<u8> =
            [4u32 << 16 | 24, 4 << 16 | 28, 5, 9].map(u32::to_ne_bytes).concat();
        fields.extend(b"drv\0gfx\0 what the CPU traced before");
        for (tid, event) in [(PID, 0), (0, 0), (PID, 1)] {
            rows.event(&record(tid, event, &fields), &mut cx);
        }
        let cpu = cx.cpus[0];
        let rows = cx.take_rows();
        assert_eq!(rows.mark.len(), 2, "an unknown number is nobody's");
        let owner = |mark: &Mark| rows.track.iter().find(|t| t.id == mark.track).unwrap().entity;
        assert_eq!(owner(&rows.mark[1]), cpu, "nobody ran");
        let thread = rows.entity.iter().find(|e| e.id == owner(&rows.mark[0])).unwrap();
        assert_eq!((thread.number, &*rows.mark[0].name), (Some(PID.into()), "dma_fence_signaled"));
        let of = |mark: &Mark| -> Vec<String> {
            let own = rows.attr.iter().filter(|attr| attr.id == mark.id);
            own.map(|attr| format!("{}={}", attr.key, attr.value)).collect()
        };
        assert_eq!(of(&rows.mark[0]), ["driver=drv", "timeline=gfx", "context=5", "seqno=9"]);
    }

    #[test]
    fn any_bytes_are_tolerated() {
        let (mut rows, mut cx) = rows_of(SIGNALED);
        for fill in [0x00, 0x01, 0x7f, 0xff] {
            for len in 0..200 {
                rows.event(&vec![fill; len], &mut cx);
                rows.event(&record(PID, 0, &vec![fill; len]), &mut cx);
            }
        }
    }

    #[test]
    fn what_is_not_named_is_recorded_where_a_driver_has_it() {
        assert!(wanted(&["sched:*".parse().unwrap()]));
        let Ok(found) = tracepoints(&[]) else { return println!("skipped: no tracefs") };
        assert_eq!(wanted(&[]), found.iter().any(|one| one.system != "dma_fence"));
    }
}
