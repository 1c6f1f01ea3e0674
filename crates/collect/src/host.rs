//! What this host lets us see: the facts behind `gpuwhy doctor`.
//!
//! Whatever can be tried is tried instead of being concluded from versions: each probe is started
//! and stopped, a uprobe is attached to a function of our own that nobody calls. Every fact says why it
//! matters, what was found and, where something is missing, what would change it.

mod gpu;

use std::collections::HashSet;
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use gpuwhy_schema::{Rows, SourceState};

use crate::kernel::{self, Kernel};
use crate::nccl_ras::ask;
use crate::recorder::{self, Config};
use crate::{CollectError, Start, steps, story};

/// One fact about this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at: `capabilities`, `probe run_queue`.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// Whether nothing can be recorded without it.
    pub needed: bool,
    /// What is seen with it, or missed without it.
    pub why_it_matters: &'static str,
    /// What was found.
    pub found: String,
    /// What would make it right; empty if it is.
    pub fix: String,
}

/// What recording cannot do without, as far as it can be told without trying: cheap enough to be
/// asked before every recording.
pub fn needed() -> Vec<Check> {
    vec![
        kernel_version(&read("/proc/sys/kernel/osrelease")),
        btf(),
        capabilities(&read("/proc/self/status")),
    ]
}

/// Looks at everything; takes about a second, most of it in the kernel's verifier.
pub fn facts() -> Vec<Check> {
    let mut checks = vec![
        kernel_version(&read("/proc/sys/kernel/osrelease")),
        btf(),
        capabilities(&read("/proc/self/status")),
        pid_namespace(),
        unprivileged(),
        lockdown(&read("/sys/kernel/security/lockdown")),
        paranoid(),
        cgroups(&read("/proc/self/mountinfo")),
        pressure(),
        statistics(),
    ];
    let kernel = Rc::new(Kernel::new(1 << 16));
    checks.push(shared(&kernel));
    checks.push(uprobes(&kernel));
    checks.extend(probes(&kernel));
    checks.extend(gpu::facts());
    checks.push(ras(ask::USUAL));
    checks
}

