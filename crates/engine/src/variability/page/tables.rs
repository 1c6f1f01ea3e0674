//! The tables of the page, in the order in which they are shown.

use gpuwhy_report::table::{Cell, ROWS, Row, Table};
use gpuwhy_schema::ClockError;

use super::super::{
    CopySummary, CriticalPath, DeviceSummary, KernelSummary, Launches, Managed, PathName, PathPart,
    Report, SEVERAL_FILES, StreamIdle, notable_in_words,
};
use super::Beside;
use crate::{phase_table, source_file};

/// Bytes of a MB.
const MB: f64 = 1e6;

/// All tables; the first stands before the stalls.
pub fn all(report: &Report, beside: &Beside<'_>) -> Vec<Table> {
    let mut all = vec![devices(report)];
    all.extend(communication(report));
    all.push(phase_table::of(&beside.programs, "the first work of a device", |ns| {
        beside.seconds(ns)
    }));
    all.push(stalls(report));
    if let Some(path) = &report.critical_path {
        all.push(path_parts(path));
        all.push(path_names(path));
    }
    if let Some(launches) = &report.launches {
        all.push(gaps(launches, report.decimals()));
        all.push(idle(launches));
    }
    all.push(copies(&report.copies));
    all.push(kernels(&report.kernels));
    if let Some(managed) = &report.managed {
        all.push(moved(managed, report));
        all.push(waiting_kernels(managed, report));
    }
    if let Some(launches) = &report.launches {
        all.push(ranges(launches));
    }
    all.push(changes(report));
    all.push(files(beside));
    all
}

fn row(cells: Vec<Cell>) -> Row {
    Row { id: None, cells }
}

/// The rows of a list that comes by importance: as many as a page shows, and how many more there are.
fn foremost<T>(all: &[T], row: impl Fn(&T) -> Row) -> Table {
    let left_out = all.len().saturating_sub(ROWS);
    Table { rows: all.iter().take(ROWS).map(row).collect(), left_out, ..Table::default() }
}

fn text(text: impl Into<String>) -> Cell {
    Cell::Text(text.into())
}

fn devices(report: &Report) -> Table {
    let of_device = |of: &DeviceSummary| {
        let exposed_kernels = of.communication.map_or(0.0, |c| of.kernel_s - c.compute_s);
        let waits = of.communication.map_or(0.0, |c| c.exposed_s);
        let peers = waits - exposed_kernels;
        let share = |s: f64| s / report.seconds.max(1e-9);
        let parts = vec![
            ("computing", share(of.kernel_s - exposed_kernels)),
            ("communicating", share(waits)),
            ("copying", share(of.exposed_s - peers)),
            ("idle", share(of.idle_s)),
        ];
        row(vec![
            text(of.device.label()),
            Cell::Parts(parts),
            Cell::Count(of.kernels),
            Cell::thousandths(of.kernel_s),
            Cell::Count(of.copies),
            Cell::thousandths(of.copy_s),
            Cell::thousandths(of.exposed_s),
            Cell::thousandths(of.overlapped_s),
            Cell::or_nothing(of.fault_stall_s),
            Cell::thousandths(of.idle_s),
            match of.rule {
                "too_few" | SEVERAL_FILES => Cell::Nothing,
                _ => Cell::Count(of.anomalous as u64),
            },
            match of.rule {
                "too_few" | SEVERAL_FILES => Cell::Nothing,
                _ => Cell::thousandths(of.fence_ms),
            },
        ])
    };
    let too_few = report.devices.iter().any(|of| of.rule == "too_few");
    Table {
        id: "devices",
        title: "Devices".into(),
        note: "Exposed: a copy ran and no kernel. Idle: neither ran, from the first work of all devices to the \
               last. Anomalous: intervals with more exposed copy than the fence."
            .into(),
        columns: vec![
            "device",
            "shares of the time",
            "kernels",
            "kernels, s",
            "copies",
            "copies, s",
            "exposed, s",
            "beneath kernels, s",
            "kernels wait for managed memory, s",
            "idle, s",
            "anomalous intervals",
            "fence, ms",
        ],
        rows: report.devices.iter().map(of_device).collect(),
        below: match too_few {
            true => vec![format!(
                "{} intervals are too few to compare; choose a shorter --interval.",
                report.intervals
            )],
            false => Vec::new(),
        },
        ..Table::default()
    }
}

