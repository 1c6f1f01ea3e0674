//! A report on tenants as text.

use gpuwhy_schema::text::Screen;

use super::placement::PlacementReport;
use super::vcpus::VcpuReport;
use super::what_if::WhatIfReport;
use super::{CountedReport, JoinedReport, Report, TenantReport, Times};

/// Phases of a machine that are listed.
const LISTED: usize = 12;

impl Report {
    /// It, for a terminal.
    pub fn text(&self) -> Screen {
        let mut out = Screen::new(false);
        self.put(&mut out);
        out
    }

    /// Adds it to a screen.
    pub(super) fn put(&self, out: &mut Screen) {
        if let Some(against) = &self.against {
            against.text(out, (self.from_s, self.to_s));
            findings(out, self);
            return;
        }
        if self.events.is_empty() && self.vcpus.is_none() && self.counted.is_empty() {
            out.line(
                "the trace holds no event and no count of a GPU's driver that is known here; see docs/vgpu.md",
            );
            return;
        }
        let (from, to) = (self.from_s, self.to_s);
        let seconds = to - from;
        out.line(format_args!("{from:.6} to {to:.6} s ({seconds:.3} s); {}", self.provenance));
        if !self.sharing.is_empty() {
            out.end().line("how GPUs are shared, and what can be known then");
        }
        for alike in self.sharing.chunk_by(|a, b| a.scheme == b.scheme) {
            let gpus: Vec<&str> = alike.iter().map(|one| &*one.gpu).collect();
            let (gpus, scheme) = (gpus.join(", "), alike[0].scheme);
            out.line(format_args!("  {gpus}: {scheme}: {}", alike[0].permits));
        }
        counted(out, &self.counted);
        if !self.engines.is_empty() {
            out.end().line("engines");
        }
        for engine in &self.engines {
            let (name, device) = (&engine.name, engine.device);
            out.line(format_args!(
                "  device {device} {name}: {:.3} ms, {:.2} % of the time; {} requests",
                engine.busy_ms, engine.utilisation, engine.requests
            ));
            if engine.requests == 0 {
                continue;
            }
            for (what, of) in [
                ("software queue", engine.software_queue),
                ("hardware queue", engine.hardware_queue),
                ("execution", engine.execution),
            ] {
                times(out, &format!("{what:<14}"), of);
            }
        }
        if !self.tenants.is_empty() {
            out.end().line("tenants");
        }
        self.tenants.iter().for_each(|one| tenant(out, one));
        self.guests.iter().for_each(|one| guest(out, one));
        if !self.memory.is_empty() {
            out.end().line("memory, by the tenant whose threads asked for it, or by the thread; what a guest allocates within its own is not seen");
        }
        for (who, (live, peak)) in &self.memory {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            out.line(format_args!("  {who}: {:.1} MiB, at most {:.1} MiB", mib(*live), mib(*peak)));
        }
        for (who, one) in &self.evictions {
            let mib = one.bytes as f64 / f64::from(1 << 20);
            out.line(format_args!("  {who} needed room: {} evictions, {mib:.1} MiB", one.times));
        }
        if let Some(vcpus) = &self.vcpus {
            on_cpus(out, vcpus);
        }
        if let Some(of) = &self.placement {
            placement(out, of);
        }
        self.what_if.iter().for_each(|one| what_if(out, one));
        findings(out, self);
        not_known(out, self);
    }
}

/// What drivers count and sample.
fn counted(out: &mut Screen, all: &[CountedReport]) {
    if !all.is_empty() {
        out.end().line("use of GPUs by process, as their drivers count or sample it");
    }
    for one in all {
        let engine = one.engine.as_deref().map_or(String::new(), |name| format!(" {name}"));
        let busy = one.busy_ms.map_or(String::new(), |ms| format!(", {ms:.3} ms"));
        let limit = one.limit.map_or(String::new(), |limit| {
            let may =
                if limit.sm < 100.0 { format!(", may have {} %", limit.sm) } else { String::new() };
            let held = Some(limit.held_back).filter(|held| *held > 0.0);
            may + &held.map_or(String::new(), |held| format!(", held back {held:.0} % of the time"))
        });
        let from = match one.turns {
            Some(of) => {
                format!("{} turns of {:.3} ms (p99 {:.3} ms)", of.turns, of.p50_ms, of.p99_ms)
            }
            None => format!("every {:.1} s, {} readings", one.every_s, one.readings),
        };
        out.line(format_args!(
            "  {}{engine}: {} {:.2} %{busy}{limit}; {} {from}",
            one.gpu, one.process, one.utilisation, one.provenance
        ));
    }
}

