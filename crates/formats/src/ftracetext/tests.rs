//! Lines as the tools print them, and what becomes of them.

use super::fields::{Fields, Layout};
use super::line::{self, Time, What};
use gpuwhy_tracepoint::RawEvent;

/// A line in short: `comm tid pid cpu time name | text`.
fn short(text: &str) -> String {
    let Some(line) = line::parse(text.as_bytes()) else { return "none".into() };
    let time = match line.time {
        Time::Ns(time) => time.to_string(),
        other => format!("{other:?}"),
    };
    let what = match line.what {
        What::Event { name, text: rest } => format!("{} | {}", &text[name], &text[rest]),
        What::Enter { call, text: rest } => format!("enter {} | {}", &text[call], &text[rest]),
        What::Exit { call, text: rest } => format!("exit {} | {}", &text[call], &text[rest]),
        other => format!("{other:?}"),
    };
    let number = |n: Option<i64>| n.map_or("-".into(), |n| n.to_string());
    let (tid, pid) = (number(line.tid), number(line.pid));
    format!("{:?} {tid} {pid} {} {time} {what}", &text[line.comm], line.cpu)
}

#[test]
fn lines_of_all_tools_and_ages_are_taken_apart() {
    let lines = [
        // The kernel: with and without flags, with processes, with a name that holds what separates.
        "          <idle>-0       [001] d.h4.   123.456789: sched_waking: comm=a pid=1",
        "            bash-1977    [000] 17284.993652: irq_handler_entry: irq=17 name=ahci",
        "           <...>-25475   (-------) [003] ....1   630659.115986: sched_process_exit: comm=x",
        "   Web Content-7  -1234    (  1200) [003] dN.2.   1.000000001: x:",
        "            bash-1977    [000] .....   1.5: sys_read(fd: 3, buf: 7ffd, count: 10)",
        "            bash-1977    [000] .....   1.5: sys_read -> 0x10",
        "            bash-1977    [000] .....   1.5: do_sys_open <-sys_open",
        "            bash-1977    [000] .....   1234567890123: sched_waking: comm=a pid=1",
        "            bash-1977    [000] .....   99999999999.0: sched_waking: comm=a pid=1",
        // trace-cmd, and perf with and without processes.
        "           steam-25475 [003] 630659.115986157: sched_switch:         steam:25475 [120] S ==> a",
        "swapper     0 [002]  1234.567890:          sched:sched_switch: prev_comm=swapper/2 prev_pid=0",
        "my prog 99/101 [002]  1234.567890:       1 kvm:kvm_entry: vcpu 0, rip 0x1",
        ":-1    -1 [000]     1.000000: sched:sched_switch: a=1",
        // No events.
        "# tracer: nop",
        "Error [5] 1.0: message",
        "2026-11-24 [000] 10.5: a log",
        " 0)   0.633 us    |  _raw_spin_lock();",
        "x-1 [000] 1.0.0: a: b",
        "[000] 1.0: a: b",
        "x-1 [000000000000] 1.0: a: b",
        "x-99999999999999999999 [000] 1.0: a: b",
    ];
    insta::assert_snapshot!(
        lines.iter().map(|line| format!("{line}\n    {}\n", short(line))).collect::<String>()
    );
}

#[test]
fn lost_events_are_said_in_the_kernels_way_and_in_that_of_trace_cmd() {
    for (line, count) in [
        ("CPU:3 [LOST 12 EVENTS]", Some(12)),
        ("  CPU:0 [17 EVENTS DROPPED]\n", Some(17)),
        ("CPU:0 [LOST EVENTS]", Some(0)),
        ("CPU:0 [EVENTS DROPPED]", Some(0)),
        ("CPU:0 [LOST MANY EVENTS]", None),
        ("CPU:x [LOST 1 EVENTS]", None),
        ("CPU 2 is empty", None),
    ] {
        assert_eq!(line::lost(line.as_bytes()), count, "{line}");
    }
    let head = |rest: &str| line::overwritten(format!("# entries-in-buffer/{rest}").as_bytes());
    assert_eq!(head("entries-written: 140080/250280   #P:4"), Some(110_200));
    assert_eq!(head("entries-written: 9/5   #P:4"), Some(0));
    assert_eq!(head("entries-written: many"), None);
}

/// The fields of an event's text: `name=value`.
fn fields(event: &str, text: &str) -> String {
    let (mut fields, mut raw) = (Fields::default(), RawEvent::default());
    let mut layout = Layout::default();
    fields.read(event, text.as_bytes(), &mut layout, &mut raw);
    assert_eq!(layout.names().len(), raw.values.len());
    let shown = |place: usize| match &raw.values[place] {
        gpuwhy_tracepoint::Value::Text(_) => format!("{:?}", raw.shown(place).unwrap()),
        _ => raw.shown(place).unwrap_or("absent".into()),
    };
    let all = layout.names().iter().enumerate();
    all.map(|(place, name)| format!("{name}={}", shown(place))).collect::<Vec<_>>().join(" ")
}

