//! Work on GPUs: launches, kernels, copies, and waits for them.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use foldhash::HashMap;
use gpuwhy_schema::{
    Copy, CopyKind, Discipline, EntityId, EntityKind, Id, Kernel, Lane, Link, LinkKind, Mark, Name,
    Ns, Span, TrackId, names,
};

use super::GuestRows;
use crate::context::Context;
use crate::event_rows::{Devices, Times};
use crate::quota;

/// Spans of a stream that a later span may precede.
const RECENT: usize = 64;

/// The name of a span that is a whole CUDA graph of which only the number is known.
const GRAPH: &str = "CUDA graph";

/// A call that launched work, by its number in its process.
type LaunchKey = u64;

/// The device, and the stream on it, by their numbers in a process.
type Place = (u16, u32);

/// The form of a GPU's UUID, as its driver writes it.
const UUIDS: [&str; 2] = ["GPU-", "MIG-"];

/// One stream of a GPU.
pub(super) struct Stream {
    gpu: EntityId,
    entity: EntityId,
    track: TrackId,
    /// When work on it was last reported.
    used: Ns,
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

impl GuestRows {
    pub(super) fn launch(
        &mut self,
        tid: u32,
        correlation: u64,
        name: Name,
        times: Times,
        cx: &mut Context,
    ) -> Option<()> {
        let thread = self.thread(tid, cx)?;
        let (entity, known) = (thread.entity, thread.launches);
        let track = match known {
            Some(track) => track,
            None => self.track(entity, None, Lane::marks(names::LAUNCHES), cx)?,
        };
        if known.is_none() {
            self.thread(tid, cx)?.add_launches(track);
        }
        let id = cx.ids.next_id();
        // The mark's value is how long the call took, in ns.
        let value = Some(times.dur.0 as f64);
        cx.rows.mark.push(Mark { id, ts: times.ts, track, name, value });
        self.link(correlation, LinkEnd::Launch(id), cx);
        Some(())
    }

    pub(super) fn kernel(
        &mut self,
        launch: LaunchKey,
        place: Place,
        name: Name,
        times: Times,
        cx: &mut Context,
    ) -> Option<()> {
        let (id, gpu) = self.on_stream(launch, place, name, times, cx)?;
        let process = Some(self.guest.process());
        cx.rows.kernel.push(Kernel {
            process,
            correlation: Some(launch),
            ..Kernel::bare(id, times.ts, gpu)
        });
        Some(())
    }

    pub(super) fn copy(
        &mut self,
        launch: LaunchKey,
        place: Place,
        (name, bytes): (&Name, u64),
        times: Times,
        cx: &mut Context,
    ) -> Option<()> {
        let (kind, text, pinned) = copy_kind(name);
        let (id, gpu) = self.on_stream(launch, place, text.into(), times, cx)?;
        let on_gpu = |yes: bool| yes.then_some(gpu);
        let process = Some(self.guest.process());
        cx.rows.copy.push(Copy {
            id,
            ts: times.ts,
            kind,
            bytes,
            from: on_gpu(!matches!(kind, CopyKind::HostToDevice | CopyKind::Memset)),
            to: on_gpu(!matches!(kind, CopyKind::DeviceToHost | CopyKind::PeerToPeer)),
            pinned: pinned.map(Name::from),
            process,
            correlation: Some(launch),
        });
        Some(())
    }

    pub(super) fn device_wait(&mut self, name: Name, times: Times, cx: &mut Context) -> Option<()> {
        let track = match self.waits {
            Some(track) => track,
            None => {
                let kind = Lane::spans(names::SYNCHRONIZATION, Discipline::Overlap);
                self.track(self.guest.process(), None, kind, cx)?
            }
        };
        self.waits = Some(track);
        let (id, ts, dur) = (cx.ids.next_id(), times.ts, Some(times.dur));
        cx.rows.span.push(Span { id, ts, dur, track, parent: None, name });
        Some(())
    }

    /// The guest says which GPU it means by a number. The GPU may be everybody's: it has no rows but
    /// those of streams that belong to it, and ends with the last guest that named it, unless its driver
    /// did.
    pub(super) fn device(&mut self, device: u16, uuid: &str, cx: &mut Context) -> Option<()> {
        let is_uuid = UUIDS.iter().any(|form| uuid.starts_with(form))
            && uuid.len() <= 64
            && uuid.bytes().all(|b| b.is_ascii_alphanumeric() || b"-/".contains(&b));
        let is_new = !self.gpus.contains_key(&device);
        if !is_uuid || is_new && self.gpus.len() >= quota::DEVICES {
            return None;
        }
        let gpu = match cx.catalog.find(EntityKind::Gpu, uuid) {
            Some(gpu) => gpu,
            None => {
                if !self.budget.take_entity() {
                    return None;
                }
                // It is not the guest's alone, and its number is limited.
                self.budget.give_back(0);
                let host = cx.host;
                let gpu = cx.catalog.entity(EntityKind::Gpu, uuid, |e| e.parent = Some(host));
                cx.guest_gpus.made(gpu);
                gpu
            }
        };
        if self.gpus.get(&device) == Some(&gpu) {
            return Some(());
        }
        cx.guest_gpus.hold(gpu);
        if let Some(before) = self.gpus.insert(device, gpu) {
            self.release_gpu(before, cx);
        }
        // Work that was reported before the GPU was known lies on tracks of its own.
        self.end_streams_where(cx, |place, _| place.0 == device);
        if let Some(unknown) = self.own_gpus.remove(&device) {
            self.budget.give_back(0);
            cx.catalog.retire(unknown, self.now);
        }
        Some(())
    }

