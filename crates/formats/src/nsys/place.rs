//! Puts pieces into the trace: gives ids, entities and tracks, and derives what needs the order of time:
//! states of threads, and whether spans nest.

use std::collections::HashMap;

use gpuwhy_schema::{
    Clock, Discipline, EntityId, EntityKind, Id, Lane, Lanes, Measure, Name, Ns, Rows, Sample,
    Shape, SourceId, State, ThreadState, Track, TrackId, names,
};

use super::align::Alignment;
use super::ids::{pid_of, process_of, tid_of};
use super::piece::{CpuSample, Device, Piece, Switch, TrackKey};
use super::report::{Gpu, Report};
use super::stacks::Stacks;

/// Open spans that are remembered for each track; deeper nesting makes the track `overlap`.
const NESTING: usize = 1024;

/// Makes one trace of several reports.
pub(super) struct Placer {
    lanes: Lanes,
    next_id: u64,
    reports: Vec<Placed>,
    /// Tracks whose spans are declared to nest, with the ends of the spans that are still open.
    nesting: HashMap<TrackId, Vec<i64>>,
    /// The state that each thread is in, by its track.
    running: HashMap<TrackId, OpenState>,
    stacks: Stacks,
}

/// What the trace has of one report.
struct Placed {
    source: SourceId,
    host: EntityId,
    /// The rank, or the host, that its processes belong to.
    owner: EntityId,
    host_key: String,
    /// What is added to its times, ns.
    shift: i64,
    tracks: HashMap<TrackKey, TrackId>,
    threads: HashMap<i64, EntityId>,
    recorded: u64,
    dropped: u64,
}

/// A state that has begun.
#[derive(Clone, Copy)]
struct OpenState {
    since: i64,
    state: Option<ThreadState>,
    arg: i64,
}

impl Placer {
    /// Begins a trace of these reports, with their times moved as `alignment` says.
    pub fn new(reports: &[Report], alignment: &Alignment) -> Placer {
        let mut lanes = Lanes::default();
        let several = reports.len() > 1;
        let placed = reports
            .iter()
            .enumerate()
            .map(|(i, report)| {
                let file = report.path().file_name().unwrap_or_default().to_string_lossy();
                let version = report.version.as_deref().unwrap_or("unknown");
                let schema = report.schema.as_deref().unwrap_or("none");
                let config = format!("file={} schema={schema}", file.replace(' ', "_"));
                let source = lanes.source("nsys", "Nsight Systems", version, &config);
                // Reports without a host name that are read together are assumed to be of one host.
                let name = report.host.as_deref().unwrap_or("unknown-host");
                let host_key = format!("nsys:{name}");
                let host = lanes.entity(EntityKind::Host, &host_key, |e| e.name = name.into());
                let rank = report.rank.or(several.then_some(i as u32));
                let owner = rank.map_or(host, |rank| {
                    lanes.entity(EntityKind::Rank, &format!("rank:{rank}"), |e| {
                        e.name = format!("rank {rank}").as_str().into();
                        e.number = Some(i64::from(rank));
                        e.parent = Some(host);
                    })
                });
                Placed {
                    source,
                    host,
                    owner,
                    host_key,
                    shift: alignment.shifts[i],
                    tracks: HashMap::new(),
                    threads: HashMap::new(),
                    recorded: 0,
                    dropped: 0,
                }
            })
            .collect();
        Placer {
            lanes,
            next_id: 1,
            reports: placed,
            nesting: HashMap::new(),
            running: HashMap::new(),
            stacks: Stacks::default(),
        }
    }