fn communication(report: &Report) -> Option<Table> {
    if !report.whole {
        return None;
    }
    let of_device = |of: &DeviceSummary| {
        let found = of.communication?;
        let share = |s: f64| s / found.total_s.max(1e-9);
        Some(row(vec![
            text(of.device.label()),
            Cell::Parts(vec![
                ("communicating", share(found.exposed_s)),
                ("computing", share(found.overlapped_s)),
            ]),
            Cell::thousandths(found.total_s),
            Cell::thousandths(found.exposed_s),
            Cell::Number(100.0 * found.exposed_s / report.seconds.max(1e-9), 1),
            Cell::thousandths(found.overlapped_s),
            Cell::Count(found.kernels),
            Cell::Count(found.peer_copies),
            Cell::thousandths(found.compute_s),
        ]))
    };
    Some(Table {
        id: "communication",
        title: "Communication with other devices: exposed or hidden".into(),
        note: "Kernels of communication libraries, and copies between devices. Exposed: nothing computed \
               meanwhile, so the device waited. Hidden: beneath computing."
            .into(),
        columns: vec![
            "device",
            "exposed and hidden",
            "communication, s",
            "exposed, s",
            "exposed, % of the time",
            "hidden, s",
            "kernels",
            "copies between devices",
            "computing, s",
        ],
        rows: report.devices.iter().filter_map(of_device).collect(),
        ..Table::default()
    })
}

fn stalls(report: &Report) -> Table {
    let mut rows = Vec::new();
    for of in &report.devices {
        for worst in &of.worst {
            let kinds: Vec<String> =
                worst.by_kind.iter().map(|(kind, ms)| format!("{kind} {ms:.3} ms")).collect();
            rows.push(Row {
                id: Some(format!("stall-{}", rows.len() + 1)),
                cells: vec![
                    text(of.device.label()),
                    Cell::Number(worst.from_s, report.decimals()),
                    Cell::Number(worst.to_s, report.decimals()),
                    Cell::thousandths(worst.exposed_ms),
                    Cell::thousandths(worst.beyond_ms),
                    text(kinds.join(", ")),
                ],
            });
        }
    }
    let anomalous: usize = report.devices.iter().map(|of| of.anomalous).sum();
    Table {
        id: "stalls",
        title: "Anomalous intervals".into(),
        note: "The worst of each device; --top says how many of each.".into(),
        columns: vec![
            "device",
            "from, s",
            "to, s",
            "exposed copy, ms",
            "beyond the fence, ms",
            "by kind",
        ],
        left_out: anomalous.saturating_sub(rows.len()),
        rows,
        ..Table::default()
    }
}

fn gaps(launches: &Launches, decimals: usize) -> Table {
    let gap = |(n, of): (usize, &super::super::StreamGap)| Row {
        id: Some(format!("gap-{}", n + 1)),
        cells: vec![
            text(of.stream.clone()),
            Cell::Number(of.from_s, decimals),
            Cell::thousandths(of.ms),
            Cell::thousandths(of.device_idle_ms),
            text(of.why()),
            of.thread.clone().map_or(Cell::Nothing, Cell::Name),
            text(of.did()),
        ],
    };
    Table {
        id: "gaps",
        title: "Longest gaps, and what the host did in them".into(),
        note: "Of each device's busiest stream. The thread is the one that launched what came next; --top says \
               how many gaps."
            .into(),
        columns: vec![
            "stream",
            "from, s",
            "length, ms",
            "device idle, ms",
            "why",
            "thread",
            "what it did meanwhile",
        ],
        rows: launches.gaps.iter().enumerate().map(gap).collect(),
        ..Table::default()
    }
}

fn path_parts(path: &CriticalPath) -> Table {
    let part = |of: &PathPart| {
        row(vec![
            text(of.label),
            Cell::Parts(vec![("computing", of.share)]),
            Cell::thousandths(of.ms),
            Cell::Number(100.0 * of.share, 1),
            Cell::Count(of.pieces),
        ])
    };
    Table {
        id: "critical-path",
        title: "Critical path: what the end waited for".into(),
        note: format!(
            "From {:.3} to {:.3} s, {:.3} ms: {:.1} % of it is {}. A line that took no time would save at most its ms.",
            // Not "-0.000".
            (path.from_s * 1e3).round() / 1e3 + 0.0,
            path.to_s,
            path.ms,
            100.0 * path.bound_share,
            path.bound_label
        ),
        columns: vec!["what", "share", "ms", "%", "pieces"],
        rows: path.parts.iter().map(part).collect(),
        below: path.unsure(),
        ..Table::default()
    }
}

fn path_names(path: &CriticalPath) -> Table {
    let label = |part: &str| path.parts.iter().find(|of| of.part == part).map(|of| of.label);
    let name = |of: &PathName| {
        row(vec![
            Cell::thousandths(of.ms),
            Cell::Number(100.0 * of.share, 1),
            Cell::Count(of.pieces),
            text(label(of.part).unwrap_or(of.part)),
            Cell::Name(of.name.clone()),
        ])
    };
    Table {
        id: "critical-path-names",
        title: "Most of the critical path by name".into(),
        columns: vec!["ms", "%", "pieces", "what", "name"],
        rows: path.names.iter().map(name).collect(),
        ..Table::default()
    }
}

