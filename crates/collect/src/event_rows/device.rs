//! Work on GPUs: launches, kernels, copies, and waits for them.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use foldhash::HashMap;
use gpuwhy_schema::{
    Copy, CopyKind, Discipline, EntityId, EntityKind, Id, Kernel, Lane, Link, LinkKind, Mark, Name,
    Ns, Span, TrackId, names,
};

use super::{Devices, EventRows, KEPT, Times, Writer, gpu_of_uuid};
use crate::context::Context;

/// Launches that wait for their kernels, and kernels that wait for their launches.
const UNLINKED: usize = 1 << 16;

/// Spans of a stream that a later span may precede.
const RECENT: usize = 64;

/// The name of a span that is a whole CUDA graph of which only the number is known.
const GRAPH: &str = "CUDA graph";

/// A call that launched work: its process, and its number there.
type LaunchKey = (u32, u64);

/// The device, and the stream on it, by their numbers in a process.
type Place = (u16, u32);

/// One stream of a GPU.
pub(super) struct Stream {
    gpu: EntityId,
    track: TrackId,
    recent: VecDeque<(Ns, Ns)>,
    /// Whether it does one thing at a time.
    serial: bool,
}

/// Launches and kernels that wait to be linked.
#[derive(Default)]
pub(super) struct Launches {
    unlinked: HashMap<LaunchKey, LinkEnd>,
    /// The keys of `unlinked`, oldest first.
    order: VecDeque<LaunchKey>,
}

/// One end of a launch link, waiting for the other.
enum LinkEnd {
    Launch(Id),
    Kernel(Id, Ns),
}

impl EventRows {
    pub(super) fn launch(
        &mut self,
        writer: Writer,
        correlation: u64,
        name: Name,
        times: Times,
        cx: &mut Context,
    ) {
        let source = self.source;
        let thread = self.thread(writer, cx);
        let entity = thread.entity;
        let track = *thread.launches.get_or_insert_with(|| {
            cx.catalog.track(entity, None, Lane::marks(names::LAUNCHES), source)
        });
        let id = cx.ids.next_id();
        // The mark's value is how long the call took, in ns.
        let value = Some(times.dur.0 as f64);
        cx.rows.mark.push(Mark { id, ts: times.ts, track, name, value });
        self.link((writer.0, correlation), LinkEnd::Launch(id), cx);
    }

    pub(super) fn kernel(
        &mut self,
        launch: LaunchKey,
        place: Place,
        name: Name,
        times: Times,
        cx: &mut Context,
    ) {
        let Some((id, gpu)) = self.on_stream(launch, place, name, times, cx) else { return };
        let process = Some(cx.process(launch.0, None));
        cx.rows.kernel.push(Kernel {
            id,
            ts: times.ts,
            gpu,
            process,
            correlation: Some(launch.1),
            grid_x: 1,
            grid_y: 1,
            grid_z: 1,
            block_x: 1,
            block_y: 1,
            block_z: 1,
            registers: None,
            shared_bytes: None,
            graph_node: None,
        });
    }

    /// What a kernel is called; a whole graph by its number.
    pub(super) fn kernel_name(&mut self, name: &Name, graph: Option<u64>) -> Name {
        let Some(graph) = graph.filter(|_| &**name == GRAPH) else { return name.clone() };
        if self.graph_names.len() >= KEPT {
            self.graph_names.clear();
        }
        let name = self.graph_names.entry(graph);
        name.or_insert_with(|| format!("{GRAPH} {graph}").as_str().into()).clone()
    }

    pub(super) fn copy(
        &mut self,
        launch: LaunchKey,
        place: Place,
        (name, bytes): (&Name, u64),
        times: Times,
        cx: &mut Context,
    ) {
        let (kind, text, pinned) = copy_kind(name);
        let Some((id, gpu)) = self.on_stream(launch, place, text.into(), times, cx) else { return };
        let on_gpu = |yes: bool| yes.then_some(gpu);
        let process = Some(cx.process(launch.0, None));
        cx.rows.copy.push(Copy {
            id,
            ts: times.ts,
            kind,
            bytes,
            from: on_gpu(!matches!(kind, CopyKind::HostToDevice | CopyKind::Memset)),
            to: on_gpu(!matches!(kind, CopyKind::DeviceToHost | CopyKind::PeerToPeer)),
            pinned: pinned.map(Name::from),
            process,
            correlation: Some(launch.1),
        });
    }

    pub(super) fn device_wait(&mut self, pid: u32, name: Name, times: Times, cx: &mut Context) {
        let process = cx.process(pid, None);
        let kind = Lane::spans(names::SYNCHRONIZATION, Discipline::Overlap);
        let track = cx.catalog.track(process, None, kind, self.source);
        let (id, ts, dur) = (cx.ids.next_id(), times.ts, Some(times.dur));
        cx.rows.span.push(Span { id, ts, dur, track, parent: None, name });
    }

    /// A process says which GPU it means by a number.
    pub(super) fn device(&mut self, pid: u32, device: u16, uuid: &str, cx: &mut Context) {
        if self.gpus.len() >= KEPT {
            self.gpus.clear();
        }
        let gpu = gpu_of_uuid(uuid, cx);
        self.gpus.insert((pid, device), gpu);
        // Work that was reported before the GPU was known lies on tracks of its own.
        self.streams.retain(|key, _| (key.0, key.1) != (pid, device));
    }