/// Whether a job's NCCL can be asked. It is greeted and asked for nothing, which does it no harm.
fn ras(address: &str) -> Check {
    let patience =
        ask::Patience { line: Duration::from_millis(500), whole: Duration::from_secs(1) };
    let found = match ask::greet(address, patience) {
        Ok(protocol) => format!("answers at {address}, protocol {protocol}"),
        Err(ask::Silence::Nobody { .. }) => format!("no job of this host listens at {address}"),
        Err(silence) => silence.to_string(),
    };
    Check {
        name: "NCCL RAS".into(),
        ok: true,
        needed: false,
        why_it_matters: "with --nccl-ras it is asked which rank is behind, when a step hangs",
        found,
        fix: String::new(),
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn kernel_version(release: &str) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let ok = version >= (5, 11);
    Check {
        name: "kernel".into(),
        ok,
        needed: true,
        why_it_matters: "task storage for tracing came with 5.11, uprobe multi links with 6.6",
        found: release.to_owned(),
        fix: if ok { String::new() } else { "boot a kernel of version 5.11 or newer".into() },
    }
}

fn btf() -> Check {
    let ok = fs::metadata("/sys/kernel/btf/vmlinux").is_ok();
    Check {
        name: "kernel types (BTF)".into(),
        ok,
        needed: true,
        why_it_matters: "one build of the probes finds its way in any kernel by them",
        found: (if ok { "/sys/kernel/btf/vmlinux" } else { "none" }).into(),
        fix: if ok {
            String::new()
        } else {
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, as distributions' kernels are".into()
        },
    }
}

/// Capabilities that matter, by their bit.
const CAPABILITIES: [(u32, &str); 5] = [
    (39, "CAP_BPF"),
    (38, "CAP_PERFMON"),
    (21, "CAP_SYS_ADMIN"),
    (19, "CAP_SYS_PTRACE"),
    (2, "CAP_DAC_READ_SEARCH"),
];

/// Whether /proc/self/status has one of [`CAPABILITIES`] as effective.
fn has_capability(status: &str, name: &str) -> bool {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    CAPABILITIES.iter().any(|&(bit, n)| n == name && effective >> bit & 1 == 1)
}

fn capabilities(status: &str) -> Check {
    let have = |name: &str| has_capability(status, name);
    // Before 5.8 and for the kernel still today, CAP_SYS_ADMIN includes the two others.
    let all = have("CAP_SYS_ADMIN");
    let missing: Vec<&str> =
        ["CAP_BPF", "CAP_PERFMON"].into_iter().filter(|name| !all && !have(name)).collect();
    let found: Vec<&str> =
        CAPABILITIES.iter().map(|&(_, name)| name).filter(|name| have(name)).collect();
    let program = std::env::current_exe().unwrap_or_default();
    Check {
        name: "capabilities".into(),
        ok: missing.is_empty(),
        needed: true,
        why_it_matters: "CAP_BPF loads the probes, CAP_PERFMON lets them read the kernel's memory",
        found: if found.is_empty() { "none that matter".into() } else { found.join(", ") },
        fix: if missing.is_empty() {
            String::new()
        } else {
            format!(
                "run as root, or once: sudo setcap cap_bpf,cap_perfmon+ep {}",
                program.display()
            )
        },
    }
}

fn pid_namespace() -> Check {
    let found = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    // PROC_PID_INIT_INO of the kernel.
    let ok = found.as_os_str() == "pid:[4026531836]";
    Check {
        name: "pid namespace".into(),
        ok,
        needed: false,
        why_it_matters: "probes see the host's pids; in another namespace they belong to nobody",
        found: if ok { "the host's".into() } else { found.display().to_string() },
        fix: if ok {
            String::new()
        } else {
            "run on the host, or in a container with the host's pids (docker --pid=host, \
             Kubernetes hostPID: true)"
                .into()
        },
    }
}

fn unprivileged() -> Check {
    let found = read("/proc/sys/kernel/unprivileged_bpf_disabled");
    Check {
        name: "unprivileged_bpf_disabled".into(),
        ok: true,
        needed: false,
        why_it_matters: "with 1 or 2, BPF needs CAP_BPF, which is as it should be",
        found: if found.is_empty() { "not known to this kernel".into() } else { found },
        fix: String::new(),
    }
}

fn lockdown(text: &str) -> Check {
    let mode = text.split(['[', ']']).nth(1).unwrap_or("none").to_owned();
    let ok = mode != "confidentiality";
    Check {
        name: "lockdown".into(),
        ok,
        needed: true,
        why_it_matters: "in mode `confidentiality` the kernel lets nobody read its memory",
        found: mode,
        fix: if ok {
            String::new()
        } else {
            "boot with lockdown=integrity or without secure boot's lockdown".into()
        },
    }
}

fn paranoid() -> Check {
    let found = read("/proc/sys/kernel/perf_event_paranoid");
    Check {
        name: "perf_event_paranoid".into(),
        ok: true,
        needed: false,
        why_it_matters: "nothing here goes through perf events; other profilers do",
        found: if found.is_empty() { "no perf events".into() } else { found },
        fix: String::new(),
    }
}

fn cgroups(mountinfo: &str) -> Check {
    let mut found: Vec<(String, &str)> = Vec::new();
    for line in mountinfo.lines() {
        // "36 35 98:0 /root /mount options - type source options"
        let Some((front, back)) = line.split_once(" - ") else { continue };
        let Some(mount) = front.split(' ').nth(4) else { continue };
        let mut back = back.split(' ');
        match back.next() {
            Some("cgroup2") => found.push(("v2".into(), mount)),
            Some("cgroup") => {
                let controllers = back.nth(1).unwrap_or_default();
                for controller in controllers.split(',').filter(|c| ["cpu", "memory"].contains(c)) {
                    found.push((format!("v1 {controller}"), mount));
                }
            }
            _ => {}
        }
    }
    // What is mounted a second time, for a container or a chroot, is the same.
    let mut seen = HashSet::new();
    found.retain(|(what, _)| seen.insert(what.clone()));
    let ok = !found.is_empty();
    let found: Vec<String> =
        found.iter().map(|(what, mount)| format!("{what} at {mount}")).collect();
    Check {
        name: "control groups".into(),
        ok,
        needed: false,
        why_it_matters: "quotas are read from them, and containers, pods and jobs named by them",
        found: if ok { found.join(", ") } else { "none mounted".into() },
        fix: if ok {
            String::new()
        } else {
            "mount -t cgroup2 none /sys/fs/cgroup, or give the container the host's".into()
        },
    }
}

fn pressure() -> Check {
    let ok = fs::read_to_string("/proc/pressure/cpu").is_ok();
    Check {
        name: "pressure (PSI)".into(),
        ok,
        needed: false,
        why_it_matters: "the kernel's own measure of time lost to full CPUs, memory and disks",
        found: (if ok { "/proc/pressure" } else { "none" }).into(),
        fix: if ok { String::new() } else { "boot with psi=1".into() },
    }
}

fn statistics() -> Check {
    let on = read("/proc/sys/kernel/bpf_stats_enabled") == "1";
    let tried = kernel::enable_bpf_stats();
    let ok = on || tried.is_ok();
    Check {
        name: "BPF run time".into(),
        ok,
        needed: false,
        why_it_matters: "with it the recorder knows what its own probes cost",
        found: match &tried {
            _ if on => "measured for everybody".into(),
            Ok(_) => "measured while recording".into(),
            Err(error) => error.to_string(),
        },
        fix: if ok {
            String::new()
        } else {
            "sysctl kernel.bpf_stats_enabled=1, or add CAP_SYS_ADMIN".into()
        },
    }
}

fn shared(kernel: &Kernel) -> Check {
    let refused = kernel.refused();
    Check {
        name: "ring and task storage".into(),
        ok: refused.is_none(),
        needed: true,
        why_it_matters: "all exact events come through them",
        fix: if refused.is_none() {
            String::new()
        } else {
            "give the capabilities above; in a container also allow the bpf system call".into()
        },
        found: refused.map_or_else(|| "created".into(), str::to_owned),
    }
}

fn uprobes(kernel: &Kernel) -> Check {
    let (ok, found) = match (steps::trial(kernel, true), steps::trial(kernel, false)) {
        (Ok(()), _) => (true, "sessions: both ends of a call in one link".into()),
        (Err(_), Ok(())) => (true, "multi links, two for each function".into()),
        (Err(_), Err(error)) => (false, story(&error)),
    };
    Check {
        name: "uprobes".into(),
        ok,
        needed: false,
        why_it_matters: "--step uprobe:BINARY:SYMBOL makes steps of unmodified programs",
        found,
        fix: if ok {
            String::new()
        } else {
            "a kernel of version 6.6 or newer with CONFIG_UPROBES, and the capabilities above; or \
             mark the steps in the program"
                .into()
        },
    }
}

fn probes(kernel: &Rc<Kernel>) -> Vec<Check> {
    let config = Config::default();
    let mut checks = Vec::new();
    for &(name, kind, start) in recorder::PROBE_LIST {
        // Uprobes are tried above.
        if !recorder::has_a_subject(name, &config) {
            continue;
        }
        let mut cx = recorder::context();
        let source = cx.lanes.source(kind, "gpuwhy", env!("CARGO_PKG_VERSION"), "");
        let started: Result<_, CollectError> =
            start(Start { kernel, config: &config, cx: &mut cx, source });
        let mut rows = Rows::default();
        cx.lanes.drain(&mut rows);
        let note = rows.source.last().and_then(|s| {
            (s.state != SourceState::Ok).then(|| s.note.as_deref().unwrap_or_default().to_owned())
        });
        let (ok, found, fix) = match (started, note) {
            (Err(error), _) => (false, story(&error), "as the message says".into()),
            (Ok(_), Some(note)) => (false, format!("runs, but {note}"), "as the note says".into()),
            (Ok(_), None) => (true, "starts".into(), String::new()),
        };
        checks.push(Check {
            name: format!("probe {name}"),
            ok,
            needed: false,
            why_it_matters: what_it_sees(name),
            found,
            fix,
        });
    }
    kernel.started();
    checks
}

fn what_it_sees(probe: &str) -> &'static str {
    match probe {
        "run_queue" => "thread states, who woke whom, who had the CPU meanwhile",
        "interrupts" => "time that interrupts take, and whether a waker is to be believed",
        "block_io" => "requests to disks and who made them",
        "network" => "queues, drops and bytes of network devices, messages between processes",
        "memory" => "reclaim, faults, and who emptied the page cache",
        "psi" => "pressure on CPU, memory and disks",
        "steal" => "time that the hypervisor took",
        "cgroup" => "CPU quotas that were used up",
        "nvml" => "clocks, throttling, power, links and errors of NVIDIA GPUs, and who uses them",
        "nccl_calls" => "calls of NCCL in processes that do not have our plug-in",
        "self_cost" => "what the recording itself costs",
        _ => "more of what happens on this host",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_told_what_is_missing() {
        let check = kernel_version("4.18.0-553.el8.x86_64");
        assert!(!check.ok && check.needed);
        assert!(kernel_version("5.15.0-91-generic").ok);
        assert!(kernel_version("6.18.44-fc-v445").ok);
        assert!(!kernel_version("").ok);
    }

    #[test]
    fn two_capabilities_suffice_and_each_one_alone_does_not() {
        let check = |hex: &str| capabilities(&format!("Name:\tx\nCapEff:\t{hex}\n"));
        assert!(check("000000c000000000").ok, "CAP_BPF and CAP_PERFMON");
        assert!(check("0000000000200000").ok, "CAP_SYS_ADMIN");
        let only_bpf = check("0000008000000000");
        assert!(!only_bpf.ok && only_bpf.fix.contains("setcap cap_bpf,cap_perfmon+ep"));
        assert_eq!(only_bpf.found, "CAP_BPF");
        assert_eq!(check("0").found, "none that matter");
    }

    #[test]
    fn hybrid_hierarchies_are_both_named() {
        let text = "\
30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
32 25 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids";
        let check = cgroups(text);
        assert_eq!(check.found, "v2 at /sys/fs/cgroup/unified, v1 cpu at /sys/fs/cgroup/cpu");
        assert!(!cgroups("garbage").ok);
    }

    #[test]
    fn only_the_strictest_lockdown_is_in_the_way() {
        assert!(lockdown("none [integrity] confidentiality").ok);
        assert!(!lockdown("none integrity [confidentiality]").ok);
        assert!(lockdown("").ok, "a kernel without lockdown");
    }
}