fn findings(out: &mut Screen, of: &Report) {
    if !of.findings.is_empty() {
        out.end().line(match of.against {
            Some(_) => "findings in the run",
            None => "findings",
        });
    }
    for finding in &of.findings {
        out.line(format_args!("  - {}: {}", finding.rule, finding.says));
    }
}

fn tenant(out: &mut Screen, one: &TenantReport) {
    out.line(format_args!(
        "  {} (device {}): {} requests, active {:.3} s, with work {:.3} s",
        one.name, one.device, one.requests, one.active_s, one.backlogged_s
    ));
    if one.requests == 0 {
        return unfinished(out, one);
    }
    let used: Vec<String> =
        one.utilisation.iter().map(|(engine, used)| format!("{engine} {used:.2} %")).collect();
    out.line(format_args!("    use         {}", used.join(", ")));
    for (what, of) in [("wait", one.wait), ("execution", one.execution), ("latency", one.latency)] {
        times(out, &format!("{what:<11}"), of);
    }
    let waits = &one.waits;
    let others: Vec<String> = waits
        .other_tenant_ms
        .iter()
        .map(|(who, ms)| format!("behind {who} {ms:.3} ms, "))
        .collect();
    let guest = match waits.guest_ms {
        0.0 => String::new(),
        ms => format!(", guest {ms:.3} ms"),
    };
    out.line(format_args!(
        "    waits       {:.3} ms: own predecessor {:.3} ms, {}device idle and reserved {:.3} ms, dependency {:.3} \
         ms, host {:.3} ms{guest}",
        waits.total_ms,
        waits.own_predecessor_ms,
        others.concat(),
        waits.reserved_idle_ms,
        waits.dependency_ms,
        waits.host_ms
    ));
    out.line(format_args!(
        "    queue       {:.3} on average, {:.3} by Little's law",
        one.queue, one.queue_by_little
    ));
    for slice in &one.slices {
        out.line(format_args!(
            "    slice       {:.1} ms of 100 ms, from {:.3} to {:.3} s",
            slice.slice_ms, slice.from_s, slice.to_s
        ));
    }
    if let Some(left) = one.least_left_ms {
        out.line(format_args!("    slice       {left:.3} ms left at least (below 0: debt)"));
    }
    unfinished(out, one);
}

/// What a guest's own trace adds.
fn guest(out: &mut Screen, one: &JoinedReport) {
    let (trace, tenant) = (&one.trace, &one.tenant);
    let (only_host, only_guest) = (one.only_host, one.only_guest);
    out.end().line(format_args!(
        "{tenant} from within, by {trace}: {} requests are in both traces, {only_host} among them only in the host's, \
         {only_guest} only in the guest's",
        one.requests
    ));
    let uncertain = match one.uncertain_us {
        Some(us) => format!("{us:.1} us uncertain"),
        None => "how far off is not known, since no ends of requests are".to_owned(),
    };
    let contradicted = match one.contradicted_us {
        0.0 => String::new(),
        us => format!(", and contradicted by some requests by {us:.1} us"),
    };
    out.line(format_args!(
        "  its clock is {:.6} s {} the host's and {} {:.3} us a second; {uncertain}{contradicted}",
        one.clock_s.abs(),
        if one.clock_s <= 0.0 { "ahead of" } else { "behind" },
        if one.clock_gains_ppm >= 0.0 { "gains" } else { "loses" },
        one.clock_gains_ppm.abs()
    ));
    for own in &one.processes {
        let leg = |what: &str, ms: Option<f64>| {
            ms.map_or_else(|| format!("{what} not known"), |ms| format!("{what} {ms:.4} ms"))
        };
        let legs = [
            leg("dependencies", own.dependencies_ms),
            leg("in the guest's queue", Some(own.guest_queue_ms)),
            leg("to the host", Some(own.to_host_ms)),
            leg("at the host", own.host_ms),
            leg("back to the guest", own.to_guest_ms),
        ];
        out.line(format_args!("  {}: {} requests; {}", own.name, own.requests, legs.join(", ")));
    }
}