    /// A GPU with a UUID that the guest does not use any more. It ends with the last guest that named it,
    /// unless its driver knows it, which has given it tracks.
    fn release_gpu(&mut self, gpu: EntityId, cx: &mut Context) {
        if cx.guest_gpus.release(gpu) && !cx.catalog.has_tracks(gpu) {
            cx.catalog.end(gpu, self.now);
        }
    }

    /// The guest has ended: so have its GPUs, streams first.
    pub(super) fn end_gpus(&mut self, cx: &mut Context) {
        self.end_streams(Ns::MAX, cx);
        for gpu in std::mem::take(&mut self.gpus).into_values() {
            self.release_gpu(gpu, cx);
        }
        for gpu in std::mem::take(&mut self.own_gpus).into_values() {
            cx.catalog.retire(gpu, self.now);
        }
    }

    /// The GPU that the guest means by a number: the one that it named, or one that nobody else uses.
    pub(super) fn gpu(&mut self, device: u16, cx: &mut Context) -> Option<EntityId> {
        let known = self.gpus.get(&device).or_else(|| self.own_gpus.get(&device));
        if let Some(gpu) = known {
            return Some(*gpu);
        }
        let (host, key) = (cx.host, format!("sim:{}:{device}", self.guest.key()));
        let of = self.guest.host().map_or_else(|| key.clone(), |host| host.pid.to_string());
        let gpu = self.entity(EntityKind::Gpu, &key, cx, |e| {
            e.parent = Some(host);
            e.name = format!("gpu {device} of {of}").as_str().into();
            e.number = Some(i64::from(device));
        })?;
        self.own_gpus.insert(device, gpu);
        Some(gpu)
    }

    /// Whether others may use the GPU that the guest means by a number.
    pub(super) fn is_shared(&self, device: u16) -> bool {
        self.gpus.contains_key(&device)
    }

    /// Writes a span of a stream's work, and links it with its launch. Returns the span and its GPU,
    /// or `None` where the stream did something else at that time.
    fn on_stream(
        &mut self,
        launch: LaunchKey,
        place: Place,
        name: Name,
        times: Times,
        cx: &mut Context,
    ) -> Option<(Id, EntityId)> {
        let (ts, end) = (times.ts, times.end());
        self.last_work = Some(self.last_work.map_or(end, |last| last.max(end)));
        let now = self.now;
        let stream = self.stream(place, cx)?;
        stream.used = now;
        if !stream.fits(ts, end) {
            return None;
        }
        let (id, track, gpu) = (cx.ids.next_id(), stream.track, stream.gpu);
        cx.rows.span.push(Span { id, ts, dur: Some(end - ts), track, parent: None, name });
        self.link(launch, LinkEnd::Kernel(id, ts), cx);
        Some((id, gpu))
    }

    fn stream(&mut self, place: Place, cx: &mut Context) -> Option<&mut Stream> {
        if !self.streams.contains_key(&place) {
            let stream = self.new_stream(place, cx)?;
            self.streams.insert(place, stream);
        }
        self.streams.get_mut(&place)
    }

    fn new_stream(&mut self, (device, stream): Place, cx: &mut Context) -> Option<Stream> {
        let (prefix, discipline) = match self.devices {
            Devices::Simulated => ("sim", Discipline::Serial),
            Devices::Real => ("cuda", Discipline::Overlap),
        };
        let gpu = self.gpu(device, cx)?;
        // Its UUID may still come.
        let on = if self.is_shared(device) { gpu.0.to_string() } else { format!("?{device}") };
        let key = format!("{prefix}:{}:{on}:{stream}", self.guest.key());
        let entity = self.entity(EntityKind::Stream, &key, cx, |e| {
            e.parent = Some(gpu);
            e.name = format!("stream {stream}").as_str().into();
            e.number = Some(i64::from(stream));
        })?;
        let Some(track) = self.track(entity, None, Lane::spans(names::STREAM, discipline), cx)
        else {
            self.budget.give_back(0);
            cx.catalog.retire(entity, self.now);
            return None;
        };
        let serial = self.devices == Devices::Simulated;
        Some(Stream { gpu, entity, track, used: self.now, recent: VecDeque::new(), serial })
    }

    /// Ends the streams that were not used since `before`.
    pub(super) fn end_streams(&mut self, before: Ns, cx: &mut Context) {
        self.end_streams_where(cx, |_, stream| stream.used < before);
    }

    fn end_streams_where(&mut self, cx: &mut Context, ends: impl Fn(Place, &Stream) -> bool) {
        let (now, budget) = (self.now, &mut self.budget);
        self.streams.retain(|place, stream| {
            let ends = ends(*place, stream);
            if ends {
                budget.give_back(1);
                cx.catalog.retire(stream.entity, now);
            }
            !ends
        });
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
                if order.len() > quota::share(quota::UNLINKED, self.guests)
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

/// What a kernel is called; a whole graph by its number.
pub(super) fn kernel_name(name: &Name, graph: Option<u64>) -> Name {
    match graph.filter(|_| &**name == GRAPH) {
        Some(graph) => format!("{GRAPH} {graph}").as_str().into(),
        None => name.clone(),
    }
}
