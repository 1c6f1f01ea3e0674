//! The pictures and tables of a comparison of two runs.

use gpuwhy_report::pairs::{Kind, Pair, Pairs, Part as Drawn};
use gpuwhy_report::table::{Cell, Row, Table};

use super::{Comparison, LatencyChange, Part, PartChange};

/// Both runs of each tenant as bars: a request, and the time for the same requests.
pub(in crate::vgpu) fn pairs(of: &Comparison) -> Vec<Pairs> {
    let mut others = Vec::new();
    let (mut latencies, mut works) = (Vec::new(), Vec::new());
    for one in &of.tenants {
        for engine in &one.engines {
            let name = format!("{} on {}: a request, on average", one.name, engine.engine);
            latencies.push(Pair { name, parts: drawn(&engine.parts, &mut others) });
        }
        if let Some(work) = &one.work {
            let name = format!("{}: {} requests", one.name, work.requests.run);
            works.push(Pair { name, parts: drawn(&work.parts, &mut others) });
        }
    }
    let scale = "In each pair the longer bar fills the width; pairs differ in their scale.";
    vec![
        Pairs {
            id: "latency-bars",
            title: "A request in both runs",
            note: format!("From when the host first heard of a request to its end. {scale}"),
            pairs: latencies,
        },
        Pairs {
            id: "work-bars",
            title: "The same number of requests in both runs",
            note: format!(
                "From the first request to the last end; the base is scaled to the run's number of requests. {scale}"
            ),
            pairs: works,
        },
    ]
}

/// Parts as bars have them; each other tenant keeps its look.
fn drawn(parts: &[PartChange], others: &mut Vec<String>) -> Vec<Drawn> {
    let mut kind = |part: &Part| match part {
        Part::Execution => Kind::Own,
        Part::OwnPredecessor => Kind::Predecessor,
        Part::ReservedIdle => Kind::Idle,
        Part::Dependency => Kind::Dependency,
        Part::Host => Kind::Host,
        Part::Guest => Kind::Nothing,
        Part::OtherTenant(who) => {
            let known = others.iter().position(|one| one == who);
            Kind::Other(known.unwrap_or_else(|| {
                others.push(who.clone());
                others.len() - 1
            }))
        }
    };
    let of = |one: &PartChange| Drawn {
        kind: kind(&one.part),
        label: one.part.label(),
        base_ms: one.base_ms,
        run_ms: one.run_ms,
    };
    parts.iter().map(of).collect()
}

/// The tables behind the bars, and who had the engines.
pub(in crate::vgpu) fn tables(of: &Comparison) -> Vec<Table> {
    vec![latencies(of), quantiles(of), parts(of), works(of), uses(of)]
}

fn row(cells: Vec<Cell>) -> Row {
    Row { id: None, cells }
}

fn name(text: &str) -> Cell {
    Cell::Name(text.to_owned())
}

fn changed(of: Option<bool>) -> Cell {
    Cell::Text(of.map_or("too few to say", |changed| if changed { "yes" } else { "no" }).to_owned())
}

/// Rows of a table, one for each tenant and engine.
fn by_engine(of: &Comparison, cells: impl Fn(&LatencyChange) -> Vec<Cell>) -> Vec<Row> {
    let mut rows = Vec::new();
    for one in &of.tenants {
        for engine in &one.engines {
            let mut all = vec![name(&one.name), name(&engine.engine)];
            all.extend(cells(engine));
            rows.push(row(all));
        }
    }
    rows
}

fn latencies(of: &Comparison) -> Table {
    let cells = |one: &LatencyChange| {
        vec![
            Cell::Count(one.requests.base as u64),
            Cell::Count(one.requests.run as u64),
            Cell::Number(one.requests_per_s.base, 2),
            Cell::Number(one.requests_per_s.run, 2),
            Cell::thousandths(one.latency.base.mean),
            Cell::thousandths(one.latency.run.mean),
            one.change_ms.map_or(Cell::Nothing, |ms| Cell::Signed(ms, 3)),
            Cell::or_nothing(one.noise_ms),
            changed(one.changed),
        ]
    };
    Table {
        id: "latency-changes",
        title: "Latency in both runs".into(),
        note: "A change counts if it is more than may be chance and over 1 %, or if one of its parts changed by more than \
               may be chance and over 10 % of the base's mean."
            .into(),
        columns: vec![
            "tenant",
            "engine",
            "requests, base",
            "requests, run",
            "a second, base",
            "a second, run",
            "base, ms",
            "run, ms",
            "change, ms",
            "may be chance, ms",
            "changed",
        ],
        rows: by_engine(of, cells),
        ..Table::default()
    }
}

