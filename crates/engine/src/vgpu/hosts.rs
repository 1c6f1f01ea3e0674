//! Several hosts, a trace each: which machines would wait less on which host.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gpuwhy_derive::vgpu::hosts::{Contention, Costs, Guest, Host, advise, contention, costs, make};
use gpuwhy_diagnose::vgpu::{HostsFacts, hosts_finding};
use gpuwhy_schema::EntityKind;
use gpuwhy_schema::text::Screen;
use serde::Serialize;

use super::{FindingReport, Options, PhaseReport, Report, SCHEMA_VERSION, Vgpu, placement, told};
use crate::error::{Error, Result};
use crate::source::TraceSource;

/// A machine of a host.
#[derive(Clone, Debug, Serialize)]
pub struct GuestReport {
    /// The machine, or another tenant.
    pub name: String,
    /// How many CPUs it wants on average: of the time in which its virtual CPUs ran or had halted, what they ran.
    pub wants_cpus: f64,
    /// The share of the time that it wants a GPU: what its requests ran of the time in which they ran or there were none.
    pub wants_gpu: f64,
    /// When it used what.
    pub phases: Vec<PhaseReport>,
}

/// A host.
#[derive(Clone, Debug, Serialize)]
pub struct HostReport {
    /// What it is called.
    pub name: String,
    /// Its trace.
    pub trace: String,
    /// Its CPUs, as far as the trace has events of them.
    pub cpus: usize,
    /// The window, s.
    pub length_s: f64,
    /// How long virtual CPUs waited for a CPU, s, in sum.
    pub waited_cpu_s: f64,
    /// The same with the moves, foretold.
    pub waited_cpu_foretold_s: f64,
    /// How long requests waited behind those of other tenants, s, in sum.
    pub waited_gpu_s: f64,
    /// The same with the moves, foretold.
    pub waited_gpu_foretold_s: f64,
    /// Its machines.
    pub machines: Vec<GuestReport>,
}

/// A machine goes to another host.
#[derive(Clone, Debug, Serialize)]
pub struct HostMoveReport {
    /// The machine.
    pub machine: String,
    /// The host that it is on.
    pub from_host: String,
    /// The host that it goes to.
    pub to_host: String,
    /// The machine that comes to its host instead.
    pub instead: Option<String>,
}

/// What several hosts amount to.
#[derive(Clone, Debug, Serialize)]
pub struct HostsReport {
    /// The version of this document.
    pub schema_version: u32,
    /// By host, in the order of the traces.
    pub hosts: Vec<HostReport>,
    /// What is advised, in its order; empty if nothing would be much better.
    pub moves: Vec<HostMoveReport>,
    /// Whether that is a finding.
    pub findings: Vec<FindingReport>,
    /// What is known of each host by itself.
    pub reports: Vec<Report>,
}

impl HostsReport {
    /// Whether there is a finding, of the hosts together or of one.
    pub fn found_something(&self) -> bool {
        !self.findings.is_empty() || self.reports.iter().any(Report::found_something)
    }

    /// It, for a terminal.
    pub fn text(&self) -> Screen {
        let mut out = Screen::new(false);
        out.line("hosts");
        for host in &self.hosts {
            out.line(format_args!(
                "  {} ({}): {} CPUs; in {:.3} s requests waited {:.3} s for the GPU and virtual CPUs {:.3} s for CPUs; \
                 with the moves {:.3} s and {:.3} s",
                host.name,
                host.trace,
                host.cpus,
                host.length_s,
                host.waited_gpu_s,
                host.waited_cpu_s,
                host.waited_gpu_foretold_s,
                host.waited_cpu_foretold_s
            ));
            for one in &host.machines {
                out.line(format_args!(
                    "    {}: wants {:.2} CPUs and {:.1} % of a GPU",
                    one.name,
                    one.wants_cpus,
                    100.0 * one.wants_gpu
                ));
            }
        }
        out.end().line(if self.moves.is_empty() { "no move is advised" } else { "moves" });
        for one in &self.moves {
            let HostMoveReport { machine, from_host, to_host, instead } = one;
            let instead =
                instead.as_ref().map_or_else(String::new, |who| format!(", and {who} there"));
            out.line(format_args!("  {machine} from {from_host} to {to_host}{instead}"));
        }
        for finding in &self.findings {
            out.line(format_args!("  - {}: {}", finding.rule, finding.says));
        }
        for (host, report) in self.hosts.iter().zip(&self.reports) {
            out.end().line(format_args!("host {}", host.name));
            report.put(&mut out);
        }
        out
    }
}

