//! What a type of event means for the state of a system, by its name and fields.
//!
//! # How
//! The kernel's tracepoints are known by name; tracers spell fields their own way (`next_tid` of LTTng is `next_pid`
//! of ftrace and perf), and LTTng puts `irq_` before the names of softirqs. The places of the fields are looked up
//! once a type.

use gpuwhy_schema::Name;

use gpuwhy_tracepoint::EventType;

/// The place of a field among the values of an event.
pub(super) type Place = Option<usize>;

/// What an event does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Another thread gets a CPU.
    Switch { prev: Place, prev_comm: Place, prev_state: Place, next: Place, next_comm: Place },
    /// A thread is woken.
    Wake { tid: Place, comm: Place },
    /// A thread begins.
    Fork { tid: Place, pid: Place, comm: Place },
    /// A thread gets another name.
    Rename { tid: Place, comm: Place },
    /// A thread ends.
    Exit { tid: Place },
    /// What LTTng says of the threads that there were when it began.
    Known { tid: Place, pid: Place, comm: Place },
    /// An interrupt handler begins or ends.
    Hardirq { begins: bool, irq: Place, name: Place },
    /// A softirq begins or ends.
    Softirq { begins: bool, vector: Place },
    /// A block request.
    Block { stage: Stage, dev: Place, sector: Place, sectors: Place, op: Place, tid: Place },
    /// A packet is queued to a network device.
    Transmit { device: Place, length: Place },
    /// A system call begins.
    Enter { call: Name },
    /// The same, with the number of the call alone.
    EnterNumber { id: Place },
    /// A system call returns.
    Return { result: Place },
    /// Something else.
    Other,
}

/// How far a block request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It was put into the queue of its device.
    Queued,
    /// It was given to the device.
    Issued,
    /// The device is done with it.
    Completed,
}

/// The systems whose tracepoints are known; LTTng names none.
const SYSTEMS: &[&str] = &["sched", "irq", "block", "net", "syscalls", "task", "raw_syscalls"];

/// What events of a type do.
pub(super) fn action(kind: &EventType) -> Action {
    let (system, name) = kind.name.rsplit_once(':').unwrap_or(("", &kind.name));
    if !system.is_empty() && !SYSTEMS.contains(&system) {
        return Action::Other;
    }
    let at = |names: &[&str]| kind.field(names);
    let block = |stage| Action::Block {
        stage,
        dev: at(&["dev"]),
        sector: at(&["sector"]),
        sectors: at(&["nr_sector"]),
        op: at(&["rwbs"]),
        tid: at(&["tid"]),
    };
    let hardirq = |begins| Action::Hardirq { begins, irq: at(&["irq"]), name: at(&["name"]) };
    let softirq = |begins| Action::Softirq { begins, vector: at(&["vec"]) };
    match name {
        "sched_switch" => Action::Switch {
            prev: at(&["prev_tid", "prev_pid"]),
            prev_comm: at(&["prev_comm"]),
            prev_state: at(&["prev_state"]),
            next: at(&["next_tid", "next_pid"]),
            next_comm: at(&["next_comm"]),
        },
        "sched_wakeup" | "sched_waking" | "sched_wakeup_new" => {
            Action::Wake { tid: at(&["tid", "pid"]), comm: at(&["comm"]) }
        }
        "sched_process_fork" => Action::Fork {
            tid: at(&["child_tid", "child_pid"]),
            // Without a `child_tid`, `child_pid` is the thread.
            pid: at(&["child_tid"]).and(at(&["child_pid"])),
            comm: at(&["child_comm"]),
        },
        "task_rename" => Action::Rename { tid: at(&["tid", "pid"]), comm: at(&["newcomm"]) },
        "sched_process_exit" => Action::Exit { tid: at(&["tid", "pid"]) },
        "lttng_statedump_process_state" => {
            Action::Known { tid: at(&["tid"]), pid: at(&["pid"]), comm: at(&["name"]) }
        }
        "irq_handler_entry" => hardirq(true),
        "irq_handler_exit" => hardirq(false),
        "softirq_entry" | "irq_softirq_entry" => softirq(true),
        "softirq_exit" | "irq_softirq_exit" => softirq(false),
        "block_rq_insert" => block(Stage::Queued),
        "block_rq_issue" => block(Stage::Issued),
        "block_rq_complete" => block(Stage::Completed),
        // Its text calls the device `dev`.
        "net_dev_queue" => Action::Transmit { device: at(&["name", "dev"]), length: at(&["len"]) },
        // Of `raw_syscalls`; a call of its own has no number.
        "sys_enter" if at(&["id"]).is_some() => Action::EnterNumber { id: at(&["id"]) },
        "sys_exit" if at(&["id"]).is_some() => Action::Return { result: at(&["ret"]) },
        "exit_syscall" => Action::Return { result: at(&["ret"]) },
        _ => call(name, &at),
    }
}

