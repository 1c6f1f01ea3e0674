//! The tracepoints of the simulated host: names and fields as LTTng writes them.

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// An unsigned integer of so many bits.
    Unsigned(u8),
    /// A signed integer of so many bits.
    Signed(u8),
    /// A text.
    Text,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number; unsigned ones of 64 bits as their bits.
    Number(i64),
    /// A text.
    Text(&'static str),
}

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The tracepoint.
    pub name: &'static str,
    /// Its fields.
    pub fields: &'static [(&'static str, Type)],
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, ns.
    pub time: i64,
    /// On which CPU.
    pub cpu: u32,
    /// By which thread; 0 is the idle task, where interrupts find one.
    pub tid: i32,
    /// The process of the thread.
    pub pid: i32,
    /// The name of the thread.
    pub comm: &'static str,
    /// The place of its kind in [`KINDS`].
    pub kind: usize,
    /// The values of its fields.
    pub values: Vec<Value>,
}

use Type::{Signed, Text, Unsigned};

const U32: Type = Unsigned(32);
const REQUEST: &[(&str, Type)] =
    &[("dev", U32), ("ctx", U32), ("ring", U32), ("seqno", U32), ("global", U32)];

const BLOCK: &[(&str, Type)] =
    &[("dev", U32), ("sector", Unsigned(64)), ("nr_sector", U32), ("rwbs", U32)];

/// The kinds of events: i915 of Linux 4.14, GVT-g with the tracepoints of the paper, the scheduler's
/// switches and wakeups, KVM's entries and exits; and of whatever else a host does, which the simulator leaves out:
/// interrupts, system calls, block requests, packets.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "gvt_workload_queue",
        fields: &[("dev", U32), ("vgpu_id", U32), ("ring_id", U32), ("workload", Unsigned(64))],
    },
    Kind {
        name: "gvt_workload_submit",
        fields: &[
            ("dev", U32),
            ("vgpu_id", U32),
            ("ring_id", U32),
            ("workload", Unsigned(64)),
            ("ctx", U32),
            ("seqno", U32),
        ],
    },
    Kind { name: "i915_gem_request_add", fields: REQUEST },
    Kind { name: "i915_gem_request_submit", fields: REQUEST },
    Kind {
        name: "i915_gem_request_in",
        fields: &[
            ("dev", U32),
            ("ctx", U32),
            ("ring", U32),
            ("seqno", U32),
            ("global_seqno", U32),
            ("port", U32),
        ],
    },
    Kind {
        name: "intel_engine_notify",
        fields: &[("dev", U32), ("ring", U32), ("seqno", U32), ("waiters", Unsigned(8))],
    },
    Kind { name: "i915_gem_request_out", fields: REQUEST },
    Kind {
        name: "gvt_workload_complete",
        fields: &[("dev", U32), ("vgpu_id", U32), ("ring_id", U32), ("workload", Unsigned(64))],
    },
    Kind { name: "i915_gem_request_retire", fields: REQUEST },
    Kind {
        name: "gvt_sched_switch",
        fields: &[("dev", U32), ("vgpu_id", U32), ("left_ts", Signed(64))],
    },
    Kind {
        name: "i915_gem_object_create",
        fields: &[("obj", Unsigned(64)), ("size", Unsigned(64))],
    },
    Kind { name: "i915_gem_object_destroy", fields: &[("obj", Unsigned(64))] },
    Kind {
        name: "sched_switch",
        fields: &[
            ("prev_comm", Text),
            ("prev_tid", Signed(32)),
            ("prev_prio", Signed(32)),
            ("prev_state", Signed(64)),
            ("next_comm", Text),
            ("next_tid", Signed(32)),
            ("next_prio", Signed(32)),
        ],
    },
    Kind {
        name: "sched_wakeup",
        fields: &[
            ("comm", Text),
            ("tid", Signed(32)),
            ("prio", Signed(32)),
            ("target_cpu", Signed(32)),
        ],
    },
    Kind { name: "kvm_entry", fields: &[("vcpu_id", U32)] },
    Kind { name: "kvm_exit", fields: &[("exit_reason", U32), ("guest_rip", Unsigned(64))] },
    Kind { name: "irq_handler_entry", fields: &[("irq", Signed(32)), ("name", Text)] },
    Kind { name: "irq_handler_exit", fields: &[("irq", Signed(32)), ("ret", Signed(32))] },
    Kind { name: "irq_softirq_entry", fields: &[("vec", U32)] },
    Kind { name: "irq_softirq_exit", fields: &[("vec", U32)] },
    Kind {
        name: "syscall_entry_ioctl",
        fields: &[("fd", U32), ("cmd", U32), ("arg", Unsigned(64))],
    },
    Kind { name: "syscall_exit_ioctl", fields: &[("ret", Signed(64)), ("arg", Unsigned(64))] },
    Kind { name: "block_rq_insert", fields: BLOCK },
    Kind { name: "block_rq_issue", fields: BLOCK },
    Kind { name: "block_rq_complete", fields: BLOCK },
    Kind {
        name: "i915_gem_evict",
        fields: &[
            ("dev", U32),
            ("vm", Unsigned(64)),
            ("size", Unsigned(64)),
            ("align", Unsigned(64)),
            ("flags", U32),
        ],
    },
    Kind {
        name: "net_dev_queue",
        fields: &[("skbaddr", Unsigned(64)), ("len", U32), ("name", Text)],
    },
];

/// The place of a kind by its name.
///
/// # Panics
/// There is none of that name.
pub fn kind(name: &str) -> usize {
    KINDS.iter().position(|kind| kind.name == name).expect("a kind of the table")
}
