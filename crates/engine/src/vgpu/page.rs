//! The page: lanes, the matrix, and the tables behind them.

use gpuwhy_report::detail::{COLUMNS, Detail};
use gpuwhy_report::table::{Cell, Row, Table};
use gpuwhy_report::vgpu::{Matrix, Vgpu as Page, render};

use super::lanes::{Lanes, lanes};
use super::{Report, Vgpu, against};

/// Bytes of a page at most.
pub(super) const LIMIT: usize = 20_000_000;
/// Levels of tiles below the first, at most: columns of the last are 8⁶ times shorter.
const DEPTH: usize = 6;
/// Requests that the table lists: those that waited longest.
const LISTED: usize = 200;

/// Times that the columns of the first level are halved at most, where it does not fit: fewer than some dozen show nothing.
const HALVED: u32 = 5;

/// The page, with as much detail as fits. From the coarsest level on: each takes up to 8 times as much as the one before, and
/// the finest of a large trace would take more memory than the trace.
pub(super) fn html(of: &Vgpu) -> String {
    within(of, LIMIT)
}

/// The page within so many bytes, unless tables alone are more.
fn within(of: &Vgpu, limit: usize) -> String {
    let mut page = about(of);
    let mut best = String::new();
    for depth in 0..=DEPTH {
        let drawn = lanes(of, Detail { depth, columns: COLUMNS });
        let is_all = drawn.finest.is_none();
        let text = with(&mut page, drawn, 0);
        if text.len() > limit {
            break;
        }
        best = text;
        if is_all {
            break;
        }
    }
    if best.is_empty() { coarser(of, page, limit) } else { best }
}

/// The page of a trace with so many lanes that their first level is too large: with fewer columns, and if that is not
/// enough, with the first lanes alone.
fn coarser(of: &Vgpu, mut page: Page, limit: usize) -> String {
    let mut text = String::new();
    for halved in 1..=HALVED {
        let drawn = lanes(of, Detail { depth: 0, columns: COLUMNS >> halved });
        text = with(&mut page, drawn, 0);
        if text.len() <= limit {
            return text;
        }
    }
    let mut kept = page.tracks.len();
    while text.len() > limit && kept > 0 {
        kept /= 2;
        let mut drawn = lanes(of, Detail { depth: 0, columns: COLUMNS >> HALVED });
        let left_out = drawn.tracks.len() - kept;
        drawn.tracks.truncate(kept);
        text = with(&mut page, drawn, left_out);
    }
    text
}

/// The page with these lanes, where so many others are left out.
fn with(page: &mut Page, drawn: Lanes, left_out: usize) -> String {
    page.notes = notes(&drawn);
    if left_out > 0 {
        page.notes.push(format!(
            "{left_out} lanes are not drawn, since the page would be too large; they count in all numbers."
        ));
    }
    // An arrow to a lane that is left out leads nowhere.
    let lanes = drawn.tracks.len();
    page.arrows = drawn.arrows;
    page.arrows.retain_mut(|row| {
        row.at.retain(|(_, to)| *to < lanes);
        row.track < lanes && !row.at.is_empty()
    });
    (page.tracks, page.legend) = (drawn.tracks, drawn.legend);
    render(page)
}

fn notes(drawn: &Lanes) -> Vec<String> {
    let mut out = vec![match drawn.finest {
        None => "All is drawn to the ns; zoom in to see it.".to_owned(),
        Some(ns) => format!(
            "The finest level has a column for each {} µs: shorter stretches are summed. A shorter stretch of the \
             trace is drawn finer, with --from and --to.",
            ns as f64 / 1e3
        ),
    }];
    if drawn.arrows.iter().any(|row| !row.at.is_empty()) {
        out.push(
            "Arrows lead from requests to the engine that begins them, where there are at most 60 in view."
                .to_owned(),
        );
    }
    if drawn.not_drawn > 0 {
        out.push(format!(
            "{} requests are not drawn, since more were on their way at once than there are rows; they count in all \
             numbers.",
            drawn.not_drawn
        ));
    }
    out
}

