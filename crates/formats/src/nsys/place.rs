//! From pieces to a trace: ids, lanes, and what only the order of time can tell.

use std::collections::HashMap;

use gpuwhy_schema::{
    Clock, Discipline, EntityId, EntityKind, Id, Lane as Declared, Lanes, Measure, Name, Ns, Rows,
    Sample, Shape, SourceId, State, ThreadState, Track, TrackId, names,
};

use super::stacks::Stacks;
use super::tables::{Device, Lane, Seen, Switch};
use super::{Alignment, Piece, Report, pid_of, process_of, tid_of};

/// Spans within spans that are kept in mind, a lane.
const NESTING: usize = 1024;

/// Several reports as one trace. Pieces of a report are to be placed in the order of its chunks.
pub struct Import {
    lanes: Lanes,
    next_id: u64,
    reports: Vec<Placed>,
    /// Lanes whose spans are said to nest, and the ends of those that lie around the next one.
    nesting: HashMap<TrackId, Vec<i64>>,
    /// What threads do: since when, and what, by their state track.
    running: HashMap<TrackId, Doing>,
    stacks: Stacks,
}

/// What is known of one report.
struct Placed {
    source: SourceId,
    host: EntityId,
    /// The rank, or the host, that its processes belong to.
    owner: EntityId,
    host_key: String,
    /// What its times are moved by.
    shift: i64,
    tracks: HashMap<Lane, TrackId>,
    threads: HashMap<i64, EntityId>,
    recorded: u64,
    dropped: u64,
}

#[derive(Clone, Copy)]
struct Doing {
    since: i64,
    state: Option<ThreadState>,
    arg: i64,
}

impl Import {
    /// Begins a trace of these reports, as `alignment` says when each was.
    pub fn new(reports: &[Report], alignment: &Alignment) -> Import {
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
                // Without a name, reports that are read together are taken to be of one host.
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
        Import {
            lanes,
            next_id: 1,
            reports: placed,
            nesting: HashMap::new(),
            running: HashMap::new(),
            stacks: Stacks::default(),
        }
    }

    /// The rows of a piece, as they stand in the trace, with the lanes that are new.
    pub fn place(&mut self, report: &Report, number: usize, piece: Piece) -> Rows {
        let Piece { mut rows, lanes, devices, switches, chains, samples, ids, dropped, recorded } =
            piece;
        let tracks: Vec<TrackId> =
            lanes.iter().map(|lane| self.track(report, number, *lane)).collect();
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
        for called in chains {
            dropped += u64::from(!self.stacks.called(report, number, called, &mut rows));
        }
        for seen in samples {
            self.sample(report, number, seen, &mut rows);
        }
        let placed = &mut self.reports[number];
        placed.recorded += recorded;
        placed.dropped += dropped;
        self.lanes.drain(&mut rows);
        rows
    }

