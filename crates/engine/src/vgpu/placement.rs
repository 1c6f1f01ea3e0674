//! Where virtual CPUs would wait less, and what each machine used when.

use std::collections::BTreeMap;

use gpuwhy_derive::vgpu::TenantKey;
use gpuwhy_derive::vgpu::metrics::Running;
use gpuwhy_derive::vgpu::placement::{Load, Uses, advise, phases};
use gpuwhy_derive::vgpu::vcpu::{Party, Phase, Stretch, phases as states_of};
use gpuwhy_derive::vgpu::{Model, Request};
use serde::Serialize;

use super::vcpus::OnCpus;

/// The length of a window in which use is measured, ns: as long as the slices of GVT-g together.
const WINDOW: i64 = 100_000_000;
/// Windows at most; longer traces have longer ones.
const WINDOWS: i64 = 10_000;

/// A stretch in which a machine used the same things much.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// When it began, s on the clock of the trace.
    pub from_s: f64,
    /// When it ended.
    pub to_s: f64,
    /// `cpu`, `gpu`, `cpu and gpu`, or `little`.
    pub uses: &'static str,
}

/// What a machine used.
#[derive(Clone, Debug, Serialize)]
pub struct PlacedReport {
    /// The machine.
    pub name: String,
    /// How long each of its virtual CPUs ran or waited to, % of the window on average.
    pub cpu_percent: f64,
    /// How long it had requests to a GPU that waited or ran, % of the window.
    pub gpu_percent: f64,
    /// When it used what.
    pub phases: Vec<PhaseReport>,
}

/// A virtual CPU goes to another CPU.
#[derive(Clone, Debug, Serialize)]
pub struct MoveReport {
    /// The machine and the number of its virtual CPU.
    pub vcpu: String,
    /// The CPU that it is on.
    pub from_cpu: i64,
    /// The CPU that it goes to.
    pub to_cpu: i64,
    /// Who comes to its CPU instead.
    pub instead: Option<String>,
}

/// Where virtual CPUs would wait less.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementReport {
    /// By machine.
    pub machines: Vec<PlacedReport>,
    /// What is advised, in its order; empty if nothing would be much better.
    pub moves: Vec<MoveReport>,
    /// Preemptions of machines directly by others, as they were.
    pub preemptions: u64,
    /// The same with the moves, foretold.
    pub preemptions_foretold: f64,
    /// How long virtual CPUs ran, s.
    pub ran_s: f64,
    /// How long virtual CPUs waited for a CPU, s.
    pub waited_s: f64,
    /// The same with the moves, foretold.
    pub waited_foretold_s: f64,
}

/// What a virtual CPU did within a window.
struct Vcpu {
    machine: usize,
    number: usize,
    /// The CPU that it ran on most.
    cpu: i64,
    runs: i64,
    waits: i64,
    wants: f64,
}

fn clipped((phase, one): (Phase, Stretch), window: (i64, i64)) -> Option<(Phase, Stretch)> {
    let (from, to) = (one.from.max(window.0), one.to.min(window.1));
    (from < to).then_some((phase, Stretch { from, to, ..one }))
}

fn vcpu((machine, number, states): (usize, usize, &[Stretch]), window: (i64, i64)) -> Option<Vcpu> {
    let (mut runs, mut waits, mut halted) = (0, 0, 0);
    let mut cpus: BTreeMap<i64, i64> = BTreeMap::new();
    for (phase, one) in states_of(states).into_iter().filter_map(|one| clipped(one, window)) {
        let length = one.to - one.from;
        match phase {
            Phase::Runs => {
                runs += length;
                *cpus.entry(one.cpu).or_default() += length;
            }
            Phase::Preempted | Phase::Woken => waits += length,
            Phase::Halted => halted += length,
        }
    }
    let cpu = cpus.into_iter().max_by_key(|(_, time)| *time)?.0;
    let wants = runs as f64 / (runs + halted).max(1) as f64;
    Some(Vcpu { machine, number, cpu, runs, waits, wants })
}

/// Which machine each virtual CPU is of, by its name, and the share of the time that it wants a CPU.
pub(super) fn wants(on_cpus: &OnCpus, window: (i64, i64)) -> Vec<(&str, f64)> {
    let all = on_cpus.vcpus().filter_map(|one| vcpu(one, window));
    all.map(|one| (on_cpus.name(Party::Machine(one.machine)), one.wants)).collect()
}