/// A system call begins or returns: `syscall_entry_open` and `syscall_exit_open` of LTTng, `sys_open` of old ones,
/// `sys_enter_open` and `sys_exit_open` of the kernel.
fn call(name: &str, at: &dyn Fn(&[&str]) -> Place) -> Action {
    let rest = |prefixes: &[&str]| prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
    if rest(&["syscall_exit_", "sys_exit_", "compat_syscall_exit_"]).is_some() {
        return Action::Return { result: at(&["ret"]) };
    }
    let begins = ["syscall_entry_", "compat_syscall_entry_", "sys_enter_", "compat_sys_", "sys_"];
    match rest(&begins) {
        Some(call) if !call.is_empty() => Action::Enter { call: call.into() },
        _ => Action::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, fields: &[&str]) -> Action {
        let fields = fields.iter().map(|field| (*field).into()).collect();
        action(&EventType { name: name.into(), fields })
    }

    #[test]
    fn spellings_of_all_tracers_mean_the_same() {
        let ftrace = ["prev_comm", "prev_pid", "prev_prio", "prev_state", "next_comm", "next_pid"];
        let lttng = ["prev_comm", "prev_tid", "prev_prio", "prev_state", "next_comm", "next_tid"];
        let switch = Action::Switch {
            prev: Some(1),
            prev_comm: Some(0),
            prev_state: Some(3),
            next: Some(5),
            next_comm: Some(4),
        };
        assert_eq!(of("sched:sched_switch", &ftrace), switch);
        assert_eq!(of("sched_switch", &lttng), switch);
        // The process of a new thread is in the event of LTTng alone.
        let fork = |pid| Action::Fork { tid: Some(0), pid, comm: None };
        assert_eq!(of("sched_process_fork", &["child_tid", "child_pid"]), fork(Some(1)));
        assert_eq!(of("sched_process_fork", &["child_pid"]), fork(None));
        for name in ["syscall_entry_open", "sys_open", "syscalls:sys_enter_open"] {
            assert_eq!(of(name, &[]), Action::Enter { call: "open".into() }, "{name}");
        }
        for name in ["syscall_exit_open", "exit_syscall", "syscalls:sys_exit_open"] {
            assert_eq!(of(name, &["ret"]), Action::Return { result: Some(0) }, "{name}");
        }
        // Of `raw_syscalls`, and the call `exit` of old kernels.
        let id = ["id", "ret"];
        assert_eq!(of("raw_syscalls:sys_enter", &id), Action::EnterNumber { id: Some(0) });
        assert_eq!(of("raw_syscalls:sys_exit", &id), Action::Return { result: Some(1) });
        assert_eq!(of("sys_exit", &["error_code"]), Action::Enter { call: "exit".into() });
        // A program may name its events as it likes.
        assert_eq!(of("my_app:sched_switch", &lttng), Action::Other);
    }
}