fn about(of: &Vgpu) -> Page {
    let report = &of.report;
    let findings: Vec<String> =
        report.findings.iter().map(|one| format!("{}: {}", one.rule, one.says)).collect();
    let (from, to) = (of.window.0 as f64 / 1e9, of.window.1 as f64 / 1e9);
    let missing = report.missing.iter().map(|(event, what)| format!("{what}: there is no {event}"));
    let of_gpu = match report.tenants.len() {
        0 if !of.owned.is_empty() => {
            "Whose turn it was on the GPU is in the trace, and no request.".into()
        }
        0 => "No request to a GPU is in the trace.".to_owned(),
        tenants => format!("{tenants} tenants share the GPU; nothing stood out."),
    };
    Page {
        title: of.title.clone(),
        place: format!("{from:.6} to {to:.6} s ({:.3} s) · {}", to - from, report.provenance),
        sentence: sentence(report).unwrap_or(of_gpu),
        stands_out: report.found_something(),
        length_ns: (of.window.1 - of.window.0).max(1),
        findings,
        matrix: matrix(report),
        tables: tables(of),
        not_known: missing.collect(),
        ..beside_another(report)
    }
}

/// What a page says of a comparison with another run.
fn beside_another(report: &Report) -> Page {
    let Some(of) = &report.against else { return Page::default() };
    let mut changes = of.sentences();
    changes.insert(
        0,
        format!("compared with {}, {:.6} to {:.6} s", of.base, of.base_from_s, of.base_to_s),
    );
    Page {
        changes,
        pairs: against::page::pairs(of),
        not_compared: of.not_compared.clone(),
        ..Page::default()
    }
}

/// The largest change where two runs are compared, and else the costliest finding.
fn sentence(report: &Report) -> Option<String> {
    let Some(of) = &report.against else { return report.findings.first().map(headline) };
    Some(of.headline())
}

/// A finding in a few words.
fn headline(one: &super::FindingReport) -> String {
    let cost = one.cost_ms.map_or_else(String::new, |ms| format!("; it cost {ms:.0} ms"));
    let culprit = one.culprit.as_ref().map_or_else(String::new, |who| format!(" ({who})"));
    format!("{}: {}{culprit}{cost}", one.tenant, one.rule.replace('_', " "))
}

fn matrix(report: &Report) -> Option<Matrix> {
    let vcpus = report.vcpus.as_ref().filter(|of| !of.preempted.is_empty())?;
    let of: Vec<String> = vcpus.machines.iter().map(|one| one.name.clone()).collect();
    let mut by = of.clone();
    for one in &vcpus.preempted {
        if !by.contains(&one.by) {
            by.push(one.by.clone());
        }
    }
    let count = |machine: &String, other: &String| {
        let pair = vcpus.preempted.iter().find(|one| one.machine == *machine && one.by == *other);
        pair.map_or((0, 0), |one| (one.direct, one.eventual))
    };
    let row = |machine: &String| by.iter().map(|other| count(machine, other)).collect();
    let counts = of.iter().map(row).collect();
    Some(Matrix { of, by, counts })
}

fn row(cells: Vec<Cell>) -> Row {
    Row { id: None, cells }
}

fn name(text: &str) -> Cell {
    Cell::Name(text.to_owned())
}

fn tables(of: &Vgpu) -> Vec<Table> {
    let mut out = of.report.against.as_ref().map_or(Vec::new(), against::page::tables);
    out.extend([engines(&of.report), tenants(&of.report), waits(&of.report)]);
    out.extend((!of.report.guests.is_empty()).then(|| guests(&of.report)));
    out.extend([counted(&of.report), sharing(&of.report)]);
    out.extend([slices(of), longest(of)]);
    out.extend(on_cpus(&of.report));
    out.extend([what_if(&of.report), memory(&of.report)]);
    out
}

fn engines(report: &Report) -> Table {
    let of = |one: &super::EngineReport| {
        row(vec![
            Cell::Count(one.device as u64),
            name(&one.name),
            Cell::Number(one.utilisation, 2),
            Cell::Count(one.requests as u64),
            Cell::thousandths(one.software_queue.mean),
            Cell::thousandths(one.hardware_queue.mean),
            Cell::thousandths(one.execution.mean),
        ])
    };
    Table {
        id: "engines",
        title: "Engines".into(),
        columns: vec![
            "device",
            "engine",
            "use, %",
            "requests",
            "software queue, ms",
            "hardware queue, ms",
            "execution, ms",
        ],
        rows: report.engines.iter().map(of).collect(),
        ..Table::default()
    }
}

