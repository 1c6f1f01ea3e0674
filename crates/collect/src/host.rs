//! What this host allows to be recorded: the checks of `gpuwhy doctor`.
//!
//! Whatever can be tried is tried instead of being concluded from versions: each probe is started
//! and stopped, a uprobe is attached to a function of our own that is never called. Every check says
//! why it matters, what was found and, where something is missing, what would change it.

mod gpu;

use std::collections::HashSet;
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use gpuwhy_schema::{Rows, SourceState};

use crate::bpf::{self, Bpf, OLDEST_KERNEL, run_time};
use crate::config::Config;
use crate::context::Context;
use crate::error::error_chain;
use crate::probe::Start;
use crate::probes::nccl_ras::client::{self, RasError};
use crate::probes::{self, steps};

/// One check of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was checked: `capabilities`, `probe run_queue`.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// Whether no recording is possible without it.
    pub needed: bool,
    /// What it makes possible, or what is missing without it.
    pub why_it_matters: &'static str,
    /// What was found.
    pub found: String,
    /// What would change that; empty if it is as it should be.
    pub fix: String,
}

/// The checks of what every recording needs, as far as they can be made without loading anything:
/// cheap enough to be made before every recording.
pub fn needed() -> Vec<Check> {
    vec![
        kernel_version(&read("/proc/sys/kernel/osrelease"), bpf::has_newest_helper),
        btf(),
        capabilities(&read("/proc/self/status")),
    ]
}

/// All checks; they take about a second, most of it in the kernel's verifier.
pub fn checks() -> Vec<Check> {
    let mut checks = vec![
        kernel_version(&read("/proc/sys/kernel/osrelease"), bpf::has_newest_helper),
        btf(),
        capabilities(&read("/proc/self/status")),
        pid_namespace(),
        unprivileged(),
        lockdown(&read("/sys/kernel/security/lockdown")),
        paranoid(),
        memory_of_processes(
            has_capability(&read("/proc/self/status"), "CAP_SYS_PTRACE"),
            &read("/proc/sys/kernel/yama/ptrace_scope"),
        ),
        cgroups(&read("/proc/self/mountinfo")),
        pressure(),
        statistics(),
    ];
    let bpf = Rc::new(Bpf::new(1 << 16));
    checks.push(shared_maps(&bpf));
    checks.push(uprobes(&bpf));
    checks.extend(start_probes(&bpf));
    checks.extend(gpu::checks_of_this_host());
    checks.push(nccl_ras(client::DEFAULT_ADDRESS));
    checks
}