#[test]
fn fields_are_read_as_the_kernel_and_the_tools_print_them() {
    let texts = [
        (
            "sched_switch",
            "prev_comm=a b prev_pid=1 prev_prio=120 prev_state=R+ ==> next_comm=c next_pid=2 next_prio=120",
        ),
        ("sched_switch", "steam:25475 [120] S ==> swapper/3:0 [120]"),
        // Names that would be other fields.
        (
            "sched_switch",
            "prev_comm=x prev_pid=7 prev_pid=1 prev_prio=120 prev_state=D ==> next_comm=y next_pid=9 next_pid=2 next_prio=120",
        ),
        ("sched_waking", "comm=x pid=9 pid=1 prio=120 target_cpu=003"),
        ("sched_wakeup", "kworker/u8:2:123 [120] success=1 CPU:003"),
        ("sched_wakeup", "a:1 [120] CPU:000"),
        ("sched_process_fork", "comm=a pid=1 child_comm=x pid=4 child_pid=5"),
        ("task_rename", "pid=3 oldcomm=a newcomm=b c oom_score_adj=-5"),
        ("irq_handler_exit", "irq=17 ret=handled"),
        ("softirq_entry", "vec=1 [action=TIMER]"),
        ("block_rq_issue", "8,16 WS 4096 () 1234 + 8 [kworker/0:1]"),
        ("block_rq_issue", "259,0 R 4096 () 1234 + 8 none,0,0 [fio]"),
        ("block_rq_complete", "8,16 WS () 1234 + 8 [0]"),
        ("net_dev_queue", "dev=eth0 skbaddr=ffff8881f1d3b400 len=90"),
        ("sys_enter", "NR 0 (3, 7ffd, 10, 0, 0, 0)"),
        ("sys_exit", "NR 0 = -11"),
        ("sys_exit_read", "0xfffffffffffffff5"),
        ("sys_enter_read", "fd: 0x00000003, buf: 0x7ffd, count: 0x10"),
        (
            "amdgpu_cs_ioctl",
            "sched_job=3489726, timeline=gfx, context=4929, seqno=3200, ring_name=ffff91cb1ab1bdd0, num_ibs=1",
        ),
        ("i915_request_in", "dev=0, engine=2:1, hw_id=4, ctx=17, seqno=9, prio=0, port=1"),
        ("i915_request_out", "dev=0, engine=0:0, ctx=17, seqno=9, completed?=1"),
        ("i915_gem_object_create", "obj=00000000d1a5b1f0, size=0x1000"),
        (
            "drm_sched_job",
            "entity=00000000d1a5b1f0, id=3, fence=000000001234abcd, ring=gfx, job count:0, hw job count:1",
        ),
        (
            "drm_sched_job_run",
            "dev=0000:03:00.0, fence=8:2, ring=gfx_0.0.0, job count:0, hw job count:1, client_id:13",
        ),
        ("drm_sched_job_done", "fence=8:2 signaled"),
        ("drm_sched_job_add_dep", "fence=8:2 depends on fence=7:1"),
        ("kvm_entry", "vcpu 1, rip 0xffffffff81234567"),
        ("kvm_exit", "reason HLT rip 0xffffffff81234567 info 0 0"),
        ("kvm_exit", "vcpu 0 reason EPT_VIOLATION rip 0x10 info1 0x181 info2 0x0"),
        ("tracing_mark_write", "B|123|a=b"),
        ("print", "0xffffffffabf5a467: [Compositor] a=b"),
        ("cpu_idle", "state=4294967295 cpu_id=2"),
        ("clock_set_rate", "some_clock state=19200000 cpu_id=0"),
        ("made_up", "a=1 a=2 b= c=0x d=-5 e=18446744073709551616 f=1.5 1=2 g==h"),
        ("empty", ""),
    ];
    insta::assert_snapshot!(
        texts
            .iter()
            .map(|(event, text)| format!("{event}: {}\n", fields(event, text)))
            .collect::<String>()
    );
}

#[test]
fn an_event_is_of_the_type_of_the_one_before_while_its_fields_are_the_same() {
    let (mut fields, mut layout) = (Fields::default(), Layout::default());
    let mut kinds = 0;
    let mut read = |text: &str| {
        let mut raw = RawEvent::default();
        fields.read("made_up", text.as_bytes(), &mut layout, &mut raw);
        let names: Vec<&str> = layout.names().iter().map(|name| &**name).collect();
        let (is_new, names) = (layout.kind.is_none(), names.join(" "));
        kinds += usize::from(is_new);
        layout.kind = Some(kinds);
        (is_new, names)
    };
    assert_eq!(read("a=1 b=2"), (true, "a b".into()));
    assert_eq!(read("a=3 b=4"), (false, "a b".into()));
    assert_eq!(read("a=3"), (true, "a".into()));
    assert_eq!(read("a=3 b=4 c=5"), (true, "a b c".into()));
    assert_eq!(read("a=3 x=4 c=5"), (true, "a x c".into()));
    assert_eq!(read("a=0 x=0 c=0"), (false, "a x c".into()));
    assert_eq!(read("words"), (true, "text".into()));
    assert_eq!(read(""), (true, String::new()));
    assert_eq!(read(""), (false, String::new()));
}

#[test]
fn every_pattern_is_a_regular_expression() {
    assert_eq!(super::fields::compiled(), super::fields::PATTERNS.len());
}
