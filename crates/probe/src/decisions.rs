//! What policies heard, decided and reached, for people and as JSON.

use gpuwhy_schema::Ns;
use gpuwhy_schema::text::Screen;
use gpuwhy_wire::images::Count;
use serde_json::{Value, json};

use crate::policies::{Decided, Policies, Process};
use crate::show;

/// Why what was asked for was not done, with how often.
fn refused(process: &Process) -> [(&'static str, &'static str, u64); 5] {
    let count = |count| process.exchange.counted(count);
    [
        (
            "not_managed",
            "of memory that is not managed, or not the program's",
            count(Count::NotManaged),
        ),
        ("by_driver", "by the driver", count(Count::ByDriver)),
        ("no_such_advice", "since there is no such advice", count(Count::NoSuchAdvice)),
        ("too_many_rules", "since there were too many rules", count(Count::TooManyRules)),
        ("no_room", "since too much was asked for at once", process.decided.no_room),
    ]
}

fn time(ns: u64) -> Ns {
    Ns(i64::try_from(ns).unwrap_or(i64::MAX))
}

/// Bytes with a unit.
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Each policy, and each process that it was for.
pub(crate) fn show(screen: &mut Screen, policies: &Policies) {
    let processes = policies.processes();
    let how = if policies.dry_run { " (dry run: nothing was done)" } else { "" };
    screen.end().bold(format_args!("gpuwhy probe: policies{how}")).end();
    for program in policies.policy.programs() {
        screen.line(format_args!(
            "  {} (gpu/policy/{}): {}, at most {} eBPF instructions an event",
            program.name,
            program.event.word(),
            program.certificate.effect.word(),
            program.certificate.thread_instructions
        ));
    }
    if processes.is_empty() {
        screen
            .line("  no process allocated memory of a GPU, created a stream or launched a kernel");
    }
    for process in processes.iter() {
        of_process(screen, process);
    }
}

fn of_process(screen: &mut Screen, process: &Process) {
    let [allocations, launches, ticks] = process.events;
    let count = |count| process.exchange.counted(count);
    screen.end().line(format_args!(
        "{} (pid {}): {allocations} allocations made or given back, {launches} launches, {ticks} ticks",
        process.program, process.pid
    ));
    let untold = process.exchange.untold();
    if untold > 0 {
        screen.line(format_args!("  {untold} more came faster than policies run"));
    }
    let Decided { prefetches, prefetch_bytes, advice, delays, priorities, .. } = process.decided;
    screen.line(format_args!(
        "  decided: {prefetches} prefetches ({}), {advice} advice, {delays} rules of delay, {priorities} of priority",
        mib(prefetch_bytes)
    ));
    screen.line(format_args!(
        "  done: {} prefetches ({}), {} advice; {} launches delayed by {} (one by {} at most); {} streams with a priority",
        count(Count::Prefetches),
        mib(count(Count::PrefetchedBytes)),
        count(Count::Advised),
        count(Count::LaunchesDelayed),
        time(count(Count::DelayedNs)),
        time(count(Count::LongestDelayNs)),
        count(Count::StreamsPrioritised)
    ));
    for (_, why, times) in refused(process).into_iter().filter(|(_, _, times)| *times > 0) {
        screen.line(format_args!("  refused: {times} {why}"));
    }
    if count(Count::ByDriver) > 0 {
        screen.line(format_args!(
            "  the driver's last reason: CUresult {}",
            count(Count::DriverCode)
        ));
    }
    for (times, what) in [
        (count(Count::DelaysCut), "launches were to be delayed for longer than one may be"),
        (
            count(Count::DelaysLeftOut),
            "launches were not delayed, since all together had been for as long as they may",
        ),
    ] {
        if times > 0 {
            screen.line(format_args!("  {times} {what}"));
        }
    }
    if let Some(why) = &process.failed {
        screen.line(format_args!("  it was given up: {why}; this is a defect of gpuwhy"));
    }
}

/// The same as JSON.
pub(crate) fn document(policies: &Policies) -> Value {
    let programs: Vec<Value> = policies
        .policy
        .programs()
        .iter()
        .map(|program| {
            json!({
                "name": program.name,
                "event": program.event.word(),
                "effect": program.certificate.effect.word(),
                "instructions": program.certificate.thread_instructions,
            })
        })
        .collect();
    let processes: Vec<Value> = policies.processes().iter().map(process_document).collect();
    json!({ "dry_run": policies.dry_run, "programs": programs, "processes": processes })
}

fn process_document(process: &Process) -> Value {
    let [allocations, launches, ticks] = process.events;
    let count = |count| process.exchange.counted(count);
    let mut reasons: serde_json::Map<String, Value> = refused(process)
        .into_iter()
        .map(|(word, _, times)| (word.to_owned(), json!(times)))
        .collect();
    reasons.insert("driver_code".into(), json!(count(Count::DriverCode)));
    json!({
        "pid": process.pid,
        "program": process.program,
        "complete": process.exchange.is_closed(),
        "events": {
            "allocations": allocations,
            "launches": launches,
            "ticks": ticks,
            "lost": process.exchange.untold(),
        },
        "decided": {
            "prefetches": process.decided.prefetches,
            "prefetch_bytes": process.decided.prefetch_bytes,
            "advice": process.decided.advice,
            "delays": process.decided.delays,
            "priorities": process.decided.priorities,
        },
        "done": {
            "prefetches": count(Count::Prefetches),
            "prefetch_bytes": count(Count::PrefetchedBytes),
            "advice": count(Count::Advised),
            "delays": count(Count::DelayRules),
            "priorities": count(Count::PriorityRules),
            "streams_prioritised": count(Count::StreamsPrioritised),
        },
        "delayed": {
            "launches": count(Count::LaunchesDelayed),
            "total_ns": count(Count::DelayedNs),
            "longest_ns": count(Count::LongestDelayNs),
            "cut": count(Count::DelaysCut),
            "left_out": count(Count::DelaysLeftOut),
        },
        "refused": reasons,
        "failed": process.failed,
        "maps": show::documents(&process.maps()),
    })
}