/// Whether the RAS of a job's NCCL answers. Only the protocol's version is exchanged, which does the
/// job no harm.
fn nccl_ras(address: &str) -> Check {
    let timeouts =
        client::Timeouts { line: Duration::from_millis(500), total: Duration::from_secs(1) };
    let found = match client::protocol(address, timeouts) {
        Ok(protocol) => format!("answers at {address}, protocol {protocol}"),
        Err(RasError::NoServer { .. }) => format!("no job of this host listens at {address}"),
        Err(error) => error.to_string(),
    };
    Check {
        name: "NCCL RAS".into(),
        ok: true,
        needed: false,
        why_it_matters: "with --nccl-ras, gpuwhy asks it which rank is behind when a step hangs",
        found,
        fix: String::new(),
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Whether the kernel is new enough, by its version or, as distributions bring features to older
/// kernels, by `has_newest_helper`.
fn kernel_version(release: &str, has_newest_helper: impl FnOnce() -> bool) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let ok = version >= OLDEST_KERNEL || has_newest_helper();
    let (major, minor) = OLDEST_KERNEL;
    Check {
        name: "kernel".into(),
        ok,
        needed: true,
        why_it_matters: "the probes need BPF helpers of Linux 5.15; --step uprobe: needs 6.6",
        found: release.to_owned(),
        fix: if ok {
            String::new()
        } else {
            format!("boot a kernel of version {major}.{minor} or newer")
        },
    }
}

fn btf() -> Check {
    let ok = fs::metadata("/sys/kernel/btf/vmlinux").is_ok();
    Check {
        name: "kernel types (BTF)".into(),
        ok,
        needed: true,
        why_it_matters: "they tell the probes where this kernel keeps the fields that they read",
        found: (if ok { "/sys/kernel/btf/vmlinux" } else { "none" }).into(),
        fix: if ok {
            String::new()
        } else {
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, as those of distributions are".into()
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
    // The kernel accepts CAP_SYS_ADMIN instead of the two others.
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
        found: if found.is_empty() { "none of those needed".into() } else { found.join(", ") },
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
        why_it_matters: "probes record the host's pids, which /proc does not know in another namespace",
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
        why_it_matters: "with 1 or 2, only programs with CAP_BPF can use BPF, as is recommended",
        found: if found.is_empty() { "this kernel has no such setting".into() } else { found },
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
        why_it_matters: "in mode `confidentiality` no program may read the kernel's memory",
        found: mode,
        fix: if ok {
            String::new()
        } else {
            "boot with lockdown=integrity, or without the lockdown of secure boot".into()
        },
    }
}

fn paranoid() -> Check {
    let found = read("/proc/sys/kernel/perf_event_paranoid");
    Check {
        name: "perf_event_paranoid".into(),
        ok: true,
        needed: false,
        why_it_matters: "it limits other profilers; gpuwhy needs CAP_PERFMON instead",
        found: if found.is_empty() { "this kernel has no perf events".into() } else { found },
        fix: String::new(),
    }
}

/// Whether the memory of other processes can be read: by the capability, and by Yama's `scope` (0: of the same user; 1: of
/// own children; 2: with the capability; 3: of nobody), which is empty where the kernel has no Yama.
fn memory_of_processes(capable: bool, scope: &str) -> Check {
    let ok = capable && scope != "3";
    let whose = match (capable, scope) {
        (_, "3") => "of nobody: Yama's ptrace_scope is 3",
        (true, _) => "of all processes",
        (false, "" | "0") => "of processes of the same user",
        (false, "1") => "of the recorded command's processes alone: Yama's ptrace_scope is 1",
        (false, _) => "of nobody: Yama's ptrace_scope asks for CAP_SYS_PTRACE",
    };
    Check {
        name: "memory of processes".into(),
        ok,
        needed: false,
        why_it_matters: "which lock is Python's, and what its functions are called, is read from it",
        found: whose.into(),
        fix: match (ok, scope) {
            (true, _) => String::new(),
            (false, "3") => {
                "boot with kernel.yama.ptrace_scope below 3: it cannot be lowered later".into()
            }
            (false, _) => "run as root, or add cap_sys_ptrace to the capabilities above".into(),
        },
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
    // A hierarchy may be mounted twice, for a container or a chroot.
    let mut seen = HashSet::new();
    found.retain(|(what, _)| seen.insert(what.clone()));
    let ok = !found.is_empty();
    let found: Vec<String> =
        found.iter().map(|(what, mount)| format!("{what} at {mount}")).collect();
    Check {
        name: "control groups".into(),
        ok,
        needed: false,
        why_it_matters: "they have the quotas, and the names of containers, pods and jobs",
        found: if ok { found.join(", ") } else { "none mounted".into() },
        fix: if ok {
            String::new()
        } else {
            "mount -t cgroup2 none /sys/fs/cgroup, or bind the host's into the container".into()
        },
    }
}

fn pressure() -> Check {
    let ok = fs::read_to_string("/proc/pressure/cpu").is_ok();
    Check {
        name: "pressure (PSI)".into(),
        ok,
        needed: false,
        why_it_matters: "the kernel's own measure of time lost to busy CPUs, memory and disks",
        found: (if ok { "/proc/pressure" } else { "none" }).into(),
        fix: if ok { String::new() } else { "boot with psi=1".into() },
    }
}

fn statistics() -> Check {
    let on = read("/proc/sys/kernel/bpf_stats_enabled") == "1";
    let tried = run_time::measure();
    let ok = on || tried.is_ok();
    Check {
        name: "BPF run time".into(),
        ok,
        needed: false,
        why_it_matters: "the recorder needs it to know what its own probes cost",
        found: match &tried {
            _ if on => "always measured".into(),
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

fn shared_maps(bpf: &Bpf) -> Check {
    let refusal = bpf.refusal();
    Check {
        name: "ring and task storage".into(),
        ok: refusal.is_none(),
        needed: true,
        why_it_matters: "all exact events pass through them",
        fix: if refusal.is_none() {
            String::new()
        } else {
            "give the capabilities above; in a container also allow the bpf system call".into()
        },
        found: refusal.map_or_else(|| "created".into(), str::to_owned),
    }
}

fn uprobes(bpf: &Bpf) -> Check {
    let tries = (steps::try_attaching(bpf, true), steps::try_attaching(bpf, false));
    let (ok, found) = match tries {
        (Ok(()), _) => (true, "sessions: both ends of a call in one link".into()),
        (Err(_), Ok(())) => (true, "multi links, two for each function".into()),
        (Err(_), Err(error)) => (false, error_chain(&error)),
    };
    Check {
        name: "uprobes".into(),
        ok,
        needed: false,
        why_it_matters: "--step uprobe:BINARY:SYMBOL records steps of unmodified programs by them",
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

/// Starts and stops each probe that needs nothing of the user.
fn start_probes(bpf: &Rc<Bpf>) -> Vec<Check> {
    let config = Config::default();
    let mut checks = Vec::new();
    for spec in probes::ALL.iter().filter(|spec| (spec.wanted_if)(&config)) {
        let mut cx = Context::new();
        let (kind, version) = (spec.source.kind, env!("CARGO_PKG_VERSION"));
        let source = cx.catalog.source(kind, "gpuwhy", version, "");
        let started = (spec.start)(Start { bpf, config: &config, cx: &mut cx, source });
        let mut rows = Rows::default();
        cx.catalog.drain(&mut rows);
        let note = rows.source.last().and_then(|s| {
            (s.state != SourceState::Ok).then(|| s.note.as_deref().unwrap_or_default().to_owned())
        });
        let (ok, found, fix) = match (started, note) {
            (Err(error), _) => (false, error_chain(&error), "see the message".into()),
            (Ok(_), Some(note)) => (false, format!("starts, but {note}"), "see the note".into()),
            (Ok(_), None) => (true, "starts".into(), String::new()),
        };
        checks.push(Check {
            name: format!("probe {}", spec.name),
            ok,
            needed: false,
            why_it_matters: spec.records,
            found,
            fix,
        });
    }
    bpf.forget_kernel_types();
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_new_enough_by_its_version_or_by_what_was_brought_to_it() {
        let old = |release: &str| kernel_version(release, || false);
        let check = old("4.18.0-553.el8.x86_64");
        assert!(!check.ok && check.needed);
        assert_eq!(check.fix, "boot a kernel of version 5.15 or newer");
        assert!(!old("5.14.0-100").ok);
        assert!(kernel_version("5.14.0-503.el9.x86_64", || true).ok, "RHEL 9");
        assert!(old("5.15.0-91-generic").ok);
        assert!(old("6.18.44-fc-v445").ok);
        assert!(!old("").ok);
    }

    #[test]
    fn a_kernel_with_types_names_its_helpers() {
        let release = read("/proc/sys/kernel/osrelease");
        if btf().ok && kernel_version(&release, || false).ok {
            assert!(bpf::has_newest_helper(), "{release}");
        }
    }

    #[test]
    fn two_capabilities_suffice_and_one_alone_does_not() {
        let check = |hex: &str| capabilities(&format!("Name:\tx\nCapEff:\t{hex}\n"));
        assert!(check("000000c000000000").ok, "CAP_BPF and CAP_PERFMON");
        assert!(check("0000000000200000").ok, "CAP_SYS_ADMIN");
        let only_bpf = check("0000008000000000");
        assert!(!only_bpf.ok && only_bpf.fix.contains("setcap cap_bpf,cap_perfmon+ep"));
        assert_eq!(only_bpf.found, "CAP_BPF");
        assert_eq!(check("0").found, "none of those needed");
    }

    #[test]
    fn whose_memory_can_be_read_is_said_with_what_would_change_that() {
        let found = |capable, scope: &str| {
            let check = memory_of_processes(capable, scope);
            assert_eq!(check.ok, check.fix.is_empty(), "{check:?}");
            (check.ok, check.found)
        };
        for scope in ["", "0", "1", "2"] {
            assert_eq!(found(true, scope), (true, "of all processes".to_owned()), "{scope}");
        }
        assert!(!found(true, "3").0 && found(true, "3").1.contains("nobody"));
        assert!(found(false, "").1.contains("same user"));
        assert!(found(false, "1").1.contains("recorded command"));
        assert!(found(false, "2").1.contains("CAP_SYS_PTRACE"));
        assert!(memory_of_processes(false, "3").fix.contains("boot"));
    }

    #[test]
    fn both_hierarchies_of_a_hybrid_set_up_are_listed() {
        let text = "\
30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
32 25 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids";
        let check = cgroups(text);
        assert_eq!(check.found, "v2 at /sys/fs/cgroup/unified, v1 cpu at /sys/fs/cgroup/cpu");
        assert!(!cgroups("garbage").ok);
    }

    #[test]
    fn only_the_strictest_lockdown_prevents_recording() {
        assert!(lockdown("none [integrity] confidentiality").ok);
        assert!(!lockdown("none integrity [confidentiality]").ok);
        assert!(lockdown("").ok, "a kernel without lockdown");
    }
}
