//! A comparison of two runs in sentences and as text.

use gpuwhy_schema::text::Screen;

use super::{
    Both, Comparison, LatencyChange, Part, PartChange, TenantChange, UseChange, WorkChange,
};
use crate::vgpu::Times;

/// A part whose change is less than this share of all changes is told together with others like it.
const LITTLE: f64 = 0.02;
/// Parts that a sentence names.
const NAMED: usize = 4;
/// A use that changed by less is not listed, points.
const USE: f64 = 0.05;

impl Part {
    /// What it is called in tables.
    pub(crate) fn label(&self) -> String {
        match self {
            Part::Execution => "execution".into(),
            Part::OwnPredecessor => "own predecessor".into(),
            Part::OtherTenant(who) => format!("behind {who}"),
            Part::ReservedIdle => "device idle and reserved".into(),
            Part::Dependency => "dependency".into(),
            Part::Host => "host".into(),
            Part::Guest => "no request".into(),
        }
    }

    /// What a sentence says of the time.
    fn phrase(&self) -> String {
        match self {
            Part::Execution => "execution".into(),
            Part::OwnPredecessor => "waiting for its own requests".into(),
            Part::OtherTenant(who) => format!("waiting for {who}'s requests"),
            Part::ReservedIdle => "waiting for the device while it was idle and reserved".into(),
            Part::Dependency => "waiting for what it depends on".into(),
            Part::Host => "waiting for the host".into(),
            Part::Guest => "without a request".into(),
        }
    }
}

/// Milliseconds with about three digits.
fn digits(ms: f64) -> usize {
    match ms.abs() {
        ms if ms >= 100.0 => 0,
        ms if ms >= 10.0 => 1,
        ms if ms >= 1.0 => 2,
        ms if ms >= 0.1 => 3,
        _ => 4,
    }
}

/// A time in ms, in the unit that suits it.
fn time(ms: f64) -> String {
    match ms.abs() {
        s if s >= 1_000.0 => format!("{:.*} s", digits(ms / 1e3), ms / 1e3),
        _ => format!("{ms:.*} ms", digits(ms)),
    }
}

fn signed(ms: f64) -> String {
    let sign = if ms < 0.0 { '-' } else { '+' };
    format!("{sign}{}", time(ms.abs()))
}

/// The changes of parts, the largest first; small ones together.
fn parts(of: &[PartChange]) -> String {
    let all: f64 = of.iter().map(|one| one.change_ms.abs()).sum();
    let mut sorted: Vec<&PartChange> = of.iter().collect();
    sorted.sort_by(|a, b| b.change_ms.abs().total_cmp(&a.change_ms.abs()));
    let named =
        sorted.iter().take_while(|one| one.change_ms.abs() > LITTLE * all).count().min(NAMED);
    let mut words: Vec<String> = sorted[..named]
        .iter()
        .map(|one| format!("{} {}", signed(one.change_ms), one.part.phrase()))
        .collect();
    let rest: f64 = sorted[named..].iter().map(|one| one.change_ms).sum();
    if rest.abs() > LITTLE * all {
        words.push(format!("{} other", signed(rest)));
    }
    words.join(", ")
}

/// Of the requests of a tenant to an engine, which is named if there are several.
pub(super) fn latency(name: &str, of: &LatencyChange, several: bool) -> String {
    let engine = if several { format!(" to {}", of.engine) } else { String::new() };
    let Some(change) = of.change_ms else {
        let Both { base, run } = of.execution;
        return format!(
            "tenant {name}: a request{engine} ran {} instead of {}; latencies are not compared",
            time(run.mean),
            time(base.mean)
        );
    };
    let Both { base, run } = of.latency;
    let took = format!(
        "tenant {name}: a request{engine} took {} instead of {} ({})",
        time(run.mean),
        time(base.mean),
        signed(change)
    );
    let parts = parts(&of.parts);
    match (of.changed, of.noise_ms) {
        (Some(false), Some(noise)) => {
            format!(
                "{took}: no change beyond what may be chance ({})",
                time(noise.max(0.01 * base.mean))
            )
        }
        (None, _) if parts.is_empty() => {
            format!("{took}; these are too few to say that it changed")
        }
        (None, _) => format!("{took}: {parts}; these are too few to say that it changed"),
        _ if of.parts.is_empty() => took,
        _ => format!("{took}: {parts}"),
    }
}