fn times(out: &mut Screen, what: &str, Times { mean, p50, p99, max }: Times) {
    out.line(format_args!(
        "    {what} mean {mean:.4} ms, p50 {p50:.3}, p99 {p99:.3}, max {max:.3}"
    ));
}

fn unfinished(out: &mut Screen, one: &TenantReport) {
    let (preempted, unfinished, over) = (one.preempted, one.unfinished, one.overtaken);
    if preempted + unfinished > 0 {
        let over = match over {
            0 => String::new(),
            over => format!("; {over} of these were over when a later one of their context ended"),
        };
        out.line(format_args!("    {preempted} preempted, {unfinished} without an end{over}"));
    }
}

fn on_cpus(out: &mut Screen, of: &VcpuReport) {
    out.end().line("virtual machines on the host's CPUs");
    for one in &of.machines {
        out.line(format_args!(
            "  {}: {} virtual CPUs ran {:.3} s, waited {:.3} s preempted and {:.3} s woken, halted {:.3} s; {} \
             preemptions, {} halts",
            one.name,
            one.threads,
            one.runs_s,
            one.preempted_s,
            one.woken_s,
            one.halted_s,
            one.preemptions,
            one.halts
        ));
    }
    if !of.preempted.is_empty() {
        out.end().line(
            "who had their CPUs instead: directly, in the end, and for how long in all waits",
        );
    }
    for one in &of.preempted {
        out.line(format_args!(
            "  {} by {}: {} directly, {} in the end, {:.3} ms",
            one.machine, one.by, one.direct, one.eventual, one.behind_ms
        ));
    }
}

fn placement(out: &mut Screen, of: &PlacementReport) {
    out.end().line("what machines use");
    for one in &of.machines {
        let phases = one.phases.iter().filter(|phase| phase.uses != "little").take(LISTED);
        let phases: Vec<String> = phases
            .map(|phase| format!("{} from {:.1} to {:.1} s", phase.uses, phase.from_s, phase.to_s))
            .collect();
        let (cpu, gpu) = (one.cpu_percent, one.gpu_percent);
        out.line(format_args!(
            "  {}: {cpu:.1} % of its virtual CPUs, {gpu:.1} % of the time with requests to a GPU; {}",
            one.name,
            if phases.is_empty() { "little of either".to_owned() } else { phases.join(", ") }
        ));
    }
}

fn what_if(out: &mut Screen, of: &WhatIfReport) {
    let (policy, device) = (&of.policy, of.device);
    out.end().line(format_args!("what if device {device} had the policy: {policy}"));
    for one in &of.tenants {
        let (is, was) = (one.foretold, one.observed);
        out.line(format_args!(
            "  {}: {:.3} s instead of {:.3} s; a request would have waited {:.3} ms instead of {:.3} ms, p99 of its \
             latency {:.3} ms instead of {:.3} ms",
            one.name,
            is.active_s,
            was.active_s,
            is.wait_ms,
            was.wait_ms,
            is.latency_p99_ms,
            was.latency_p99_ms
        ));
    }
    if of.tenants.is_empty() {
        out.line("  the requests would not have ended in 64 times the time");
    }
    out.line(format_args!(
        "  the kernel's own policy, replayed, is {:.2} % off; virtual GPUs that send nothing are taken to have {:.1} % \
         of the device; {} requests could not be replayed",
        of.model_error_percent, of.unused_percent, of.left_out
    ));
}

fn not_known(out: &mut Screen, report: &Report) {
    if !report.missing.is_empty() {
        out.end().line("not known");
    }
    for (event, what) in &report.missing {
        out.line(format_args!("  - {what}: there is no {event}"));
    }
    let of = &report.misfits;
    let all = of.unmatched + of.repeated + of.impossible + of.nameless + of.never_ran + of.left_out;
    if all + of.unknown_objects > 0 {
        out.end().line(format_args!(
            "did not fit: {} events of unknown requests, {} repeated, {} impossible, {} without a name, {} requests \
             that never ran, {} beyond the limit, {} buffers of unknown size",
            of.unmatched,
            of.repeated,
            of.impossible,
            of.nameless,
            of.never_ran,
            of.left_out,
            of.unknown_objects
        ));
    }
}
