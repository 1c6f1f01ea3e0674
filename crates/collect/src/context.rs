//! What probes write rows into, and look things up in.

use std::collections::HashSet;
use std::fs;

use gpuwhy_schema::{EntityId, EntityKind, Ids, Lanes, Rows, SourceId, SourceState};

use crate::attribution::Attribution;
use crate::between_probes::{GpuUse, GuestGpus, NewTargets, PluginProcesses};
use crate::python::InterpreterFile;

/// Rows of each table for which room is made in advance, at most.
const AS_MANY: usize = 4096;

/// What probes write rows into, and look things up in.
#[derive(Debug)]
pub(crate) struct Context {
    /// Entities, tracks and sources.
    pub catalog: Lanes,
    /// Rows gathered since they were last handed out.
    pub rows: Rows,
    /// Ids of spans and marks.
    pub ids: Ids,
    /// The threads and processes that tids and pids belong to.
    pub attribution: Attribution,
    /// This host.
    pub host: EntityId,
    /// Its CPUs, by index; possible CPUs, so some may be offline.
    pub cpus: Vec<EntityId>,
    /// Targets and their descendants, by pid; threads of other processes are recorded for a while, since they woke theirs.
    pub watched: HashSet<u32>,
    /// Processes that probes found and that are to become targets.
    pub new_targets: NewTargets,
    /// What `nvml` knows of processes on GPUs.
    pub gpu_use: GpuUse,
    /// GPUs that guests have named.
    pub guest_gpus: GuestGpus,
    /// Processes that report collectives to `inject`.
    pub plugins: PluginProcesses,
    /// Interpreters of Python that the probe `python` has found; taken by `python_gc`.
    pub interpreters: Vec<InterpreterFile>,
}

impl Context {
    /// With the entities that every recording has: this host and its CPUs.
    pub fn new() -> Context {
        let mut catalog = Lanes::default();
        let read = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let name = read("/proc/sys/kernel/hostname");
        let machine = read("/etc/machine-id");
        // Containers often lack a machine id; the boot id tells hosts apart as well, for one boot.
        let key =
            if machine.is_empty() { read("/proc/sys/kernel/random/boot_id") } else { machine };
        let host = catalog.entity(EntityKind::Host, &key, |e| e.name = name.as_str().into());
        let count = libbpf_rs::num_possible_cpus().unwrap_or(1);
        let cpus: Vec<EntityId> = (0..count)
            .map(|i| {
                catalog.entity(EntityKind::Cpu, &format!("{key}/cpu{i}"), |e| {
                    e.parent = Some(host);
                    e.name = format!("cpu{i}").as_str().into();
                    e.number = Some(i as i64);
                })
            })
            .collect();
        Context {
            catalog,
            rows: Rows::default(),
            ids: Ids::of_shard(0),
            attribution: Attribution::new(host),
            host,
            cpus,
            watched: Default::default(),
            new_targets: NewTargets::default(),
            gpu_use: GpuUse::default(),
            guest_gpus: GuestGpus::default(),
            plugins: PluginProcesses::default(),
            interpreters: Vec::new(),
        }
    }

    /// The thread `tid` of process `tgid`; see [`Attribution::thread`].
    pub fn thread(&mut self, tid: u32, tgid: u32, comm: Option<&[u8]>) -> EntityId {
        self.attribution.thread(&mut self.catalog, tid, tgid, comm)
    }

    /// The process `tgid`; see [`Attribution::process`].
    pub fn process(&mut self, tgid: u32, comm: Option<&[u8]>) -> EntityId {
        self.attribution.process(&mut self.catalog, tgid, comm)
    }

    /// The source sees less than it was asked to, and why.
    pub fn degraded(&mut self, source: SourceId, note: &str) {
        self.catalog.update_source(source, |s| {
            s.state = SourceState::Degraded;
            s.note = Some(note.into());
        });
    }

    /// Rows gathered since the last call, declarations of entities and tracks first.
    pub fn take_rows(&mut self) -> Rows {
        let mut rows = Rows::default();
        self.catalog.drain(&mut rows);
        rows.append(&mut self.rows);
        // Most likely the next ones are as many: tables that grow row by row are copied again and again.
        self.rows.reserve_like(&rows, AS_MANY);
        rows
    }
}