    /// The rows of a piece as rows of the trace, after new entities and tracks. Pieces of a report must
    /// come in the order of its chunks.
    pub fn place(&mut self, report: &Report, number: usize, piece: Piece) -> Rows {
        let Piece { mut rows, tracks, devices, switches, chains, samples, ids, dropped, recorded } =
            piece;
        let tracks: Vec<TrackId> =
            tracks.iter().map(|key| self.track(report, number, *key)).collect();
        let gpus: Vec<EntityId> =
            devices.iter().map(|device| self.gpu(report, number, *device)).collect();
        let owners: Vec<Option<EntityId>> = devices
            .iter()
            .map(|d| (d.process != 0).then(|| self.process(report, number, d.process)))
            .collect();
        let (base, shift) = (self.next_id, self.reports[number].shift);
        self.next_id += ids;
        let id = |id: &mut Id| id.0 += base;
        let ts = |ts: &mut Ns| *ts = Ns(ts.0.saturating_add(shift));
        let gpu = |gpu: &mut EntityId| *gpu = gpus[gpu.0 as usize];
        for row in &mut rows.span {
            id(&mut row.id);
            ts(&mut row.ts);
            row.track = tracks[row.track.0 as usize];
        }
        for row in &mut rows.mark {
            id(&mut row.id);
            ts(&mut row.ts);
            row.track = tracks[row.track.0 as usize];
        }
        for row in &mut rows.counter {
            ts(&mut row.ts);
            row.track = tracks[row.track.0 as usize];
        }
        for row in &mut rows.kernel {
            id(&mut row.id);
            ts(&mut row.ts);
            gpu(&mut row.gpu);
            row.process = row.process.and_then(|device| owners[device.0 as usize]);
        }
        for row in &mut rows.copy {
            id(&mut row.id);
            ts(&mut row.ts);
            row.from.iter_mut().for_each(gpu);
            row.to.iter_mut().for_each(gpu);
            row.process = row.process.and_then(|device| owners[device.0 as usize]);
        }
        for row in &mut rows.call {
            id(&mut row.id);
            ts(&mut row.ts);
        }
        self.check_nesting(&rows);
        for switch in switches {
            self.switch(report, number, switch, &mut rows);
        }
        let mut dropped = dropped;
        for entry in chains {
            dropped += u64::from(!self.stacks.add(report, number, entry, &mut rows));
        }
        for sample in samples {
            self.sample(report, number, sample, &mut rows);
        }
        let placed = &mut self.reports[number];
        placed.recorded += recorded;
        placed.dropped += dropped;
        self.lanes.drain(&mut rows);
        rows
    }

    /// The last rows: states that are still open, clocks, and what each source recorded.
    pub fn finish(&mut self, reports: &[Report], alignment: &Alignment) -> Rows {
        let mut rows = Rows::default();
        let mut open: Vec<(TrackId, OpenState)> = self.running.drain().collect();
        open.sort_unstable_by_key(|(track, _)| *track);
        for (track, OpenState { since, state, arg }) in open {
            if let Some(state) = state {
                let (ts, value) = (Ns(since), state.code());
                rows.state.push(State { ts, dur: None, track, value, arg: Some(arg) });
            }
        }
        for (i, report) in reports.iter().enumerate() {
            let placed = &self.reports[i];
            if let Some(epoch) = report.epoch {
                rows.clock.push(Clock {
                    host: placed.host,
                    clock: "utc".into(),
                    ts_source: epoch,
                    ts_trace: Ns(placed.shift),
                    error_ns: Ns(alignment.error_ns),
                });
            }
            let (recorded, dropped) = (placed.recorded, placed.dropped);
            let unread: Vec<&str> = report.unread.iter().map(|t| &*t.0).collect();
            self.lanes.update_source(placed.source, |s| {
                (s.recorded, s.dropped) = (recorded, dropped);
                if !unread.is_empty() {
                    let note = format!("tables that are not imported: {}", unread.join(", "));
                    s.note = Some(note.as_str().into());
                }
            });
        }
        self.lanes.drain(&mut rows);
        rows
    }

    fn process(&mut self, report: &Report, number: usize, process: i64) -> EntityId {
        let placed = &self.reports[number];
        let pid = pid_of(process);
        let key = format!("{}:{pid}", placed.host_key);
        let owner = placed.owner;
        self.lanes.entity(EntityKind::Process, &key, |e| {
            let path = report.processes.get(&process_of(process));
            let name = path.map_or("", |path| path.rsplit('/').next().unwrap_or(path));
            e.name =
                if name.is_empty() { format!("pid {pid}").as_str().into() } else { name.into() };
            e.number = Some(pid);
            e.parent = Some(owner);
        })
    }

    fn thread(&mut self, report: &Report, number: usize, thread: i64) -> EntityId {
        if let Some(&known) = self.reports[number].threads.get(&thread) {
            return known;
        }
        let process = self.process(report, number, thread);
        let tid = tid_of(thread);
        let key = format!("{}:{}:{tid}", self.reports[number].host_key, pid_of(thread));
        let entity = self.lanes.entity(EntityKind::Thread, &key, |e| {
            let name = report.threads.get(&thread);
            e.name = name.cloned().unwrap_or_else(|| format!("tid {tid}").as_str().into());
            e.number = Some(tid);
            e.parent = Some(process);
        });
        self.reports[number].threads.insert(thread, entity);
        entity
    }