/// Reads a trace of each host, and says which machines should be on which.
///
/// # Errors
/// A trace cannot be read, a window holds nothing of it, or another run is asked for.
pub fn hosts(paths: &[PathBuf], options: &Options) -> Result<HostsReport> {
    if options.against.is_some() {
        return Err(Error::OneTrace { option: "--against" });
    }
    let mut all = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for path in paths {
        let source = TraceSource::open(path)?;
        let mut of_kind =
            source.entities_and_tracks().entity.iter().filter(|one| one.kind == EntityKind::Host);
        names.push(of_kind.next().map_or_else(String::new, |host| host.name.to_string()));
        drop(source);
        all.push(super::vgpu(path, options)?);
    }
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    names.iter().for_each(|name| *seen.entry(name).or_default() += 1);
    let is_known = |name: &str| !name.is_empty() && seen.get(name) == Some(&1);
    // Hosts that have no name of their own are called like their traces.
    let names: Vec<String> = names
        .iter()
        .zip(paths)
        .map(|(name, path)| match is_known(name) {
            true => name.clone(),
            false => path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into(),
        })
        .collect();
    Ok(report(all, names))
}

/// A host with its machines, as it is.
fn host((found, name): (&Vgpu, &String)) -> HostReport {
    let report = &found.report;
    let length_s = report.to_s - report.from_s;
    let mut machines: BTreeMap<&str, GuestReport> = BTreeMap::new();
    let new = |name: &str| GuestReport {
        name: name.to_owned(),
        wants_cpus: 0.0,
        wants_gpu: 0.0,
        phases: Vec::new(),
    };
    let wants =
        found.on_cpus.as_ref().map_or_else(Vec::new, |of| placement::wants(of, found.window));
    for (machine, wants) in &wants {
        machines.entry(machine).or_insert_with(|| new(machine)).wants_cpus += wants;
    }
    let mut waited_gpu_s = 0.0;
    for one in report.tenants.iter().filter(|one| one.requests > 0) {
        let busy = one.utilisation.values().sum::<f64>().min(100.0) / 100.0;
        let idle = (1.0 - one.backlogged_s / length_s.max(1e-9)).max(0.0);
        let machine = machines.entry(&one.name).or_insert_with(|| new(&one.name));
        machine.wants_gpu = busy / (busy + idle).max(1e-9);
        waited_gpu_s += one.waits.other_tenant_ms.values().sum::<f64>() / 1e3;
    }
    for placed in report.placement.iter().flat_map(|of| &of.machines) {
        if let Some(machine) = machines.get_mut(placed.name.as_str()) {
            machine.phases.clone_from(&placed.phases);
        }
    }
    let waited_cpu_s = report.placement.as_ref().map_or(0.0, |of| of.waited_s);
    HostReport {
        name: name.clone(),
        trace: found.title.clone(),
        cpus: found.on_cpus.as_ref().map_or(0, |of| of.turns.cpus().count()),
        length_s,
        waited_cpu_s,
        waited_cpu_foretold_s: waited_cpu_s,
        waited_gpu_s,
        waited_gpu_foretold_s: waited_gpu_s,
        machines: machines.into_values().collect(),
    }
}