fn tenants(report: &Report) -> Table {
    let of = |one: &super::TenantReport| {
        let used: f64 = one.utilisation.values().sum();
        row(vec![
            name(&one.name),
            Cell::Count(one.requests as u64),
            Cell::Number(used, 2),
            Cell::thousandths(one.wait.mean),
            Cell::thousandths(one.wait.p99),
            Cell::thousandths(one.execution.mean),
            Cell::thousandths(one.latency.p99),
            Cell::thousandths(one.queue),
            Cell::thousandths(one.queue_by_little),
            Cell::thousandths(one.active_s),
            Cell::thousandths(one.backlogged_s),
        ])
    };
    Table {
        id: "tenants",
        title: "Tenants".into(),
        note: "Use is summed over engines. Waits begin where the host first heard of a request."
            .into(),
        columns: vec![
            "tenant",
            "requests",
            "use, %",
            "wait mean, ms",
            "wait p99, ms",
            "execution mean, ms",
            "latency p99, ms",
            "queue",
            "by Little's law",
            "active, s",
            "with work, s",
        ],
        rows: report.tenants.iter().map(of).collect(),
        ..Table::default()
    }
}

fn counted(report: &Report) -> Table {
    let of = |one: &super::CountedReport| {
        row(vec![
            name(&one.gpu),
            one.engine.as_deref().map_or(Cell::Nothing, name),
            name(&one.process),
            Cell::Number(one.utilisation, 2),
            one.limit.map_or(Cell::Nothing, |limit| Cell::Number(limit.sm, 0)),
            one.limit.map_or(Cell::Nothing, |limit| Cell::Number(limit.held_back, 0)),
            name(one.provenance),
            Cell::thousandths(one.every_s),
            Cell::Count(one.readings as u64),
            one.turns.map_or(Cell::Nothing, |of| Cell::thousandths(of.p50_ms)),
            one.turns.map_or(Cell::Nothing, |of| Cell::thousandths(of.p99_ms)),
        ])
    };
    Table {
        id: "counted",
        title: "Use by process, as drivers count or sample it".into(),
        columns: vec![
            "GPU",
            "engine",
            "process",
            "use, %",
            "may have, %",
            "held back, % of the time",
            "from",
            "every, s",
            "readings, or turns",
            "turn p50, ms",
            "turn p99, ms",
        ],
        rows: report.counted.iter().map(of).collect(),
        ..Table::default()
    }
}

fn sharing(report: &Report) -> Table {
    let of =
        |one: &super::SharingReport| row(vec![name(&one.gpu), name(one.scheme), name(one.permits)]);
    Table {
        id: "sharing",
        title: "How GPUs are shared".into(),
        columns: vec!["GPU", "scheme", "what can be known"],
        rows: report.sharing.iter().map(of).collect(),
        ..Table::default()
    }
}

fn waits(report: &Report) -> Table {
    let mut rows = Vec::new();
    for one in &report.tenants {
        let waits = &one.waits;
        let own = [
            ("own predecessor", waits.own_predecessor_ms),
            ("device idle and reserved", waits.reserved_idle_ms),
            ("dependency", waits.dependency_ms),
            ("host", waits.host_ms),
            ("guest", waits.guest_ms),
        ];
        let own = own.into_iter().map(|(why, ms)| (why.to_owned(), ms));
        let others = waits.other_tenant_ms.iter().map(|(who, ms)| (format!("behind {who}"), *ms));
        for (why, ms) in own.chain(others).filter(|(_, ms)| *ms > 0.0) {
            let share = 100.0 * ms / waits.total_ms.max(1e-9);
            let cells =
                vec![name(&one.name), name(&why), Cell::thousandths(ms), Cell::Number(share, 1)];
            rows.push(row(cells));
        }
    }
    Table {
        id: "waits",
        title: "Why requests waited".into(),
        columns: vec!["tenant", "why", "in all, ms", "of its waits, %"],
        rows,
        ..Table::default()
    }
}