    fn gpu(&mut self, report: &Report, number: usize, device: Device) -> EntityId {
        let placed = &self.reports[number];
        let (host, host_key) = (placed.host, &placed.host_key);
        let Device { process, ordinal } = device;
        let found = report.gpu(process, ordinal);
        let key = match found {
            Some(Gpu { uuid: Some(uuid), .. }) => format!("GPU-{uuid}"),
            Some(Gpu { bus: Some(bus), .. }) => format!("{host_key}:{bus}"),
            Some(gpu) => format!("{host_key}:gpu{}", gpu.id),
            // The report does not say which GPU it is: in another report, it may be another one.
            None => format!("{host_key}:report{number}:cuda{ordinal}"),
        };
        self.lanes.entity(EntityKind::Gpu, &key, |e| {
            let model = found.and_then(|gpu| gpu.name.as_deref());
            let id = found.map_or(ordinal, |gpu| gpu.id);
            e.name = format!(
                "GPU {id}{}{}",
                if model.is_some() { " " } else { "" },
                model.unwrap_or("")
            )
            .as_str()
            .into();
            e.number = Some(id);
            e.parent = Some(host);
        })
    }

    fn track(&mut self, report: &Report, number: usize, key: TrackKey) -> TrackId {
        if let Some(&known) = self.reports[number].tracks.get(&key) {
            return known;
        }
        let track = self.declare(report, number, key);
        self.reports[number].tracks.insert(key, track);
        if matches!(key, TrackKey::Thread { .. } | TrackKey::Ranges { .. }) {
            self.nesting.entry(track).or_default();
        }
        track
    }

    /// A new track, with the entity that it belongs to.
    fn declare(&mut self, report: &Report, number: usize, key: TrackKey) -> TrackId {
        let (nested, overlap) = (Discipline::Nested, Discipline::Overlap);
        let in_domain = |name: &str, thread: i64, domain: i64| {
            let domain = report.domains.get(&(pid_of(thread), domain)).filter(|_| domain != 0);
            domain.map_or_else(|| name.to_owned(), |domain| format!("{name}.{domain}"))
        };
        let name: String;
        let (entity, track) = match key {
            TrackKey::Stream { process, device, context, stream } => {
                // Kernels of one stream may overlap: of a graph, or launched dependently.
                let track = Lane::spans(names::STREAM, overlap);
                let device = Device { process, ordinal: device };
                (self.stream(report, number, device, context, stream), track)
            }
            TrackKey::Thread { thread, name } => {
                (self.thread(report, number, thread), Lane::spans(name, nested))
            }
            TrackKey::Ranges { thread, domain } => {
                name = in_domain(names::NVTX, thread, domain);
                (self.thread(report, number, thread), Lane::spans(&name, nested))
            }
            TrackKey::LooseRanges { process, domain } => {
                name = in_domain(names::NVTX_RANGES, process, domain);
                (self.process(report, number, process), Lane::spans(&name, overlap))
            }
            TrackKey::Marks { thread, domain } => {
                name = in_domain(names::NVTX_MARKS, thread, domain);
                (self.thread(report, number, thread), Lane::marks(&name))
            }
            TrackKey::Notes { thread } => {
                (self.thread(report, number, thread), Lane::marks(names::MARKS))
            }
            TrackKey::Process { process, name } => {
                let track = match name == names::CPU_PAGE_FAULTS {
                    true => Lane::marks(name),
                    false => Lane::spans(name, overlap),
                };
                (self.process(report, number, process), track)
            }
            TrackKey::Metric { kind, metric } => {
                // The low byte of the type is the number of the GPU.
                let gpu = report.gpus.iter().find(|gpu| gpu.id == kind & 0xff);
                let ordinal = gpu.map_or(kind & 0xff, |gpu| gpu.ordinal.unwrap_or(gpu.id));
                let metric_name = report.metrics.get(&(kind, metric));
                name = metric_name.map_or_else(|| format!("metric {metric}"), Name::to_string);
                let unit = if name.contains('%') { "%" } else { "1" };
                let entity = self.gpu(report, number, Device { process: 0, ordinal });
                (entity, Lane::counter(&name, unit, Measure::Gauge))
            }
        };
        self.lanes.track(entity, None, track, self.reports[number].source)
    }