    /// The last rows: what threads still do, and what each source holds.
    pub fn finish(&mut self, reports: &[Report], alignment: &Alignment) -> Rows {
        let mut rows = Rows::default();
        let mut doing: Vec<(TrackId, Doing)> = self.running.drain().collect();
        doing.sort_unstable_by_key(|(track, _)| *track);
        for (track, Doing { since, state, arg }) in doing {
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
            Some(super::Gpu { uuid: Some(uuid), .. }) => format!("GPU-{uuid}"),
            Some(super::Gpu { bus: Some(bus), .. }) => format!("{host_key}:{bus}"),
            Some(gpu) => format!("{host_key}:gpu{}", gpu.id),
            // Nothing says which GPU it is; two reports may mean different ones.
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

    fn track(&mut self, report: &Report, number: usize, lane: Lane) -> TrackId {
        if let Some(&known) = self.reports[number].tracks.get(&lane) {
            return known;
        }
        let source = self.reports[number].source;
        let domain = |thread: i64, domain: i64| -> Option<&Name> {
            report.domains.get(&(pid_of(thread), domain)).filter(|_| domain != 0)
        };
        let in_domain = |name: &str, of: Option<&Name>| match of {
            Some(of) => format!("{name}.{of}"),
            None => name.to_owned(),
        };
        let (nested, overlap) = (Discipline::Nested, Discipline::Overlap);
        let track = match lane {
            Lane::Stream { process, device, context, stream } => {
                let gpu = self.gpu(report, number, Device { process, ordinal: device });
                let owner = self.lanes.get(gpu).map(|e| e.key.clone()).unwrap_or_default();
                let key = format!("{owner}:{}:{context}:{stream}", pid_of(process));
                let entity = self.lanes.entity(EntityKind::Stream, &key, |e| {
                    e.name = format!("stream {stream}").as_str().into();
                    e.number = Some(stream);
                    e.parent = Some(gpu);
                });
                // Kernels of one stream may overlap: of a graph, or launched dependently.
                self.lanes.track(entity, None, Declared::spans(names::STREAM, overlap), source)
            }
            Lane::Thread { thread, lane } => {
                let entity = self.thread(report, number, thread);
                self.lanes.track(entity, None, Declared::spans(lane, nested), source)
            }
            Lane::Ranges { thread, domain: d } => {
                let entity = self.thread(report, number, thread);
                let name = in_domain(names::NVTX, domain(thread, d));
                self.lanes.track(entity, None, Declared::spans(&name, nested), source)
            }
            Lane::LooseRanges { process, domain: d } => {
                let entity = self.process(report, number, process);
                let name = in_domain(names::NVTX_RANGES, domain(process, d));
                self.lanes.track(entity, None, Declared::spans(&name, overlap), source)
            }
            Lane::Marks { thread, domain: d } => {
                let entity = self.thread(report, number, thread);
                let name = in_domain(names::NVTX_MARKS, domain(thread, d));
                self.lanes.track(entity, None, Declared::marks(&name), source)
            }
            Lane::Notes { thread } => {
                let entity = self.thread(report, number, thread);
                self.lanes.track(entity, None, Declared::marks(names::MARKS), source)
            }
            Lane::Process { process, lane } => {
                let entity = self.process(report, number, process);
                let declared = match lane == names::CPU_PAGE_FAULTS {
                    true => Declared::marks(lane),
                    false => Declared::spans(lane, overlap),
                };
                self.lanes.track(entity, None, declared, source)
            }
            Lane::Metric { kind, metric } => {
                // The low byte of the type is the number of the GPU.
                let gpu = report.gpus.iter().find(|gpu| gpu.id == kind & 0xff);
                let ordinal = gpu.map_or(kind & 0xff, |gpu| gpu.ordinal.unwrap_or(gpu.id));
                let entity = self.gpu(report, number, Device { process: 0, ordinal });
                let name = report.metrics.get(&(kind, metric));
                let name = name.map_or_else(|| format!("metric {metric}"), ToString::to_string);
                let unit = if name.contains('%') { "%" } else { "1" };
                let declared = Declared::counter(&name, unit, Measure::Gauge);
                self.lanes.track(entity, None, declared, source)
            }
        };
        self.reports[number].tracks.insert(lane, track);
        let nests = matches!(lane, Lane::Thread { .. } | Lane::Ranges { .. });
        if nests {
            self.nesting.entry(track).or_default();
        }
        track
    }

    /// Spans of a lane that is said to nest and does not are said to overlap from then on: a
    /// profiler may lose an end, and its rows need not come in order.
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

    /// A lane of a thread that is not one of spans.
    fn of_thread(
        &mut self,
        report: &Report,
        number: usize,
        thread: i64,
        name: &'static str,
        declared: Declared<'_>,
    ) -> TrackId {
        let lane = Lane::Thread { thread, lane: name };
        if let Some(&known) = self.reports[number].tracks.get(&lane) {
            return known;
        }
        let entity = self.thread(report, number, thread);
        let track = self.lanes.track(entity, None, declared, self.reports[number].source);
        self.reports[number].tracks.insert(lane, track);
        track
    }

    /// A thread was seen on a CPU. How long a sample stands for is not in the report.
    fn sample(&mut self, report: &Report, number: usize, seen: Seen, rows: &mut Rows) {
        let declared = Declared {
            name: names::CPU_SAMPLES,
            shape: Shape::Sample,
            unit: Some("1"),
            measure: None,
            discipline: None,
        };
        let track = self.of_thread(report, number, seen.thread, names::CPU_SAMPLES, declared);
        let stack = self.stacks.of(report, number, seen.sample, rows);
        let placed = &mut self.reports[number];
        let ts = Ns(seen.ts.saturating_add(placed.shift));
        rows.sample.push(Sample { ts, track, stack, state: None, weight: 1.0 });
        placed.recorded += 1;
    }

    /// A thread came to a CPU or left it: what it did until then is a state.
    fn switch(&mut self, report: &Report, number: usize, switch: Switch, rows: &mut Rows) {
        let declared = Declared::states(names::THREAD_STATE, Discipline::Sparse);
        let track = self.of_thread(report, number, switch.thread, names::THREAD_STATE, declared);
        let at = switch.ts.saturating_add(self.reports[number].shift);
        let before = self.running.get(&track).copied();
        if let Some(Doing { since, state: Some(state), arg }) = before
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
            // It comes too late to be told apart.
            self.reports[number].dropped += 1;
            return;
        }
        let (state, arg) = match (switch.is_in, switch.state) {
            (true, _) => (Some(ThreadState::Running), switch.cpu),
            (false, Some(1 | 6)) => (Some(ThreadState::Runnable), switch.cpu),
            (false, Some(2 | 7)) => (Some(ThreadState::Sleep), -1),
            (false, Some(3)) => (Some(ThreadState::Uninterruptible), -1),
            (false, Some(4)) => (Some(ThreadState::Stopped), -1),
            // The report does not say why.
            (false, _) => (None, -1),
        };
        self.running.insert(track, Doing { since: at, state, arg });
    }
}