fn report(all: Vec<Vgpu>, names: Vec<String>) -> HostsReport {
    let mut hosts: Vec<HostReport> = all.iter().zip(&names).map(host).collect();
    let has: Vec<Host> = hosts
        .iter()
        .zip(&all)
        .map(|(host, of)| Host { cpus: host.cpus, has_gpu: !of.report.engines.is_empty() })
        .collect();
    let machines = hosts.iter().enumerate();
    let machines = machines.flat_map(|(at, host)| host.machines.iter().map(move |one| (at, one)));
    let mut guests: Vec<Guest> = Vec::new();
    let mut called: Vec<String> = Vec::new();
    for (host, one) in machines {
        guests.push(Guest { host, cpu: one.wants_cpus, gpu: one.wants_gpu });
        called.push(one.name.clone());
    }
    let before = contention(&has, &guests);
    let waits: Vec<Contention> = hosts
        .iter()
        .map(|host| Contention {
            cpu: host.waited_cpu_s / host.length_s.max(1e-9),
            gpu: host.waited_gpu_s / host.length_s.max(1e-9),
        })
        .collect();
    let costs = costs(&before, &waits);
    let changes = advise(&has, &guests, costs);
    let wanted: f64 = hosts
        .iter()
        .flat_map(|host| {
            host.machines.iter().map(|one| (one.wants_cpus + one.wants_gpu) * host.length_s)
        })
        .sum();
    let mut moves = Vec::new();
    for change in changes {
        moves.push(HostMoveReport {
            machine: called[change.guest].clone(),
            from_host: hosts[guests[change.guest].host].name.clone(),
            to_host: hosts[change.to].name.clone(),
            instead: change.instead.map(|other| called[other].clone()),
        });
        make(&mut guests, change);
    }
    foretell(&mut hosts, &before, &contention(&has, &guests), costs);
    let finding = hosts_finding(&facts(&hosts, &moves, wanted));
    if finding.is_none() {
        // Little would be gained: all stays as it is.
        moves.clear();
        foretell(&mut hosts, &before, &before, costs);
    }
    let findings = finding.into_iter().map(told).collect();
    let reports = all.into_iter().map(|one| one.report).collect();
    HostsReport { schema_version: SCHEMA_VERSION, hosts, moves, findings, reports }
}

/// What hosts would wait: what they waited, and what more or less contention costs. A host of which the contention was small
/// has waits that say little about it, so that the cost is that of all hosts.
fn foretell(hosts: &mut [HostReport], before: &[Contention], after: &[Contention], costs: Costs) {
    for (host, (was, is)) in hosts.iter_mut().zip(before.iter().zip(after)) {
        let of = |waited: f64, more: f64| (waited + more * host.length_s).max(0.0);
        let (cpu, gpu) = ((is.cpu - was.cpu) * costs.cpu, (is.gpu - was.gpu) * costs.gpu);
        let (cpu, gpu) = (of(host.waited_cpu_s, cpu), of(host.waited_gpu_s, gpu));
        (host.waited_cpu_foretold_s, host.waited_gpu_foretold_s) = (cpu, gpu);
    }
}

fn facts(hosts: &[HostReport], moves: &[HostMoveReport], wanted_s: f64) -> HostsFacts {
    let ns = |seconds: f64| (seconds * 1e9) as i64;
    let sum = |of: fn(&HostReport) -> f64| ns(hosts.iter().map(of).sum());
    let to_say = |one: &HostMoveReport| {
        let instead = one.instead.as_ref();
        let instead = instead.map_or_else(String::new, |who| format!(", and {who} there"));
        format!("{} from {} to {}{instead}", one.machine, one.from_host, one.to_host)
    };
    HostsFacts {
        moves: moves.iter().map(to_say).collect(),
        tenant: moves.first().map_or_else(String::new, |one| one.machine.clone()),
        cpu: (sum(|host| host.waited_cpu_s), sum(|host| host.waited_cpu_foretold_s)),
        gpu: (sum(|host| host.waited_gpu_s), sum(|host| host.waited_gpu_foretold_s)),
        wanted: ns(wanted_s),
    }
}