/// The advice for the machines of a trace, from what they did within a window; `preemptions` is how often machines took
/// CPUs from others.
pub(super) fn report(
    on_cpus: &OnCpus,
    model: &Model,
    requests: &[Request],
    window: (i64, i64),
    preemptions: u64,
) -> PlacementReport {
    let vcpus: Vec<Vcpu> = on_cpus.vcpus().filter_map(|one| vcpu(one, window)).collect();
    let mut cpus: Vec<i64> = on_cpus.turns.cpus().collect();
    cpus.extend(vcpus.iter().map(|one| one.cpu));
    cpus.sort_unstable();
    cpus.dedup();
    let place = |cpu: i64| cpus.binary_search(&cpu).unwrap_or(0);
    let of =
        |one: &Vcpu| Load { machine: Some(one.machine), cpu: place(one.cpu), wants: one.wants };
    let mut loads: Vec<Load> = vcpus.iter().map(of).collect();
    let length = (window.1 - window.0).max(1) as f64;
    for (at, &cpu) in cpus.iter().enumerate() {
        let turns = on_cpus.turns.during(cpu, window.0, window.1).iter();
        let host = turns.filter(|turn| turn.by == Party::Host);
        let busy: i64 = host.map(|turn| turn.to.min(window.1) - turn.from.max(window.0)).sum();
        loads.push(Load { machine: None, cpu: at, wants: busy as f64 / length });
    }
    let advice = advise(&loads, cpus.len());
    let (before, after) = advice.contention;
    let left = if before > 0.0 { after / before } else { 1.0 };
    let name = |at: usize| {
        let Vcpu { machine, number, .. } = vcpus[at];
        format!("{}, virtual CPU {number}", on_cpus.name(Party::Machine(machine)))
    };
    let moves = advice.moves.iter().map(|one| MoveReport {
        vcpu: name(one.load),
        from_cpu: vcpus[one.load].cpu,
        to_cpu: cpus[one.to],
        instead: one.instead.map(name),
    });
    let waited = vcpus.iter().map(|one| one.waits).sum::<i64>() as f64 / 1e9;
    PlacementReport {
        moves: moves.collect(),
        preemptions,
        preemptions_foretold: preemptions as f64 * left,
        ran_s: vcpus.iter().map(|one| one.runs).sum::<i64>() as f64 / 1e9,
        waited_s: waited,
        waited_foretold_s: waited * left,
        machines: machines(on_cpus, &vcpus, model, requests, window),
    }
}

fn machines(
    on_cpus: &OnCpus,
    vcpus: &[Vcpu],
    model: &Model,
    requests: &[Request],
    window: (i64, i64),
) -> Vec<PlacedReport> {
    let length = (window.1 - window.0).max(1);
    let step = WINDOW.max(length / WINDOWS);
    let of = |(machine, known): (usize, &super::vcpus::Machine)| {
        let own = vcpus.iter().filter(|one| one.machine == machine);
        let (count, used) =
            own.fold((0i64, 0), |(n, sum), one| (n + 1, sum + one.runs + one.waits));
        let of_machine = on_cpus.vcpus().filter(|(at, ..)| *at == machine);
        let wanted = of_machine.flat_map(|(_, _, states)| {
            states_of(states).into_iter().filter(|(phase, _)| *phase != Phase::Halted)
        });
        let mut wanted: Vec<(i64, i64)> = wanted.map(|(_, one)| (one.from, one.to)).collect();
        wanted.sort_unstable();
        let is_tenant = |at: usize| {
            let tenant = &model.tenants[at];
            matches!(tenant.key, TenantKey::Vgpu(_)) && tenant.name == known.name
        };
        let own = requests.iter().filter(|one| is_tenant(one.tenant));
        let gpu = own.filter_map(|one| Some((one.queued()?, one.ended().unwrap_or(window.1))));
        let gpu = Running::new(gpu.collect());
        let windows = (length + step - 1) / step;
        let mut shares = Vec::with_capacity(windows as usize);
        let mut cpu = vec![0i64; windows as usize];
        for (from, to) in wanted {
            spread(&mut cpu, (from.max(window.0) - window.0, to.min(window.1) - window.0), step);
        }
        for (at, cpu) in cpu.into_iter().enumerate() {
            let from = window.0 + at as i64 * step;
            let to = (from + step).min(window.1);
            let long = (to - from).max(1) as f64;
            shares.push((
                cpu as f64 / long / count.max(1) as f64,
                gpu.within(from, to) as f64 / long,
            ));
        }
        let seconds = |at: usize| (window.0 + (at as i64 * step).min(length)) as f64 / 1e9;
        let phase = |(from, to, uses): (usize, usize, Uses)| PhaseReport {
            from_s: seconds(from),
            to_s: seconds(to),
            uses: word(uses),
        };
        PlacedReport {
            name: known.name.clone(),
            cpu_percent: 100.0 * used as f64 / length as f64 / count.max(1) as f64,
            gpu_percent: 100.0 * gpu.within(window.0, window.1) as f64 / length as f64,
            phases: phases(&shares).into_iter().map(phase).collect(),
        }
    };
    on_cpus.machines.iter().enumerate().map(of).collect()
}

/// Adds a stretch to the windows that it lies in.
fn spread(windows: &mut [i64], (from, to): (i64, i64), step: i64) {
    let mut at = from;
    while at < to {
        let window = at / step;
        let until = ((window + 1) * step).min(to);
        if let Some(sum) = windows.get_mut(window as usize) {
            *sum += until - at;
        }
        at = until;
    }
}

fn word(uses: Uses) -> &'static str {
    match (uses.cpu, uses.gpu) {
        (true, true) => "cpu and gpu",
        (true, false) => "cpu",
        (false, true) => "gpu",
        (false, false) => "little",
    }
}
