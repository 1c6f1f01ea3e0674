//! Tracepoints that a user names, live.

use std::process::Command;
use std::time::Duration;

use gpuwhy_collect::{CollectError, Config, EventPattern, Recorder};
use gpuwhy_schema::{EntityKind, Mark, Rows, SourceState};

/// A recording of nothing but these tracepoints.
fn recorder(patterns: &[&str]) -> Result<Recorder, CollectError> {
    let kernel_events: Option<Vec<EventPattern>> =
        Some(patterns.iter().map(|pattern| pattern.parse().unwrap()).collect());
    Recorder::start(Config { kernel_events, ..Config::only(&["kernel_events"]) })
}

/// Whether this process may load programs and read tracefs; says why not.
fn may_record() -> bool {
    let events = "/sys/kernel/tracing/events";
    let may = std::fs::read_dir(events).is_ok();
    if !may {
        println!("skipped: `{events}` cannot be read");
    }
    may
}

#[test]
fn root_named_tracepoints_are_marks_of_their_threads_with_their_fields() {
    if !may_record() {
        return;
    }
    let mut recorder = recorder(&["sched:sched_process_exec", "task:*"]).unwrap();
    let mut rows = recorder.poll(Duration::from_millis(10)).unwrap();
    let mut children = Vec::new();
    for _ in 0..20 {
        let mut child = Command::new("/bin/true").spawn().unwrap();
        children.push(child.id());
        assert!(child.wait().unwrap().success());
    }
    for _ in 0..20 {
        rows.append(&mut recorder.poll(Duration::from_millis(10)).unwrap());
    }
    rows.append(&mut recorder.finish());
    let source = rows.source.iter().rev().find(|s| &*s.kind == "bpf:kernel_events").unwrap();
    assert_eq!((source.state, source.dropped), (SourceState::Ok, 0), "{source:?}");
    let of = |name: &str| -> Vec<&Mark> { rows.mark.iter().filter(|m| &*m.name == name).collect() };
    let executed = of("sched_process_exec");
    for child in &children {
        let own = executed.iter().find(|mark| field(&rows, mark, "pid") == child.to_string());
        let own = own.unwrap_or_else(|| panic!("{child} is not among {} marks", executed.len()));
        assert_eq!(field(&rows, own, "filename"), "/bin/true", "a text elsewhere in the record");
        let thread = rows.entity.iter().rev().find(|e| e.id == owner(&rows, own)).unwrap();
        assert_eq!((thread.kind, thread.number), (EntityKind::Thread, Some((*child).into())));
        // Who made it: this test, of which the fields name the child.
        let made = of("task_newtask").into_iter();
        let made = made.filter(|mark| field(&rows, mark, "pid") == child.to_string()).count();
        assert_eq!(made, 1);
    }
    let times: Vec<_> = executed.iter().map(|mark| mark.ts).collect();
    assert!(times.is_sorted(), "{times:?}");
}

fn owner(rows: &Rows, mark: &Mark) -> gpuwhy_schema::EntityId {
    rows.track.iter().find(|track| track.id == mark.track).unwrap().entity
}

fn field(rows: &Rows, mark: &Mark, key: &str) -> String {
    let found = rows.attr.iter().find(|attr| attr.id == mark.id && &*attr.key == key);
    found.map(|attr| attr.value.to_string()).unwrap_or_default()
}

/// Tracepoints that interrupts come to, of which some happen while nobody runs.
#[test]
fn root_events_of_interrupts_on_an_idle_cpu_are_marks_of_the_cpu() {
    if !may_record() {
        return;
    }
    let mut recorder =
        recorder(&["irq:softirq_entry", "sched:sched_wakeup", "timer:timer_*"]).unwrap();
    let mut rows = Rows::default();
    for _ in 0..50 {
        rows.append(&mut recorder.poll(Duration::from_millis(10)).unwrap());
    }
    rows.append(&mut recorder.finish());
    let source = rows.source.iter().rev().find(|s| &*s.kind == "bpf:kernel_events").unwrap();
    assert_eq!(source.recorded, rows.mark.len() as u64, "{source:?}");
    let on_cpus: Vec<_> = rows.entity.iter().filter(|e| e.kind == EntityKind::Cpu).collect();
    let by_nobody = |mark: &&Mark| on_cpus.iter().any(|cpu| cpu.id == owner(&rows, mark));
    assert!(rows.mark.iter().any(|mark| by_nobody(&mark)), "an idle CPU's softirqs");
    let vectors = rows.mark.iter().filter(|mark| &*mark.name == "softirq_entry");
    assert!(vectors.clone().count() > 0);
    assert!(vectors.take(100).all(|mark| field(&rows, mark, "vec").parse::<u32>().is_ok()));
}

#[test]
fn root_a_tracepoint_that_there_is_not_is_an_error_that_names_it() {
    if !may_record() {
        return;
    }
    let refused = |pattern: &str| recorder(&[pattern]).err().unwrap().to_string();
    let said = refused("nobody:has_this");
    assert!(said.contains("no tracepoint like `nobody:has_this`"), "{said}");
    // What ftrace writes itself is listed among tracepoints.
    let said = refused("ftrace:print");
    assert!(said.contains("no tracepoint like `ftrace:print`"), "{said}");
    let said = refused("*:*");
    assert!(said.contains("more than 256"), "{said}");
}
