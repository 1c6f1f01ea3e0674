//! Virtual machines on the host's CPUs: which threads are theirs, and who took CPUs from whom.
//!
//! # How
//! A thread is a virtual CPU if KVM's events are of it, if our recorder saw it run one, if it is named as QEMU names
//! them (`CPU 0/KVM`), or if it fills the queue of a virtual GPU. Its process is the machine, and all threads of that process are the machine's. The
//! machine is called like the virtual GPU that its threads use, or else by the process.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gpuwhy_derive::vgpu::rules::fields;
use gpuwhy_derive::vgpu::vcpu::{Party, Phase, Preemptions, Stretch, Turn, Turns};
use gpuwhy_derive::vgpu::{Event, Tenant, TenantKey};
use gpuwhy_schema::{EntityId, EntityKind, State, ThreadState, TrackId, names};
use serde::Serialize;

use crate::error::Result;
use crate::source::{EVER, TraceSource};

/// Tracepoints of KVM that only a virtual CPU's thread comes by.
const OF_VCPUS: &[&str] = &[
    "kvm_entry",
    "kvm_exit",
    "kvm_userspace_exit",
    "kvm_vcpu_wakeup",
    "kvm_hypercall",
    "kvm_pio",
    "kvm_fpu",
    // Of our own recorder.
    names::KVM_VCPU,
];
const HOST: &str = "host";
const NOBODY: &str = "nobody";

/// The threads of virtual machines, as far as events and names tell.
#[derive(Debug, Default)]
pub(super) struct Guests {
    vcpus: BTreeSet<EntityId>,
    /// The virtual GPU that a thread uses: its device and number.
    vgpus: BTreeMap<EntityId, (i64, i64)>,
}

impl Guests {
    /// Those whose names tell.
    pub fn named(source: &TraceSource) -> Guests {
        let threads = source.entities_and_tracks().entity.iter();
        let threads = threads.filter(|one| one.kind == EntityKind::Thread);
        let vcpus = threads.filter(|one| is_vcpu(&one.name)).map(|one| one.id).collect();
        Guests { vcpus, ..Guests::default() }
    }

    /// A thread came by a tracepoint.
    pub fn event(&mut self, name: &str, thread: EntityId) {
        let name = name.rsplit(':').next().unwrap_or(name);
        if OF_VCPUS.contains(&name) {
            self.vcpus.insert(thread);
        }
    }

    /// A thread may fill the queue of a virtual GPU.
    pub fn uses(&mut self, event: &Event<'_>, thread: EntityId) {
        if event.short_name() == "gvt_workload_queue"
            && let Some(vgpu) = event.integer(fields::VGPU)
        {
            let device = event.integer(fields::DEVICE).unwrap_or(0);
            self.vcpus.insert(thread);
            self.vgpus.entry(thread).or_insert((device, vgpu));
        }
    }
}

impl Guests {
    /// The virtual GPU that the process of each thread uses, by the number of the thread.
    pub fn groups(&self, source: &TraceSource) -> BTreeMap<i64, String> {
        let entities = &source.entities_and_tracks().entity;
        let process = |one: &gpuwhy_schema::Entity| one.parent.unwrap_or(one.id);
        let of = |one: &gpuwhy_schema::Entity| {
            self.vgpus.get(&one.id).map(|vgpu| (process(one), vgpu.1))
        };
        let users: HashMap<EntityId, i64> = entities.iter().filter_map(of).collect();
        let threads = entities.iter().filter(|one| one.kind == EntityKind::Thread);
        threads
            .filter_map(|one| Some((one.number?, format!("vGPU {}", users.get(&process(one))?))))
            .collect()
    }
}

