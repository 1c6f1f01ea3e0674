//! What scenes of a kernel trace become: events in text, rows in text.

use std::collections::BTreeMap;

use gpuwhy_schema::{Rows, ThreadState, names};

use super::rows::KernelRows;
use gpuwhy_tracepoint::{EventType, RawEvent, Value};

/// Events, a line each: `TIME CPU NAME field=value …`.
fn rows_of(scene: &str) -> Rows {
    let mut kernel = KernelRows::default();
    let source = kernel.lanes.source("test", "tracer", "1", "");
    let host = kernel.host("host", "host", source);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for line in scene.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let (time, cpu, name) =
            (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        let fields: Vec<(&str, &str)> = words.map(|word| word.split_once('=').unwrap()).collect();
        let kind = *kinds.entry(name.into()).or_insert_with(|| {
            let fields = fields.iter().map(|(name, _)| (*name).into()).collect();
            kernel.declare(EventType { name: name.into(), fields }, host)
        });
        let mut event = RawEvent {
            time: time.parse().unwrap(),
            kind,
            cpu: Some(cpu.parse().unwrap()),
            ..RawEvent::default()
        };
        for (_, value) in fields {
            match value.parse::<i64>() {
                Ok(number) => event.values.push(Value::Signed(number)),
                Err(_) => event.push_text(value.as_bytes()),
            }
        }
        kernel.event(&event);
    }
    kernel.finish();
    kernel.take(1.0).into_rows()
}

/// Rows as text, in the order of their times.
fn shown(rows: &Rows) -> String {
    let entities: BTreeMap<_, _> = rows.entity.iter().map(|e| (e.id, e.name.to_string())).collect();
    let tracks: BTreeMap<_, _> = rows.track.iter().map(|t| (t.id, t)).collect();
    let lane = |track| {
        let track = tracks[&track];
        format!("{}/{}", entities[&track.entity], track.name)
    };
    let mut lines = Vec::new();
    for row in &rows.state {
        let value = match &*tracks[&row.track].name {
            names::OCCUPANT => match u32::try_from(row.value).unwrap() {
                0 => "idle".into(),
                id => entities[&gpuwhy_schema::EntityId(id)].clone(),
            },
            _ => ThreadState::from_code(row.value).unwrap().as_str().to_owned(),
        };
        let arg = row.arg.map_or(String::new(), |arg| format!(" arg {arg}"));
        lines.push((row.ts.0, format!("+{} {} {value}{arg}", row.dur.unwrap().0, lane(row.track))));
    }
    for row in &rows.span {
        let dur = row.dur.map_or("…".into(), |dur| dur.0.to_string());
        let io = rows.io.iter().find(|io| io.id == row.id).map_or(String::new(), |io| {
            let issued = io.issued.map(|at| at.0);
            let thread = &entities[&io.thread];
            format!(
                " {} B of {thread}, sector {}, issued {issued:?}, sync {}",
                io.bytes, io.sector, io.sync
            )
        });
        lines.push((row.ts.0, format!("+{dur} {} {}{io}", lane(row.track), row.name)));
    }
    for row in &rows.mark {
        let woken = rows.wakeup.iter().find(|wakeup| wakeup.id == row.id);
        let woken = woken.map_or(String::new(), |wakeup| {
            let waker = wakeup.waker.map_or("nobody", |waker| &entities[&waker]);
            format!(" by {waker} in {} on {}", wakeup.context, wakeup.cpu)
        });
        lines.push((row.ts.0, format!("! {} {}{woken}", lane(row.track), row.name)));
    }
    for row in &rows.counter {
        lines.push((row.ts.0, format!("= {} {}", lane(row.track), row.value)));
    }
    lines.sort();
    let of = |id| {
        let attrs = rows.attr.iter().filter(move |attr| attr.id == id);
        attrs.map(|attr| format!(" {}={}", attr.key, attr.value)).collect::<String>()
    };
    let ids =
        rows.mark.iter().map(|m| (m.id, &m.name)).chain(rows.span.iter().map(|s| (s.id, &s.name)));
    let attrs: Vec<String> = ids
        .filter(|(id, _)| !of(*id).is_empty())
        .map(|(id, name)| format!("{name}:{}", of(id)))
        .collect();
    let lines: Vec<String> = lines.iter().map(|(ts, line)| format!("{ts} {line}")).collect();
    [lines, attrs].concat().join("\n")
}