/// Where requests were on their way through guests and host.
fn guests(report: &Report) -> Table {
    let mut rows = Vec::new();
    for (guest, one) in
        report.guests.iter().flat_map(|of| of.processes.iter().map(move |one| (of, one)))
    {
        let known = |ms: Option<f64>| ms.map_or_else(|| name("not known"), Cell::thousandths);
        rows.push(row(vec![
            name(&guest.tenant),
            name(&one.name),
            Cell::Count(one.requests as u64),
            known(one.dependencies_ms),
            Cell::thousandths(one.guest_queue_ms),
            Cell::thousandths(one.to_host_ms),
            known(one.host_ms),
            known(one.to_guest_ms),
        ]));
    }
    Table {
        id: "guests",
        title: "Requests on their way through guest and host".into(),
        note: "Of requests that are in both traces: the mean of each part of the way, ms.".into(),
        columns: vec![
            "tenant",
            "process in the guest",
            "requests",
            "dependencies",
            "guest's queue",
            "to the host",
            "at the host",
            "back",
        ],
        rows,
        ..Table::default()
    }
}

fn slices(of: &Vgpu) -> Table {
    let mut rows = Vec::new();
    for (at, tenant) in of.model.tenants.iter().enumerate() {
        let own = of.model.slices.iter().filter(|one| one.tenant == at);
        let inside = own.filter(|one| of.window.0 <= one.at && one.at < of.window.1);
        let left: Vec<i64> = inside.map(|one| one.left).collect();
        let Some(least) = left.iter().min() else { continue };
        let spent = left.iter().filter(|left| **left <= 0).count();
        let mean = left.iter().map(|left| *left as f64).sum::<f64>() / left.len() as f64;
        rows.push(row(vec![
            name(&tenant.name),
            Cell::Count(left.len() as u64),
            Cell::Count(spent as u64),
            Cell::Signed(mean / 1e6, 3),
            Cell::Signed(*least as f64 / 1e6, 3),
        ]));
    }
    Table {
        id: "slices",
        title: "Slices and debts".into(),
        note: "What was left of its slice whenever the device was taken from a virtual GPU.".into(),
        columns: vec!["tenant", "times taken", "slice used up", "left mean, ms", "left least, ms"],
        rows,
        ..Table::default()
    }
}

fn longest(of: &Vgpu) -> Table {
    let inside = |at: i64| of.window.0 <= at && at < of.window.1;
    let done = of.requests.iter().filter_map(|one| {
        let (queued, began, ended) = (one.queued()?, one.began()?, one.ended()?);
        inside(ended).then_some((began - queued, queued, ended, one))
    });
    let mut all: Vec<_> = done.collect();
    all.sort_by_key(|(wait, queued, ..)| (std::cmp::Reverse(*wait), *queued));
    let left_out = all.len().saturating_sub(LISTED);
    let of_one = |(wait, queued, ended, one): &(i64, i64, i64, &gpuwhy_derive::vgpu::Request)| {
        let page = |at: i64| (at - of.window.0).max(0);
        row(vec![
            Cell::Show(page(*queued), page(*ended)),
            name(&of.model.tenants[one.tenant].name),
            name(&of.model.engines[one.engine].name),
            Cell::Count(one.context.max(0) as u64),
            Cell::Count(one.sequence.max(0) as u64),
            Cell::thousandths(*wait as f64 / 1e6),
            Cell::thousandths(one.executed() as f64 / 1e6),
        ])
    };
    Table {
        id: "longest",
        title: "Requests that waited longest".into(),
        columns: vec!["when", "tenant", "engine", "context", "number", "waited, ms", "ran, ms"],
        rows: all.iter().take(LISTED).map(of_one).collect(),
        left_out,
        ..Table::default()
    }
}