/// Of the time of a tenant.
pub(super) fn work(name: &str, of: &WorkChange) -> String {
    let run_ms = of.active_s.run * 1e3;
    let base_ms = of.at_base_pace_s * 1e3;
    let took = format!(
        "tenant {name}: its {} requests took {}, and {} at the pace of the base ({})",
        of.requests.run,
        time(run_ms),
        time(base_ms),
        signed(run_ms - base_ms)
    );
    match (of.changed, of.noise_s) {
        (Some(false), Some(noise)) => {
            let noise = (noise * 1e3).max(0.01 * base_ms);
            format!("{took}: no change beyond what may be chance ({})", time(noise))
        }
        _ => format!("{took}: {}", parts(&of.parts)),
    }
}

/// Who used more or less of an engine.
pub(super) fn used(of: &UseChange) -> String {
    let Both { base, run } = of.used_percent;
    let mut why = Vec::new();
    for (points, why_not) in
        [(of.by_requests, "the number of requests"), (of.by_length, "their length")]
    {
        if points.abs() > USE {
            why.push(format!("{points:+.1} by {why_not}"));
        }
    }
    let why = if why.is_empty() { String::new() } else { format!(": {}", why.join(", ")) };
    format!(
        "{} had {} for {run:.1} % of the time instead of {base:.1} % ({:+.1} points{why})",
        of.tenant, of.engine, of.change
    )
}

impl Comparison {
    /// The sentence about the largest change, or that there is none.
    pub(crate) fn headline(&self) -> String {
        let latencies = self.tenants.iter().flat_map(|one| &one.engines);
        let latencies = latencies.filter(|one| one.changed == Some(true)).map(|one| {
            let share = one.change_ms.unwrap_or(0.0) / one.latency.base.mean.max(1e-9);
            (share, &one.says)
        });
        let works = self.tenants.iter().filter_map(|one| one.work.as_ref());
        let works = works.filter(|one| one.changed == Some(true)).map(|one| {
            let share = one.active_s.run / one.at_base_pace_s.max(1e-9) - 1.0;
            (share, &one.says)
        });
        // A slowdown before a speed-up.
        let all = latencies.chain(works);
        all.max_by(|a, b| a.0.total_cmp(&b.0))
            .map_or_else(|| self.nothing().to_owned(), |(_, says)| says.clone())
    }

    /// What is said if nothing changed.
    fn nothing(&self) -> &'static str {
        match self.tenants.is_empty() {
            true => "nothing can be compared: no tenant has requests in both",
            false => "nothing changed beyond what may be chance",
        }
    }

    /// All that it says in sentences.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let mut out = Vec::new();
        for one in &self.tenants {
            out.extend(one.engines.iter().map(|of| of.says.clone()));
            out.extend(one.work.iter().map(|of| of.says.clone()));
        }
        out.extend(self.uses.iter().filter(|one| one.change.abs() > USE).map(used));
        let unmatched = self.unmatched.iter();
        out.extend(unmatched.map(|one| {
            format!("{}: {} requests, in the {} only", one.name, one.requests, one.only_in)
        }));
        out
    }

    /// It, for a terminal.
    pub(crate) fn text(&self, out: &mut Screen, run: (f64, f64)) {
        let (from, to) = run;
        out.line(format_args!("run   {from:.6} to {to:.6} s ({:.3} s)", to - from));
        let (from, to) = (self.base_from_s, self.base_to_s);
        out.line(format_args!(
            "base  {from:.6} to {to:.6} s ({:.3} s) of {}",
            to - from,
            self.base
        ));
        for one in &self.tenants {
            tenant(out, one);
        }
        let mut uses = self.uses.iter().filter(|one| one.change.abs() > USE).peekable();
        if uses.peek().is_some() {
            out.end().line("who had the engines");
        }
        uses.for_each(|one| {
            out.line(format_args!("  - {}", used(one)));
        });
        if !self.unmatched.is_empty() {
            out.end().line("in one of the two only");
        }
        for one in &self.unmatched {
            out.line(format_args!(
                "  - {}: {} requests, in the {} only",
                one.name, one.requests, one.only_in
            ));
        }
        if !self.not_compared.is_empty() {
            out.end().line("not compared");
        }
        for why in &self.not_compared {
            out.line(format_args!("  - {why}"));
        }
        if !self.changed {
            out.end().line(self.nothing());
        }
    }
}