#[test]
fn a_thread_runs_sleeps_is_woken_waits_for_its_cpu_and_runs() {
    let rows = rows_of(
        "100 0 sched_switch prev_comm=swapper/0 prev_tid=0 prev_state=0 next_comm=work next_tid=7
         150 0 sched_switch prev_comm=work prev_tid=7 prev_state=1 next_comm=hog next_tid=8
         170 1 sched_switch prev_comm=swapper/1 prev_tid=0 prev_state=0 next_comm=waker next_tid=9
         180 1 sched_waking comm=work tid=7 target_cpu=0
         181 1 sched_wakeup comm=work tid=7 target_cpu=0
         200 0 sched_switch prev_comm=hog prev_tid=8 prev_state=0 next_comm=work next_tid=7
         240 0 sched_switch prev_comm=work prev_tid=7 prev_state=2 next_comm=hog next_tid=8",
    );
    insta::assert_snapshot!(shown(&rows));
}

#[test]
fn who_an_interrupt_borrowed_is_no_waker_and_its_time_is_a_span_and_a_sum() {
    let rows = rows_of(
        "0 0 sched_switch prev_comm=a prev_tid=5 prev_state=1 next_comm=victim next_tid=6
         100 0 irq_handler_entry irq=26 name=ahci
         110 0 sched_waking comm=a tid=5 target_cpu=0
         130 0 irq_handler_exit irq=26 ret=1
         131 0 irq_softirq_entry vec=3
         140 0 sched_wakeup comm=b pid=4 target_cpu=0
         161 0 irq_softirq_exit vec=3",
    );
    insta::assert_snapshot!(shown(&rows));
}

#[test]
fn block_requests_are_of_who_queued_them_and_tell_disk_waits_from_others() {
    let rows = rows_of(
        "0 2 sched_switch prev_comm=x prev_tid=1 prev_state=1 next_comm=db next_tid=50
         10 2 block_rq_insert dev=8388608 sector=2048 nr_sector=8 bytes=0 rwbs=36 tid=50
         20 2 sched_switch prev_comm=db prev_tid=50 prev_state=2 next_comm=kworker next_tid=60
         30 2 block_rq_issue dev=8388608 sector=2048 nr_sector=8 bytes=0 rwbs=36 tid=60
         90 2 block_rq_complete dev=8388608 sector=2048 nr_sector=8 rwbs=36
         95 2 block_rq_complete dev=8388608 sector=4096 nr_sector=8 rwbs=36
         100 2 sched_wakeup comm=db tid=50 target_cpu=2",
    );
    insta::assert_snapshot!(shown(&rows));
}

#[test]
fn system_calls_are_spans_and_everything_else_is_a_mark_with_its_fields() {
    let rows = rows_of(
        "0 0 sched_switch prev_comm=x prev_tid=0 prev_state=0 next_comm=sh next_tid=70
         5 0 syscall_entry_open filename=/etc/passwd flags=0
         25 0 syscall_exit_open ret=3
         30 0 my_app:sched_switch step=4
         40 0 syscall_entry_read fd=3
         45 2 sched_switch prev_comm=x prev_tid=0 prev_state=0 next_comm=child next_tid=71
         46 2 syscall_entry_exit error_code=1
         48 2 sched_switch prev_comm=child prev_tid=71 prev_state=64 next_comm=x next_tid=0
         50 1 kvm_entry vcpu_id=1
         60 0 net_dev_queue skbaddr=1 len=1500 name=eth0",
    );
    insta::assert_snapshot!(shown(&rows));
}

#[test]
fn a_clock_that_goes_back_moves_no_state_back() {
    let rows = rows_of(
        "100 0 sched_switch prev_comm=x prev_tid=0 prev_state=0 next_comm=a next_tid=1
         120 0 irq_handler_entry irq=1 name=n
         110 0 irq_handler_exit irq=1 ret=1
         115 0 sched_switch prev_comm=a prev_tid=1 prev_state=1 next_comm=b next_tid=2
         130 0 other x=1
         125 0 other x=2",
    );
    insta::assert_snapshot!(shown(&rows));
}