fn on_cpus(report: &Report) -> Vec<Table> {
    let Some(vcpus) = &report.vcpus else { return Vec::new() };
    let machine = |one: &super::MachineReport| {
        row(vec![
            name(&one.name),
            Cell::Count(one.threads as u64),
            Cell::thousandths(one.runs_s),
            Cell::thousandths(one.preempted_s),
            Cell::thousandths(one.woken_s),
            Cell::thousandths(one.halted_s),
            Cell::Count(one.preemptions),
            Cell::Count(one.halts),
        ])
    };
    let pair = |one: &super::PreemptedReport| {
        row(vec![
            name(&one.machine),
            name(&one.by),
            Cell::Count(one.direct),
            Cell::Count(one.eventual),
            Cell::thousandths(one.behind_ms),
        ])
    };
    vec![
        Table {
            id: "preempted",
            title: "Preemptions by whom".into(),
            note: "The matrix as a table, with how long each had the CPU in all waits.".into(),
            columns: vec!["machine", "by", "directly", "in the end", "time behind, ms"],
            rows: vcpus.preempted.iter().map(pair).collect(),
            ..Table::default()
        },
        Table {
            id: "machines",
            title: "Virtual machines on the host's CPUs".into(),
            columns: vec![
                "machine",
                "virtual CPUs",
                "ran, s",
                "preempted, s",
                "woken, s",
                "halted, s",
                "preemptions",
                "halts",
            ],
            rows: vcpus.machines.iter().map(machine).collect(),
            ..Table::default()
        },
    ]
}

fn what_if(report: &Report) -> Table {
    let mut rows = Vec::new();
    for of in &report.what_if {
        for one in &of.tenants {
            rows.push(row(vec![
                name(&of.policy),
                name(&one.name),
                Cell::thousandths(one.observed.active_s),
                Cell::thousandths(one.foretold.active_s),
                Cell::thousandths(one.observed.wait_ms),
                Cell::thousandths(one.foretold.wait_ms),
                Cell::Number(of.model_error_percent, 2),
            ]));
        }
    }
    Table {
        id: "what-if",
        title: "Under another policy".into(),
        columns: vec![
            "policy",
            "tenant",
            "active, s",
            "would be, s",
            "wait mean, ms",
            "would be, ms",
            "model's error, %",
        ],
        rows,
        ..Table::default()
    }
}

fn memory(report: &Report) -> Table {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let of = |(who, (live, most)): (&String, &(u64, u64))| {
        row(vec![name(who), Cell::Number(mib(*live), 1), Cell::Number(mib(*most), 1)])
    };
    Table {
        id: "memory",
        title: "Memory, by who asked for it".into(),
        note: "What a guest allocates within its own is not seen.".into(),
        columns: vec!["who", "at the end, MiB", "at most, MiB"],
        rows: report.memory.iter().map(of).collect(),
        ..Table::default()
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_derive::vgpu::event::Field;
    use gpuwhy_derive::vgpu::{Event, Model};

    use super::*;

    /// A trace of so many tenants with so many jobs each.
    fn shared(tenants: i64, jobs: i64) -> Vgpu {
        let mut model = Model::default();
        for n in 0..tenants * jobs {
            let (tenant, job, at) = (n % tenants, n / tenants, n * 1_000);
            for (name, after) in [
                ("drm_sched_job_queue", 0),
                ("drm_sched_job_run", 300),
                ("drm_sched_job_done", 900),
            ] {
                let fields = [
                    ("fence_context", Field::Integer(tenant)),
                    ("fence_seqno", Field::Integer(job)),
                    ("client_id", Field::Integer(tenant)),
                    ("name", Field::Text("gfx")),
                ];
                let time = at + after;
                model.event(&Event { time, name, tid: None, comm: None, fields: &fields });
            }
        }
        let requests = model.finish();
        let window = (0, tenants * jobs * 1_000);
        let report = super::super::report(&model, &requests, window);
        Vgpu {
            report,
            title: "t".into(),
            model,
            requests,
            owned: Vec::new(),
            on_cpus: None,
            window,
        }
    }

    #[test]
    fn a_page_has_its_limit_however_many_lanes_there_are() {
        let of = shared(60, 800);
        let whole = within(&of, usize::MAX);
        let mut lanes = usize::MAX;
        for limit in [whole.len() - 1, 2_000_000, 500_000, 200_000] {
            let page = within(&of, limit);
            assert!(page.len() <= limit, "{} bytes of {limit}", page.len());
            assert!(page.contains("The finest level has a column for each"), "{limit}");
            let left_out = page.contains("lanes are not drawn");
            let drawn = page.matches("\"label\":").count();
            assert!(drawn <= lanes && drawn > 0, "{drawn} of {lanes} lanes at {limit}");
            assert_eq!(left_out, drawn < whole.matches("\"label\":").count(), "{limit}");
            lanes = drawn;
        }
        assert!(lanes < 120, "the smallest page leaves lanes out, and draws {lanes}");
    }
}