fn tenant(out: &mut Screen, one: &TenantChange) {
    out.end();
    for of in &one.engines {
        out.line(&of.says);
    }
    if let Some(work) = &one.work {
        out.line(&work.says);
    }
    if let Some(before) = &one.base_name {
        out.line(format_args!("  in the base it is {before}"));
    }
    for of in &one.engines {
        let Both { base, run } = of.requests;
        let rate = of.requests_per_s;
        out.line(format_args!(
            "  {}: {run} requests instead of {base}, {:.2} a second instead of {:.2}",
            of.engine, rate.run, rate.base
        ));
        times(out, "latency", of.latency);
        times(out, "execution", of.execution);
        if !of.parts.is_empty() {
            part_table(out, ("ms a request", "base"), &of.parts, 4);
        }
        let taken_off = of.taken_off_ms;
        if taken_off.base > 0.0 || taken_off.run > 0.0 {
            out.line(format_args!(
                "    after being taken off its engine, of that: {:.4} ms instead of {:.4} ms",
                taken_off.run, taken_off.base
            ));
        }
    }
    if let Some(of) = &one.work {
        work_text(out, of);
    }
}

fn times(out: &mut Screen, what: &str, of: Both<Times>) {
    let Both { base, run } = of;
    out.line(format_args!(
        "    {what:<10} mean {:.4} ms (base {:.4}), p50 {:.3} ({:.3}), p99 {:.3} ({:.3}), max {:.3} ({:.3})",
        run.mean, base.mean, run.p50, base.p50, run.p99, base.p99, run.max, base.max
    ));
}

fn work_text(out: &mut Screen, of: &WorkChange) {
    let Both { base, run } = of.active_s;
    out.line(format_args!(
        "  from the first request to the last end: {run:.3} s instead of {base:.3} s, {:+.3} s; of that {:+.3} s by the \
         number of requests",
        of.change_s, of.by_requests_s
    ));
    part_table(out, ("ms for the same requests", "base's pace"), &of.parts, 3);
}

/// The parts of both runs, under what is measured and what the base's column is called.
fn part_table(out: &mut Screen, (title, base): (&str, &str), parts: &[PartChange], digits: usize) {
    out.line(format_args!("    {title:<26} {base:>12} {:>12} {:>12}", "run", "change"));
    for part in parts {
        let PartChange { base_ms, run_ms, change_ms, .. } = part;
        out.line(format_args!(
            "    {:<26} {base_ms:>12.digits$} {run_ms:>12.digits$} {change_ms:>+12.digits$}",
            part.part.label()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(part: Part, change_ms: f64) -> PartChange {
        PartChange { part, base_ms: 0.0, run_ms: change_ms, change_ms, noise_ms: None }
    }

    #[test]
    fn the_largest_parts_are_named_and_small_ones_are_told_together() {
        let other = |who: &str| Part::OtherTenant(who.to_owned());
        let of = [
            part(Part::Execution, 0.2),
            part(other("vm1"), 1.9),
            part(Part::Host, -0.01),
            part(Part::Dependency, 0.0),
        ];
        assert_eq!(parts(&of), "+1.90 ms waiting for vm1's requests, +0.200 ms execution");
        let many: Vec<PartChange> = (1..=7).map(|n| part(other(&format!("vm{n}")), 1.0)).collect();
        let said = parts(&many);
        assert!(said.ends_with(", +3.00 ms other"), "{said}");
    }
}