/// Whether this is what QEMU calls the thread of a virtual CPU.
fn is_vcpu(name: &str) -> bool {
    let number = name.strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM"));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What the virtual CPUs of a machine did, as seen from the host.
#[derive(Clone, Debug, Serialize)]
pub struct MachineReport {
    /// The machine: its virtual GPU, or its process.
    pub name: String,
    /// Its process, if the trace names it.
    pub pid: Option<i64>,
    /// How many virtual CPUs it has.
    pub threads: usize,
    /// How long they ran, s.
    pub runs_s: f64,
    /// How long they waited since a CPU was taken from them, s.
    pub preempted_s: f64,
    /// How long they waited since they were woken, s.
    pub woken_s: f64,
    /// How long they slept: the guest had halted, s.
    pub halted_s: f64,
    /// How often a CPU was taken from one.
    pub preemptions: u64,
    /// How often one gave its CPU up to sleep; that is no preemption.
    pub halts: u64,
}

/// Who had the CPUs of a machine while it waited.
#[derive(Clone, Debug, Serialize)]
pub struct PreemptedReport {
    /// Whose virtual CPU waited.
    pub machine: String,
    /// Who had the CPU: a machine, `host`, or `nobody`.
    pub by: String,
    /// How often a thread of it was the next on the CPU that was taken away.
    pub direct: u64,
    /// How often a thread of it was the first of another machine there before the virtual CPU ran again.
    pub eventual: u64,
    /// How long its threads had the CPU while a virtual CPU waited there, ms.
    pub behind_ms: f64,
}

/// The threads of virtual machines on the host's CPUs.
#[derive(Clone, Debug, Serialize)]
pub struct VcpuReport {
    /// The window, s on the clock of the trace.
    pub window_s: (f64, f64),
    /// By machine.
    pub machines: Vec<MachineReport>,
    /// The pairs of which there is anything.
    pub preempted: Vec<PreemptedReport>,
    /// Preemptions of machines directly by others.
    pub machine_by_machine: u64,
}

/// A virtual machine.
#[derive(Debug)]
pub(super) struct Machine {
    process: EntityId,
    pub name: String,
    pid: Option<i64>,
    vcpus: Vec<EntityId>,
}

/// What the threads of virtual machines did on the CPUs.
#[derive(Debug)]
pub(super) struct OnCpus {
    pub machines: Vec<Machine>,
    /// The states of all virtual CPUs, in the order of their machines.
    pub states: Vec<Vec<Stretch>>,
    pub turns: Turns,
}

impl OnCpus {
    /// Who had its CPU while a virtual CPU waited for it; nobody in its other phases.
    pub fn meanwhile(
        &self,
        phase: Phase,
        one: &Stretch,
    ) -> impl Iterator<Item = (i64, i64, &str)> + '_ {
        let (from, to) = (one.from, one.to);
        let waits = matches!(phase, Phase::Preempted | Phase::Woken);
        let turns = if waits { self.turns.during(one.cpu, from, to) } else { &[] };
        turns.iter().map(move |turn| (turn.from.max(from), turn.to.min(to), self.name(turn.by)))
    }

    /// All of a trace; `None` where no machine is known, or no state of one.
    pub fn read(
        source: &TraceSource,
        guests: &Guests,
        tenants: &[Tenant],
    ) -> Result<Option<OnCpus>> {
        let mut machines = machines(source, guests, tenants);
        // A machine of whose threads no state is known is not one of these CPUs.
        let tracks = source.entities_and_tracks().track.iter();
        let of_states = tracks.filter(|track| &*track.name == names::THREAD_STATE);
        let has_states: HashSet<EntityId> = of_states.map(|track| track.entity).collect();
        machines.retain(|one| one.vcpus.iter().any(|thread| has_states.contains(thread)));
        if machines.is_empty() {
            return Ok(None);
        }
        let (states, turns) = states(source, &machines)?;
        Ok(Some(OnCpus { machines, states, turns }))
    }

    /// What each machine did within a window, ns.
    pub fn report(&self, window: (i64, i64)) -> VcpuReport {
        let mut all = Preemptions::default();
        for (machine, _, states) in self.vcpus() {
            all.thread(Party::Machine(machine), states, &self.turns, window);
        }
        told(&self.machines, &all, window)
    }

    /// All virtual CPUs: the place of the machine, the place among its threads, and the states.
    pub fn vcpus(&self) -> impl Iterator<Item = (usize, usize, &[Stretch])> {
        let of = |(at, one): (usize, &Machine)| (0..one.vcpus.len()).map(move |vcpu| (at, vcpu));
        let places = self.machines.iter().enumerate().flat_map(of);
        places.zip(&self.states).map(|((at, vcpu), states)| (at, vcpu, states.as_slice()))
    }

    /// What a party is called.
    pub fn name(&self, party: Party) -> &str {
        name(&self.machines, party)
    }
}

fn name(machines: &[Machine], party: Party) -> &str {
    match party {
        Party::Machine(at) => machines.get(at).map_or("", |one| &one.name),
        Party::Host => HOST,
        Party::Nobody => NOBODY,
    }
}

fn machines(source: &TraceSource, guests: &Guests, tenants: &[Tenant]) -> Vec<Machine> {
    let entities = &source.entities_and_tracks().entity;
    let by_id: HashMap<EntityId, &gpuwhy_schema::Entity> =
        entities.iter().map(|one| (one.id, one)).collect();
    let mut machines: Vec<Machine> = Vec::new();
    for thread in &guests.vcpus {
        let process = by_id.get(thread).and_then(|one| one.parent).unwrap_or(*thread);
        let known = machines.iter().position(|one| one.process == process);
        let at = known.unwrap_or_else(|| {
            let of = by_id.get(&process);
            let pid = of.and_then(|one| one.number);
            let name = match (of.map_or("", |one| &*one.name), pid) {
                // A process whose first thread was never seen is called by its number.
                (name, Some(pid)) if name != format!("pid {pid}") => format!("{name} ({pid})"),
                (name, _) => name.to_owned(),
            };
            machines.push(Machine { process, name, pid, vcpus: Vec::new() });
            machines.len() - 1
        });
        machines[at].vcpus.push(*thread);
        if let Some(&(device, vgpu)) = guests.vgpus.get(thread) {
            let of = |one: &&Tenant| one.device == device && one.key == TenantKey::Vgpu(vgpu);
            if let Some(tenant) = tenants.iter().find(of) {
                machines[at].name = tenant.name.clone();
            }
        }
    }
    machines
}

