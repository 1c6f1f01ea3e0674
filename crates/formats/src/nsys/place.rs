//! Puts pieces into the trace: gives ids, entities and tracks. What needs the order of time is derived in
//! files of its own: states of threads, and whether spans nest.

use std::collections::HashMap;

use gpuwhy_schema::{
    Attr, Clock, Discipline, EntityId, EntityKind, Id, Lane, Lanes, Measure, Name, Ns, Rows,
    Sample, Shape, SourceId, TrackId, names,
};

use super::chunk::Contents;
use super::dropped::{Dropped, Why};
use super::ids::{pid_of, process_of, tid_of};
use super::job::file_name;
use super::nesting::Nesting;
use super::piece::{CpuSample, Device, Piece, TrackKey};
use super::report::{Gpu, Report};
use super::stacks::Stacks;
use super::states::{States, Switches};
use crate::Result;
use crate::align::Alignment;
use crate::left_out::{FileLeftOut, LeftOut};

/// Makes one trace of several reports.
pub(super) struct Placer {
    pub(super) lanes: Lanes,
    next_id: u64,
    pub(super) reports: Vec<Placed>,
    pub(super) nesting: Nesting,
    /// The switches of the report that is being read, and after the last one the states.
    pub(super) switches: Switches,
    pub(super) states: Option<States>,
    /// The report that holds the states of a thread, by their track.
    pub(super) state_owners: HashMap<TrackId, usize>,
    /// The report that is being read.
    number: usize,
    stacks: Stacks,
}

/// What the trace has of one report.
pub(super) struct Placed {
    source: SourceId,
    host: EntityId,
    /// What its processes belong to: the container, the job or, where it names neither, the host.
    owner: EntityId,
    /// What its processes are called by, besides their names.
    file: Option<String>,
    host_key: String,
    /// What is added to its times, ns.
    pub shift: i64,
    pub tracks: HashMap<TrackKey, TrackId>,
    threads: HashMap<i64, EntityId>,
    /// Rows of the report that are in the trace.
    pub recorded: u64,
    dropped: Dropped,
    /// The rows of the report's tables that are not imported, once these were counted.
    unread: Vec<Option<u64>>,
}

impl Placed {
    /// Counts rows that are left out.
    pub fn drop_rows(&mut self, table: &'static str, why: Why, rows: u64) {
        self.dropped.add(table, why, rows);
    }

    /// What of the report is not in the trace.
    fn left_out(&self, report: &Report) -> LeftOut {
        let mut left_out = LeftOut::default();
        self.dropped.each(|why, rows| left_out.lose(why, rows));
        let unread = report.unread.iter().zip(self.unread.iter().chain(std::iter::repeat(&None)));
        unread.for_each(|(table, rows)| left_out.not_imported(table, *rows));
        left_out
    }
}