fn quantiles(of: &Comparison) -> Table {
    let cells = |one: &LatencyChange| {
        let (latency, execution) = (one.latency, one.execution);
        vec![
            Cell::thousandths(latency.base.p50),
            Cell::thousandths(latency.run.p50),
            Cell::thousandths(latency.base.p99),
            Cell::thousandths(latency.run.p99),
            Cell::thousandths(latency.base.max),
            Cell::thousandths(latency.run.max),
            Cell::thousandths(execution.base.mean),
            Cell::thousandths(execution.run.mean),
        ]
    };
    Table {
        id: "latency-quantiles",
        title: "Quantiles of latency and mean execution in both runs".into(),
        columns: vec![
            "tenant",
            "engine",
            "p50, base, ms",
            "p50, run, ms",
            "p99, base, ms",
            "p99, run, ms",
            "most, base, ms",
            "most, run, ms",
            "execution, base, ms",
            "execution, run, ms",
        ],
        rows: by_engine(of, cells),
        ..Table::default()
    }
}

fn parts(of: &Comparison) -> Table {
    let mut rows = Vec::new();
    for one in &of.tenants {
        for engine in &one.engines {
            for part in &engine.parts {
                rows.push(row(vec![
                    name(&one.name),
                    name(&engine.engine),
                    name(&part.part.label()),
                    Cell::thousandths(part.base_ms),
                    Cell::thousandths(part.run_ms),
                    Cell::Signed(part.change_ms, 3),
                    Cell::or_nothing(part.noise_ms),
                ]));
            }
        }
    }
    Table {
        id: "latency-parts",
        title: "Parts of a request in both runs".into(),
        note: "The parts of a tenant's requests to an engine sum to their mean latency.".into(),
        columns: vec![
            "tenant",
            "engine",
            "part",
            "base, ms",
            "run, ms",
            "change, ms",
            "may be chance, ms",
        ],
        rows,
        ..Table::default()
    }
}

fn works(of: &Comparison) -> Table {
    let mut rows = Vec::new();
    let works = of.tenants.iter().filter_map(|one| one.work.as_ref().map(|work| (one, work)));
    for (one, work) in works {
        let number = (work.requests.run as f64 - work.requests.base as f64).abs();
        if number > 0.0 {
            rows.push(row(vec![
                name(&one.name),
                name("more or fewer requests"),
                Cell::Nothing,
                Cell::Nothing,
                Cell::Signed(work.by_requests_s * 1e3, 3),
            ]));
        }
        for part in &work.parts {
            rows.push(row(vec![
                name(&one.name),
                name(&part.part.label()),
                Cell::thousandths(part.base_ms),
                Cell::thousandths(part.run_ms),
                Cell::Signed(part.change_ms, 3),
            ]));
        }
    }
    Table {
        id: "work-parts",
        title: "The time of tenants in both runs".into(),
        note: "From the first request to the last end; the base is scaled to the run's number of requests. The changes \
               of a tenant sum to the change of its time."
            .into(),
        columns: vec!["tenant", "part", "base's pace, ms", "run, ms", "change, ms"],
        rows,
        ..Table::default()
    }
}

fn uses(of: &Comparison) -> Table {
    let of_one = |one: &super::UseChange| {
        row(vec![
            name(&one.engine),
            name(&one.tenant),
            Cell::Number(one.used_percent.base, 2),
            Cell::Number(one.used_percent.run, 2),
            Cell::Signed(one.change, 2),
            Cell::Signed(one.by_requests, 2),
            Cell::Signed(one.by_length, 2),
            Cell::Signed(one.rest, 2),
        ])
    };
    Table {
        id: "use-changes",
        title: "Who had the engines in both runs".into(),
        note: "The rest is of requests that began or ended outside of the windows.".into(),
        columns: vec![
            "engine",
            "tenant",
            "base, %",
            "run, %",
            "change, points",
            "by their number",
            "by their length",
            "rest",
        ],
        rows: of.uses.iter().map(of_one).collect(),
        ..Table::default()
    }
}