/// The states of all virtual CPUs, in the order of their machines; and the turns of all CPUs.
type States = (Vec<Vec<Stretch>>, Turns);

fn states(source: &TraceSource, machines: &[Machine]) -> Result<States> {
    let rows = source.entities_and_tracks();
    let party = parties(source, machines);
    let places = machines.iter().flat_map(|one| &one.vcpus).enumerate();
    let places: HashMap<EntityId, usize> = places.map(|(at, one)| (*one, at)).collect();
    let named = |name: &'static str| rows.track.iter().filter(move |one| &*one.name == name);
    let of_threads: HashMap<TrackId, usize> = named(names::THREAD_STATE)
        .filter_map(|one| places.get(&one.entity).map(|at| (one.id, *at)))
        .collect();
    let numbers: HashMap<EntityId, i64> = rows
        .entity
        .iter()
        .filter(|one| one.kind == EntityKind::Cpu)
        .filter_map(|one| one.number.map(|number| (one.id, number)))
        .collect();
    let of_cpus: HashMap<TrackId, i64> = named(names::OCCUPANT)
        .filter_map(|one| numbers.get(&one.entity).map(|cpu| (one.id, *cpu)))
        .collect();
    let mut states = vec![Vec::new(); places.len()];
    let mut turns = Turns::default();
    for batch in source.trace().read::<State>(EVER) {
        for row in batch? {
            let (from, to) = (row.ts.0, row.dur.map_or(row.ts.0, |dur| row.ts.0 + dur.0));
            if let Some(&at) = of_threads.get(&row.track) {
                let state = ThreadState::from_code(row.value).unwrap_or(ThreadState::Unknown);
                states[at].push(Stretch { from, to, state, cpu: row.arg.unwrap_or(-1) });
            } else if let Some(&cpu) = of_cpus.get(&row.track) {
                let by = match u32::try_from(row.value) {
                    Ok(0) | Err(_) => Party::Nobody,
                    Ok(id) => party.get(&EntityId(id)).copied().unwrap_or(Party::Host),
                };
                turns.add(cpu, Turn { from, to, by });
            }
        }
    }
    turns.sort();
    states.iter_mut().for_each(|one: &mut Vec<Stretch>| one.sort_unstable_by_key(|s| s.from));
    Ok((states, turns))
}

/// Whose the threads of machines are.
fn parties(source: &TraceSource, machines: &[Machine]) -> HashMap<EntityId, Party> {
    let machine = |process: EntityId| machines.iter().position(|one| one.process == process);
    let entities = source.entities_and_tracks().entity.iter();
    entities
        .filter(|one| one.kind == EntityKind::Thread)
        .filter_map(|one| Some((one.id, Party::Machine(machine(one.parent.unwrap_or(one.id))?))))
        .collect()
}

fn told(machines: &[Machine], all: &Preemptions, window: (i64, i64)) -> VcpuReport {
    let seconds = |ns: i64| ns as f64 / 1e9;
    let name = |party: Party| name(machines, party).to_owned();
    let of = |(at, one): (usize, &Machine)| {
        let times = all.times.get(&Party::Machine(at)).copied().unwrap_or_default();
        MachineReport {
            name: one.name.clone(),
            pid: one.pid,
            threads: one.vcpus.len(),
            runs_s: seconds(times.runs),
            preempted_s: seconds(times.preempted),
            woken_s: seconds(times.woken),
            halted_s: seconds(times.halted),
            preemptions: times.preemptions,
            halts: times.halts,
        }
    };
    let preempted = all.by.iter().map(|(&(of, by), sums)| PreemptedReport {
        machine: name(of),
        by: name(by),
        direct: sums.direct,
        eventual: sums.eventual,
        behind_ms: sums.behind as f64 / 1e6,
    });
    VcpuReport {
        window_s: (seconds(window.0), seconds(window.1)),
        machines: machines.iter().enumerate().map(of).collect(),
        preempted: preempted.collect(),
        machine_by_machine: all.machine_by_machine(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_cpus_are_known_by_the_name_that_qemu_gives_them() {
        assert!(is_vcpu("CPU 0/KVM") && is_vcpu("CPU 12/KVM"));
        assert!(!is_vcpu("CPU /KVM") && !is_vcpu("CPU 0/TCG") && !is_vcpu("CPU x/KVM"));
    }
}