    fn stream(
        &mut self,
        report: &Report,
        number: usize,
        device: Device,
        context: i64,
        stream: i64,
    ) -> EntityId {
        let gpu = self.gpu(report, number, device);
        let owner = self.lanes.get(gpu).map(|e| e.key.clone()).unwrap_or_default();
        let key = format!("{owner}:{}:{context}:{stream}", pid_of(device.process));
        self.lanes.entity(EntityKind::Stream, &key, |e| {
            e.name = format!("stream {stream}").as_str().into();
            e.number = Some(stream);
            e.parent = Some(gpu);
        })
    }

    /// Declares tracks whose spans cross to overlap: a profiler may lose the end of a span, and rows need
    /// not be sorted.
    fn check_nesting(&mut self, rows: &Rows) {
        if self.nesting.is_empty() {
            return;
        }
        let mut crossed: Vec<TrackId> = Vec::new();
        let mut last: Option<(TrackId, i64)> = None;
        for span in &rows.span {
            let Some(around) = self.nesting.get_mut(&span.track) else { continue };
            let start = span.ts.0;
            let end = span.dur.map_or(i64::MAX, |dur| start.saturating_add(dur.0));
            let disordered = last.is_some_and(|(track, ts)| track == span.track && ts > start);
            last = Some((span.track, start));
            while around.last().is_some_and(|outer| *outer <= start) {
                around.pop();
            }
            let crosses = around.last().is_some_and(|outer| *outer < end);
            if crosses || disordered || around.len() >= NESTING {
                crossed.push(span.track);
                self.nesting.remove(&span.track);
            } else {
                around.push(end);
            }
        }
        for track in crossed {
            self.lanes.update_track(track, |t: &mut Track| {
                t.discipline = Some(Discipline::Overlap);
            });
        }
    }

    /// A track of a thread that does not hold spans.
    fn thread_track(
        &mut self,
        report: &Report,
        number: usize,
        thread: i64,
        name: &'static str,
        track: Lane<'_>,
    ) -> TrackId {
        let key = TrackKey::Thread { thread, name };
        if let Some(&known) = self.reports[number].tracks.get(&key) {
            return known;
        }
        let entity = self.thread(report, number, thread);
        let track = self.lanes.track(entity, None, track, self.reports[number].source);
        self.reports[number].tracks.insert(key, track);
        track
    }

    /// A sample of a thread on a CPU. Reports do not contain the time between samples, so each weighs 1.
    fn sample(&mut self, report: &Report, number: usize, sample: CpuSample, rows: &mut Rows) {
        let track = Lane {
            name: names::CPU_SAMPLES,
            shape: Shape::Sample,
            unit: Some("1"),
            measure: None,
            discipline: None,
        };
        let track = self.thread_track(report, number, sample.thread, names::CPU_SAMPLES, track);
        let stack = self.stacks.stack(report, number, sample.sample, rows);
        let placed = &mut self.reports[number];
        let ts = Ns(sample.ts.saturating_add(placed.shift));
        rows.sample.push(Sample { ts, track, stack, state: None, weight: 1.0 });
        placed.recorded += 1;
    }

    /// A thread came to a CPU or left it: its state until then has ended.
    fn switch(&mut self, report: &Report, number: usize, switch: Switch, rows: &mut Rows) {
        let track = Lane::states(names::THREAD_STATE, Discipline::Sparse);
        let track = self.thread_track(report, number, switch.thread, names::THREAD_STATE, track);
        let at = switch.ts.saturating_add(self.reports[number].shift);
        let before = self.running.get(&track).copied();
        if let Some(OpenState { since, state: Some(state), arg }) = before
            && since < at
        {
            rows.state.push(State {
                ts: Ns(since),
                dur: Some(Ns(at - since)),
                track,
                value: state.code(),
                arg: Some(arg),
            });
            self.reports[number].recorded += 1;
        }
        if before.is_some_and(|before| before.since > at) {
            // Switches of one thread that are not sorted by time cannot be paired.
            self.reports[number].dropped += 1;
            return;
        }
        let (state, arg) = match (switch.is_in, switch.state) {
            (true, _) => (Some(ThreadState::Running), switch.cpu),
            (false, Some(1 | 6)) => (Some(ThreadState::Runnable), switch.cpu),
            (false, Some(2 | 7)) => (Some(ThreadState::Sleep), -1),
            (false, Some(3)) => (Some(ThreadState::Uninterruptible), -1),
            (false, Some(4)) => (Some(ThreadState::Stopped), -1),
            // The report does not say why it left the CPU.
            (false, _) => (None, -1),
        };
        self.running.insert(track, OpenState { since: at, state, arg });
    }
}