/// How a report was read, as `key=value` words: what it is of, and how its times were moved.
fn config(file: &str, schema: &str, report: &Report, alignment: &Alignment) -> String {
    let mut config = format!("file={file} schema={schema}");
    let of = &report.identity;
    let mut word = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            config.push_str(&format!(" {key}={}", value.replace(' ', "_")));
        }
    };
    word("rank", of.rank.map(|rank| rank.to_string()));
    word("rank_by", of.by.map(str::to_owned));
    word("world_size", of.world.map(|world| world.to_string()));
    word("job", of.job.clone());
    word("launch", of.launch.clone());
    word("container", of.container.clone());
    config.push(' ');
    config.push_str(&alignment.words());
    config.trim_end().to_owned()
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
                let config = config(&file.replace(' ', "_"), schema, report, alignment);
                let source = lanes.source("nsys", "Nsight Systems", version, &config);
                // Reports without a host name that are read together are assumed to be of one host.
                let name = report.host.as_deref().unwrap_or("unknown-host");
                let host_key = format!("nsys:{name}");
                let host = lanes.entity(EntityKind::Host, &host_key, |e| e.name = name.into());
                let of = &report.identity;
                let owners = [(EntityKind::Job, &of.job), (EntityKind::Container, &of.container)];
                let mut owner = host;
                for (kind, name) in owners {
                    let Some(name) = name else { continue };
                    let parent = Some(owner);
                    owner = lanes.entity(kind, &format!("{host_key}:{name}"), |e| {
                        (e.name, e.parent) = (name.as_str().into(), parent);
                    });
                }
                // Processes of a report without a rank are called by its file.
                let alone = report.identity.rank.is_none() && report.identity.ranks.is_empty();
                Placed {
                    source,
                    host,
                    owner,
                    file: (several && alone).then(|| file_name(report)),
                    host_key,
                    shift: alignment.shifts[i],
                    tracks: HashMap::new(),
                    threads: HashMap::new(),
                    recorded: 0,
                    dropped: Dropped::default(),
                    unread: Vec::new(),
                }
            })
            .collect();
        Placer {
            lanes,
            next_id: 1,
            reports: placed,
            nesting: Nesting::default(),
            switches: Switches::default(),
            states: None,
            state_owners: HashMap::new(),
            number: 0,
            stacks: Stacks::default(),
        }
    }

    /// The rows of a piece as rows of the trace, after new entities and tracks. Pieces of a report must
    /// come in the order of its chunks.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub fn place(&mut self, report: &Report, number: usize, piece: Piece) -> Result<Rows> {
        let Piece { mut rows, tracks, devices, on_gpu, .. } = piece;
        let Piece { switches, chains, samples, ids, dropped, recorded, .. } = piece;
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
        rows.attr.extend(on_gpu.into_iter().map(|(id, device)| {
            let value = gpus[device.0 as usize].to_string().as_str().into();
            Attr { id, key: names::ON_GPU.into(), value }
        }));
        rows.attr.iter_mut().for_each(|row| id(&mut row.id));
        self.check_nesting(&rows);
        for switch in switches {
            self.switch(report, &switch)?;
        }
        if std::mem::replace(&mut self.number, number) != number {
            self.stacks.end_of_report();
        }
        for entry in chains {
            self.stacks.add(report, entry);
        }
        for sample in samples {
            self.sample(report, number, sample, &mut rows);
        }
        let placed = &mut self.reports[number];
        placed.recorded += recorded;
        placed.dropped.merge(dropped);
        self.lanes.drain(&mut rows);
        Ok(rows)
    }

    /// The last piece of a table has been placed; [`Placer::more_states`] may have rows now.
    ///
    /// # Errors
    /// The report cannot be read again where that is needed, or the temporary file.
    pub fn end_of_table(
        &mut self,
        report: &Report,
        number: usize,
        contents: Contents,
    ) -> Result<()> {
        match contents {
            Contents::Scheduling => self.begin_states(report, number)?,
            Contents::Chains => {
                let dropped = self.stacks.end_of_table(report)?;
                self.reports[number].dropped.merge(dropped);
            }
            _ => {}
        }
        Ok(())
    }

    /// The last rows: tracks whose spans cross, clocks, and what each source recorded.
    ///
    /// # Errors
    /// A report cannot be read again where that is needed, or the temporary file.
    pub fn finish(&mut self, reports: &[Report], alignment: &Alignment) -> Result<Rows> {
        self.check_disordered(reports)?;
        let mut rows = Rows::default();
        for (i, report) in reports.iter().enumerate() {
            let tables = &report.database;
            let rows_of = |name: &String| tables.table(name).and_then(|table| tables.rows(table));
            self.reports[i].unread = report.unread.iter().map(rows_of).collect();
            let placed = &self.reports[i];
            // A clock without a bound to its error says nothing about time.
            if let (Some(epoch), Some(error)) = (report.epoch, alignment.error.ns()) {
                rows.clock.push(Clock {
                    host: placed.host,
                    clock: "utc".into(),
                    ts_source: epoch,
                    ts_trace: Ns(placed.shift),
                    error_ns: Ns(error),
                });
            }
            let left_out = placed.left_out(report);
            self.lanes.update_source(placed.source, |s| left_out.write(s, placed.recorded));
        }
        self.lanes.drain(&mut rows);
        Ok(rows)
    }

    /// What was left out of each report of which something was.
    pub fn left_out(&self, reports: &[Report]) -> Vec<FileLeftOut> {
        let of = |(report, placed): (&Report, &Placed)| FileLeftOut {
            file: report.path().display().to_string(),
            recorded: placed.recorded,
            left_out: placed.left_out(report),
        };
        let all = reports.iter().zip(&self.reports).map(of);
        all.filter(|file| !file.left_out.is_empty()).collect()
    }

    fn process(&mut self, report: &Report, number: usize, process: i64) -> EntityId {
        let placed = &self.reports[number];
        let pid = pid_of(process);
        let key = format!("{}:{pid}", placed.host_key);
        let (above, file) = (placed.owner, placed.file.clone());
        // In a report of several ranks, processes without one are the launchers.
        let of = &report.identity;
        let owner = of.ranks.get(&pid).copied().or(of.rank).map_or(above, |rank| {
            self.lanes.entity(EntityKind::Rank, &format!("rank:{rank}"), |e| {
                e.name = format!("rank {rank}").as_str().into();
                e.number = Some(i64::from(rank));
                e.parent = Some(above);
            })
        });
        self.lanes.entity(EntityKind::Process, &key, |e| {
            let path = report.processes.get(&process_of(process));
            let name = path.map_or("", |path| path.rsplit('/').next().unwrap_or(path));
            let mut name = if name.is_empty() { format!("pid {pid}") } else { name.to_owned() };
            if let Some(file) = file {
                name = format!("{name} (file {file})");
            }
            e.name = name.as_str().into();
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
        self.nesting.declare(key, track);
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

    /// A track of a thread that does not hold spans.
    pub(super) fn thread_track(
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
        let stack = self.stacks.stack(sample.sample, rows);
        let placed = &mut self.reports[number];
        let ts = Ns(sample.ts.saturating_add(placed.shift));
        rows.sample.push(Sample { ts, track, stack, state: None, weight: 1.0 });
        placed.recorded += 1;
    }
}