fn idle(launches: &Launches) -> Table {
    let stream = |of: &StreamIdle| {
        let all = of.host_wait_s + of.kernel_wait_s + of.other_s;
        let share = |s: f64| s / all.max(1e-9);
        row(vec![
            text(of.stream.clone()),
            Cell::Parts(vec![
                ("stall", share(of.host_wait_s)),
                ("between", share(of.kernel_wait_s)),
                ("gap", share(of.other_s)),
            ]),
            Cell::thousandths(all),
            Cell::thousandths(of.host_wait_s),
            Cell::thousandths(of.kernel_wait_s),
            Cell::thousandths(of.other_s),
            Cell::Count(of.kernels as u64),
        ])
    };
    Table {
        id: "idle",
        title: "Idle between the work of a stream, and why".into(),
        note: "Host wait: nothing had been launched. Between kernels: the next one was queued already. Other: what \
               was queued waited for something else."
            .into(),
        columns: vec![
            "stream",
            "host wait, between kernels, other",
            "idle, s",
            "host wait, s",
            "between kernels, s",
            "other, s",
            "kernels",
        ],
        rows: launches.idle.iter().map(stream).collect(),
        below: match launches.orphans {
            0 => Vec::new(),
            n => vec![format!("The launches of {n} kernels are not in the trace.")],
        },
        ..Table::default()
    }
}

fn copies(copies: &[CopySummary]) -> Table {
    let kind = |of: &CopySummary| {
        row(vec![
            text(of.kind),
            Cell::thousandths(of.total_ms),
            Cell::Count(of.count),
            Cell::thousandths(of.mean_us),
            Cell::thousandths(of.bytes as f64 / MB),
            Cell::or_nothing(of.gb_per_s()),
        ])
    };
    Table {
        id: "copies",
        title: "Copies and memsets by time".into(),
        columns: vec!["kind", "total, ms", "calls", "mean, µs", "MB", "GB/s"],
        rows: copies.iter().map(kind).collect(),
        ..Table::default()
    }
}

fn kernels(kernels: &[KernelSummary]) -> Table {
    let all: f64 = kernels.iter().map(|k| k.total_ms).sum();
    let kernel = |of: &KernelSummary| {
        row(vec![
            Cell::thousandths(of.total_ms),
            Cell::Number(100.0 * of.total_ms / all.max(1e-9), 1),
            Cell::Count(of.count),
            Cell::thousandths(of.mean_us),
            Cell::thousandths(of.p50_us),
            Cell::thousandths(of.p99_us),
            Cell::thousandths(of.max_us),
            Cell::thousandths(of.std_us),
            Cell::Name(of.name.clone()),
        ])
    };
    let inexact = kernels.iter().take(ROWS).any(|kernel| !kernel.exact);
    Table {
        id: "kernels",
        title: "Kernels by time".into(),
        columns: vec![
            "total, ms",
            "% of all",
            "calls",
            "mean, µs",
            "p50, µs",
            "p99, µs",
            "max, µs",
            "std, µs",
            "name",
        ],
        below: match inexact {
            true => vec!["Quantiles of kernels with many calls are good to 0.4 %.".into()],
            false => Vec::new(),
        },
        ..foremost(kernels, kernel)
    }
}

fn moved(managed: &Managed, report: &Report) -> Table {
    let label = |device: usize| report.devices[device].device.label();
    let mut rows = Vec::new();
    let mut below = Vec::new();
    for of in &managed.devices {
        for moved in &of.moved {
            rows.push(row(vec![
                text(label(of.device)),
                text(moved.cause.replace('_', " ")),
                text(format!("to the {}", moved.to)),
                Cell::thousandths(moved.ms),
                Cell::Count(moved.copies),
                Cell::thousandths(moved.bytes as f64 / MB),
            ]));
        }
        if of.fault_groups > 0 {
            let (faults, groups) = (of.page_faults, of.fault_groups);
            below.push(format!("{}: {faults} page faults in {groups} groups.", label(of.device)));
        }
    }
    below.extend(managed.asked_ahead.map(|asked| match asked {
        true => "The program asks for memory ahead of its use (cudaMemPrefetchAsync).".into(),
        false => "Nothing asked for memory ahead of its use (cudaMemPrefetchAsync).".into(),
    }));
    Table {
        id: "managed",
        title: "Managed memory, by why it moved".into(),
        columns: vec!["device", "why", "where", "ms", "copies", "MB"],
        rows,
        below,
        ..Table::default()
    }
}