    /// Writes a span of a stream's work, and links it with its launch. Returns the span and its GPU,
    /// or `None` where the stream did something else at that time.
    fn on_stream(
        &mut self,
        launch: LaunchKey,
        (device, stream): Place,
        name: Name,
        times: Times,
        cx: &mut Context,
    ) -> Option<(Id, EntityId)> {
        let (ts, end) = (times.ts, times.end());
        let last_work = self.last_work.entry(launch.0).or_default();
        *last_work = end.max(*last_work);
        let stream = self.stream(launch.0, device, stream, cx);
        if !stream.fits(ts, end) {
            self.dropped += 1;
            return None;
        }
        let (id, track, gpu) = (cx.ids.next_id(), stream.track, stream.gpu);
        cx.rows.span.push(Span { id, ts, dur: Some(end - ts), track, parent: None, name });
        self.link(launch, LinkEnd::Kernel(id, ts), cx);
        Some((id, gpu))
    }

    fn stream(&mut self, pid: u32, device: u16, stream: u32, cx: &mut Context) -> &mut Stream {
        if self.streams.len() >= KEPT {
            self.streams.clear();
        }
        let (devices, known) = (self.devices, self.gpus.get(&(pid, device)).copied());
        self.streams.entry((pid, device, stream)).or_insert_with(|| {
            let gpu = known.unwrap_or_else(|| simulated_gpu(pid, device, cx));
            let (prefix, discipline) = match devices {
                Devices::Simulated => ("sim", Discipline::Serial),
                Devices::Real => ("cuda", Discipline::Overlap),
            };
            let on = if known.is_some() { gpu.0.to_string() } else { format!("?{device}") };
            let key = format!("{prefix}:{pid}:{on}:{stream}");
            let entity = cx.catalog.entity(EntityKind::Stream, &key, |e| {
                e.parent = Some(gpu);
                e.name = format!("stream {stream}").as_str().into();
                e.number = Some(i64::from(stream));
            });
            let kind = Lane::spans(names::STREAM, discipline);
            Stream {
                gpu,
                track: cx.catalog.track(entity, None, kind, self.source),
                recent: VecDeque::new(),
                serial: devices == Devices::Simulated,
            }
        })
    }

    /// Links a launch with its kernel, whichever of them arrives first.
    fn link(&mut self, key: LaunchKey, end: LinkEnd, cx: &mut Context) {
        let Launches { unlinked, order } = &mut self.launches;
        match (unlinked.entry(key), end) {
            (Entry::Occupied(other), end) => match (other.remove(), end) {
                (LinkEnd::Launch(from), LinkEnd::Kernel(to, ts))
                | (LinkEnd::Kernel(to, ts), LinkEnd::Launch(from)) => {
                    cx.rows.link.push(Link { ts, from, to, kind: LinkKind::Launch });
                    if self.devices == Devices::Real {
                        // The nodes of a graph have one launch.
                        unlinked.insert(key, LinkEnd::Launch(from));
                    }
                }
                // The same number twice: a later end means the later one.
                (_, end) => {
                    unlinked.insert(key, end);
                }
            },
            (Entry::Vacant(place), end) => {
                place.insert(end);
                order.push_back(key);
                if order.len() > UNLINKED
                    && let Some(oldest) = order.pop_front()
                {
                    unlinked.remove(&oldest);
                }
            }
        }
    }
}

impl Stream {
    /// Adds a span if it overlaps none of the last ones, where none may. Returns whether it was
    /// added.
    fn fits(&mut self, start: Ns, end: Ns) -> bool {
        if !self.serial {
            return true;
        }
        if self.recent.iter().any(|&(from, to)| from < end && start < to) {
            return false;
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((start, end));
        true
    }
}

/// The kind of a copy, what its span is called, and whether the host's memory was pinned, by the name
/// in its record.
fn copy_kind(name: &str) -> (CopyKind, &'static str, Option<&str>) {
    let (direction, pinned) = name.split_once(' ').unwrap_or((name, ""));
    let (kind, text) = match direction {
        "HtoD" => (CopyKind::HostToDevice, "copy host to device"),
        "DtoH" => (CopyKind::DeviceToHost, "copy device to host"),
        "DtoD" => (CopyKind::DeviceToDevice, "copy device to device"),
        "PtoP" => (CopyKind::PeerToPeer, "copy peer to peer"),
        "HtoH" => (CopyKind::HostToHost, "copy host to host"),
        "memset" => (CopyKind::Memset, "memset"),
        _ => (CopyKind::Other, "copy"),
    };
    (kind, text, Some(pinned).filter(|p| !p.is_empty()))
}

/// The simulated GPU `device` of process `pid`.
pub(super) fn simulated_gpu(pid: u32, device: u16, cx: &mut Context) -> EntityId {
    let host = cx.host;
    cx.catalog.entity(EntityKind::Gpu, &format!("sim:{pid}:{device}"), |e| {
        e.parent = Some(host);
        e.name = format!("gpu {device} of {pid}").as_str().into();
        e.number = Some(i64::from(device));
    })
}