fn waiting_kernels(managed: &Managed, report: &Report) -> Table {
    let kernel = |of: &super::super::StalledKernel| {
        row(vec![
            text(report.devices[of.device].device.label()),
            Cell::thousandths(of.stalled_ms),
            Cell::thousandths(of.total_ms),
            Cell::Count(of.kernels),
            Cell::Count(of.page_faults),
            Cell::thousandths(of.bytes as f64 / MB),
            Cell::Name(of.name.clone()),
        ])
    };
    Table {
        id: "managed-kernels",
        title: "Kernels that wait for managed memory".into(),
        columns: vec![
            "device",
            "waits, ms",
            "of all their time, ms",
            "calls",
            "page faults",
            "moved on demand, MB",
            "name",
        ],
        ..foremost(&managed.kernels, kernel)
    }
}

fn ranges(launches: &Launches) -> Table {
    let range = |of: &super::super::RangeWork| {
        row(vec![
            Cell::thousandths(of.device_ms),
            Cell::thousandths(of.own_device_ms),
            Cell::thousandths(of.host_ms),
            Cell::Count(of.ranges),
            Cell::Count(of.kernels),
            Cell::Count(of.copies_and_memsets),
            text(of.lane.clone()),
            Cell::Name(of.name.clone()),
        ])
    };
    Table {
        id: "ranges",
        title: "Named ranges by the device time launched within them".into(),
        columns: vec![
            "on devices, ms",
            "of it in no inner range, ms",
            "on the host, ms",
            "ranges",
            "kernels",
            "copies, memsets",
            "lane",
            "name",
        ],
        ..foremost(&launches.ranges, range)
    }
}

fn changes(report: &Report) -> Table {
    let Some(changes) = &report.changes else { return Table::default() };
    let change = |of: &super::super::Change| {
        let calls = |side: &Option<super::super::Side>| {
            side.as_ref().map_or(Cell::Nothing, |side| Cell::Count(side.count))
        };
        let mean = |side: &Option<super::super::Side>| {
            Cell::or_nothing(side.as_ref().map(|side| side.mean_us))
        };
        row(vec![
            Cell::Signed(of.delta_ms, 3),
            Cell::Signed(of.by_count_ms, 3),
            Cell::Signed(of.by_duration_ms, 3),
            calls(&of.before),
            calls(&of.after),
            mean(&of.before),
            mean(&of.after),
            text(match (of.notable, of.how()) {
                (true, how) if how.is_empty() => "notable".to_owned(),
                (true, how) => format!("notable, {how}"),
                (false, how) => how,
            }),
            text(of.what),
            Cell::Name(of.name.clone()),
        ])
    };
    Table {
        id: "changes",
        title: "Against the other recording".into(),
        note: "+ is time that this recording takes more, - less; of that by the number of calls, and by how long a \
               call takes. Notable: at least 1 % of the time of all kernels and copies. Built otherwise: the \
               other recording has the same kernel with other template arguments, which are listed."
            .into(),
        columns: vec![
            "change, ms",
            "by calls, ms",
            "by duration, ms",
            "calls before",
            "calls now",
            "mean before, µs",
            "mean now, µs",
            "remark",
            "what",
            "name",
        ],
        below: vec![format!("{}.", notable_in_words(changes))],
        ..foremost(changes, change)
    }
}

/// The files of a trace, and how they were made one.
fn files(beside: &Beside<'_>) -> Table {
    let file = |of: &&gpuwhy_schema::Source| {
        let said =
            |value: Option<&str>| value.map_or(Cell::Nothing, |value| Cell::Name(value.into()));
        let differ = match (of.word("error_ns"), ClockError::of(of).ns()) {
            (None, _) => Cell::Nothing,
            (Some(_), Some(ns)) => Cell::thousandths(ns as f64 / 1e3),
            (Some(_), None) => text("not known"),
        };
        row(vec![
            of.word("file").map_or_else(|| text(&*of.kind), |file| Cell::Name(file.into())),
            text(&*of.tool),
            said(of.word("rank")),
            said(source_file::aligned_by(of)),
            differ,
            Cell::Count(of.recorded),
            Cell::Count(of.dropped),
        ])
    };
    // What is not in the trace stands in its own section.
    let lines = beside.rests_on.iter().flat_map(|rests_on| {
        let lost = rests_on.lost.iter().map(|what| format!("lost: {what}"));
        rests_on.text().into_iter().take(1).chain(lost)
    });
    Table {
        id: "files",
        title: "What this rests on".into(),
        note: "Aligned by: what moved the times of several files to one clock. Times of \
               two files may differ by as much as stands beside."
            .into(),
        columns: vec![
            "file",
            "written by",
            "rank",
            "aligned by",
            "times may differ by, µs",
            "rows",
            "rows lost",
        ],
        rows: beside.files.iter().map(file).collect(),
        below: lines.collect(),
        ..Table::default()
    }
}
