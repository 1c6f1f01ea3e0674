//! Settings of the host, and of recorded processes, that decide how fast work is.
//!
//! *What it sees*: of the host the clock source, frequency governors, huge pages, NUMA balancing and others of
//! `/sys` and `/proc/sys`; of each recorded process the CPUs and memory nodes that it may use, its priority,
//! those environment variables that set up OpenMP, BLAS, CUDA, NCCL, PyTorch, LLM engines and allocators, and those
//! arguments of an engine's command that decide how fast it is. They are read at once, and then ever more rarely, once a minute in the end. *Why it matters*: one host of many with
//! another governor, or one rank with another number of threads, is slow with nobody in its way. *What fools
//! it*: the environment is that of the program's start; what a program sets for itself later is not seen.
//!
//! Environments hold secrets. A variable is recorded only if its name begins as one of the list, and not if
//! it looks like a credential; everything else is never copied.

mod arguments;

use std::fs;
use std::io::{BufRead, BufReader, Read as _};

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{EntityId, EntityKind, Ns, names, sources};

use crate::config::Target;
use crate::context::Context;
use crate::error::CollectError;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::procfs;

pub(crate) const PROBE: ProbeSpec = ProbeSpec::new(
    "settings",
    &sources::SETTINGS,
    "settings of the host and of recorded processes that decide how fast work is",
    start,
);

/// Between the first two readings; then twice as long each time,
const FIRST: Ns = Ns::secs(2);
/// up to this: a process with hundreds of threads costs hundreds of small files.
const LAST: Ns = Ns::secs(60);
/// Processes whose settings are read at most.
const PROCESSES: usize = 64;
/// Bytes of an environment that are read.
const ENVIRONMENT: u64 = 256 << 10;
/// Variables of a process that are recorded at most,
const VARIABLES: usize = 64;
/// and characters of each.
const VALUE: usize = 200;

/// How names of environment variables begin that are recorded.
const RECORDED: &[&str] = &[
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "FI_",
    "GLOO_",
    "GOMP_",
    "KMP_",
    "LD_PRELOAD",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "NVIDIA_",
    "NVSHMEM_",
    "OMP_",
    "OPENBLAS_",
    "PYTHONDEVMODE",
    "PYTHONMALLOC",
    "PYTHON_GIL",
    "PYTORCH_",
    "SGLANG_",
    "TOKENIZERS_PARALLELISM",
    "TORCH",
    "TRITON_",
    "UCX_",
    "VLLM_",
];
/// What names of credentials hold.
const SECRET: &[&str] = &["AUTH", "CRED", "KEY", "PASS", "SECRET", "TOKEN"];
/// Names that hold one of these and are none.
const NO_SECRET: &[&str] = &["TOKENIZERS_PARALLELISM"];

/// Files of the host, each with what it is called here; of `[a] b c` the word in brackets is told.
const FILES: &[(&str, &str)] = &[
    ("kernel", "/proc/sys/kernel/osrelease"),
    ("clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("cpu.smt", "/sys/devices/system/cpu/smt/active"),
    ("cpu.online", "/sys/devices/system/cpu/online"),
    ("cpu.isolated", "/sys/devices/system/cpu/isolated"),
    ("cpu.driver", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"),
    ("cpu.boost", "/sys/devices/system/cpu/cpufreq/boost"),
    ("cpu.no_turbo", "/sys/devices/system/cpu/intel_pstate/no_turbo"),
    ("thp.enabled", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("thp.defrag", "/sys/kernel/mm/transparent_hugepage/defrag"),
    ("numa.nodes", "/sys/devices/system/node/online"),
    ("numa.balancing", "/proc/sys/kernel/numa_balancing"),
    ("vm.swappiness", "/proc/sys/vm/swappiness"),
    ("vm.zone_reclaim_mode", "/proc/sys/vm/zone_reclaim_mode"),
    ("vm.overcommit_memory", "/proc/sys/vm/overcommit_memory"),
    ("vm.dirty_ratio", "/proc/sys/vm/dirty_ratio"),
    ("sched.autogroup", "/proc/sys/kernel/sched_autogroup_enabled"),
    ("net.congestion_control", "/proc/sys/net/ipv4/tcp_congestion_control"),
];

struct Settings {
    targets: Vec<i32>,
    known: HashMap<EntityId, HashMap<String, Known>>,
    next: Ns,
    pause: Ns,
    recorded: u64,
}

/// The value that a setting has now.
struct Known {
    value: String,
    entity: EntityId,
    /// How often it has changed.
    changes: u32,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    Ok(Box::new(Settings {
        targets: start.config.targets.iter().map(|target| target.pid()).collect(),
        known: HashMap::new(),
        next: Ns::ZERO,
        pause: FIRST,
        recorded: 0,
    }))
}

impl Probe for Settings {
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if now < self.next {
            return Ok(());
        }
        self.next = now + self.pause;
        self.pause = Ns(2 * self.pause.0).min(LAST);
        let host = cx.host;
        self.say(cx, host, of_host(), now);
        let mut processes: Vec<u32> =
            self.targets.iter().flat_map(|pid| procfs::process_tree(*pid)).collect();
        processes.sort_unstable();
        processes.dedup();
        for pid in processes.into_iter().take(PROCESSES) {
            // One that has ended meanwhile has none.
            if let Some(settings) = of_process(pid) {
                let process = cx.process(pid, None);
                self.say(cx, process, settings, now);
            }
        }
        self.known.retain(|owner, settings| {
            let lives = cx.catalog.get(*owner).is_some_and(|owner| owner.to.is_none());
            if !lives {
                settings.values().for_each(|known| cx.catalog.retire(known.entity, now));
            }
            lives
        });
        Ok(())
    }

    fn add_target(&mut self, target: Target, _cx: &mut Context) -> Result<(), CollectError> {
        self.targets.push(target.pid());
        (self.next, self.pause) = (Ns::ZERO, FIRST);
        Ok(())
    }

    fn recorded(&self) -> u64 {
        self.recorded
    }
}

impl Settings {
    /// Declares what is new, and ends what has changed.
    fn say(&mut self, cx: &mut Context, owner: EntityId, now_set: Vec<(String, String)>, now: Ns) {
        let Some(key) = cx.catalog.get(owner).map(|owner| owner.key.clone()) else { return };
        let known = self.known.entry(owner).or_default();
        for (name, value) in now_set {
            let changes = match known.get(&name) {
                Some(before) if before.value == value => continue,
                Some(before) => {
                    cx.catalog.retire(before.entity, now);
                    before.changes + 1
                }
                None => 0,
            };
            let key = format!("{key}/{name}/{changes}");
            let entity = cx.catalog.entity(EntityKind::Setting, &key, |e| {
                e.parent = Some(owner);
                e.name = format!("{name}={value}").as_str().into();
                e.from = Some(now);
            });
            self.recorded += 1;
            known.insert(name, Known { value, entity, changes });
        }
    }
}

/// The settings of the host that it has.
fn of_host() -> Vec<(String, String)> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let mut out: Vec<(String, String)> = FILES
        .iter()
        .filter_map(|(name, path)| Some(((*name).to_owned(), chosen(&read(path)?).to_owned())))
        .filter(|(_, value)| !value.is_empty())
        .collect();
    if let Some(governors) = governors() {
        out.push(("cpu.governor".to_owned(), governors));
    }
    let cpus = fs::File::open("/proc/cpuinfo").ok();
    if let Some(is_virtual) = cpus.and_then(|file| is_virtual(BufReader::new(file))) {
        let says = if is_virtual { "yes" } else { "no" };
        out.push((names::VIRTUAL_CPUS.to_owned(), says.to_owned()));
    }
    if let Some(swaps) = read("/proc/swaps") {
        let swap = if swaps.lines().count() > 1 { "on" } else { "off" };
        out.push(("swap".to_owned(), swap.to_owned()));
    }
    out
}

/// Whether the first of these CPUs (`/proc/cpuinfo`) is one of a virtual machine; none if its kind does not tell. The rest of the
/// file is not read: on a host of many CPUs it is long, and asks each of them for its clock.
fn is_virtual(cpus: impl BufRead) -> Option<bool> {
    let mut lines = cpus.lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let flags = lines.find(|line| line.starts_with("flags"))?;
    Some(flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// The governors of all CPUs, each once.
fn governors() -> Option<String> {
    let policies = fs::read_dir("/sys/devices/system/cpu/cpufreq").ok()?;
    let read = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("scaling_governor")).ok();
    let mut all: Vec<String> = policies.flatten().filter_map(read).collect();
    all.iter_mut().for_each(|governor| *governor = governor.trim().to_owned());
    all.sort_unstable();
    all.dedup();
    (!all.is_empty()).then(|| all.join(","))
}

/// Of `always [madvise] never` the word in brackets, of anything else all.
fn chosen(text: &str) -> &str {
    let text = text.trim();
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text, |(word, _)| word)
}

/// The settings of a process; `None` if it has ended.
fn of_process(pid: u32) -> Option<Vec<(String, String)>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut out = of_status(&status);
    if let Some(nice) =
        fs::read_to_string(format!("/proc/{pid}/stat")).ok().as_deref().and_then(nice)
    {
        out.push(("nice".to_owned(), nice.to_owned()));
    }
    // Readable for those who may trace it.
    if let Ok(file) = fs::File::open(format!("/proc/{pid}/environ")) {
        let mut bytes = Vec::new();
        let _ = file.take(ENVIRONMENT).read_to_end(&mut bytes);
        out.append(&mut of_environment(&bytes));
    }
    out.append(&mut arguments::of_process(pid));
    Some(out)
}

fn of_status(status: &str) -> Vec<(String, String)> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    let mut out = Vec::new();
    if let Some(cpus) = field("Cpus_allowed_list") {
        out.push(("cpus.count".to_owned(), count(&cpus).to_string()));
        out.push(("cpus".to_owned(), cpus));
    }
    if let Some(nodes) = field("Mems_allowed_list") {
        out.push(("memory.nodes".to_owned(), nodes));
    }
    if let Some(enabled) = field("THP_enabled") {
        out.push(("thp".to_owned(), enabled));
    }
    out
}

/// How many numbers `0-3,8` holds.
fn count(list: &str) -> u64 {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    list.split(',')
        .filter_map(|part| match part.split_once('-') {
            Some((from, to)) => Some(number(to)?.saturating_sub(number(from)?).saturating_add(1)),
            None => number(part).map(|_| 1),
        })
        .fold(0, u64::saturating_add)
}

/// The niceness in a line of `/proc/PID/stat`, field 19.
fn nice(stat: &str) -> Option<&str> {
    stat.get(stat.rfind(')')? + 1..)?.split_whitespace().nth(16)
}

/// The variables that are recorded.
fn of_environment(bytes: &[u8]) -> Vec<(String, String)> {
    let variable = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok()?;
        let (name, value) = text.split_once('=')?;
        let is_named = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !is_named || !is_recorded(name) {
            return None;
        }
        Some((name.to_owned(), value.chars().take(VALUE).collect::<String>()))
    };
    bytes.split(|byte| *byte == 0).filter_map(variable).take(VARIABLES).collect()
}

fn is_recorded(name: &str) -> bool {
    let begins = RECORDED.iter().any(|prefix| name.starts_with(prefix));
    let secret = SECRET.iter().any(|word| name.contains(word)) && !NO_SECRET.contains(&name);
    begins && !secret
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_brackets_is_the_one_that_is_set() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("tsc \n"), "tsc");
        assert_eq!(chosen("a ] b [ c"), "a ] b [ c");
    }

    #[test]
    fn a_process_may_use_the_cpus_of_its_list() {
        let status = "Name:\tpython3\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,8,10-11\nMems_allowed_list:\t0\n\
                      THP_enabled:\t1\n";
        let all = of_status(status);
        let value =
            |name: &str| all.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        assert_eq!((value("cpus"), value("cpus.count")), (Some("0-3,8,10-11"), Some("7")));
        assert_eq!((value("memory.nodes"), value("thp")), (Some("0"), Some("1")));
        assert_eq!(count("5-3"), 1);
        assert_eq!(count(""), 0);
        let stat = "12 (a) b) c) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 -5 1 0 100 1 1";
        assert_eq!(nice(stat), Some("-5"));
    }

    #[test]
    fn of_an_environment_only_what_sets_up_the_work_is_copied() {
        let environment = b"HOME=/root\0OMP_NUM_THREADS=4\0NCCL_DEBUG=INFO\0HF_TOKEN=hf_abc\0VLLM_API_KEY=secret\0\
            TOKENIZERS_PARALLELISM=false\0CUDA_LAUNCH_BLOCKING=1\0AWS_SECRET_ACCESS_KEY=x\0LD_PRELOAD=/a.so\0\
            OMP BAD=1\0TORCH_\xff=1\0NCCL_EMPTY=\0";
        let names: Vec<String> = of_environment(environment).into_iter().map(|(n, _)| n).collect();
        let wanted = [
            "OMP_NUM_THREADS",
            "NCCL_DEBUG",
            "TOKENIZERS_PARALLELISM",
            "CUDA_LAUNCH_BLOCKING",
            "LD_PRELOAD",
            "NCCL_EMPTY",
        ];
        assert_eq!(names, wanted);
        let long = format!("OMP_PLACES={}", "x".repeat(10_000));
        assert_eq!(of_environment(long.as_bytes())[0].1.len(), VALUE);
    }

    #[test]
    fn the_first_cpu_tells_whether_it_is_one_of_a_virtual_machine() {
        let virtual_x86 = "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\nbugs\t\t:\n\nprocessor\t: 1\nflags\t\t: fpu\n";
        assert_eq!(is_virtual(virtual_x86.as_bytes()), Some(true));
        let own = "processor\t: 0\nflags\t\t: fpu vme lahf_lm\n\nprocessor\t: 1\nflags\t\t: fpu hypervisor\n";
        assert_eq!(is_virtual(own.as_bytes()), Some(false));
        assert_eq!(
            is_virtual("processor\t: 0\nFeatures\t: fp asimd\n".as_bytes()),
            None,
            "arm64 has no such flag"
        );
    }

    #[test]
    fn a_setting_that_changes_ends_and_begins_with_its_new_value() {
        let mut cx = Context::new();
        let mut settings = Settings {
            targets: vec![std::process::id() as i32],
            known: HashMap::new(),
            next: Ns::ZERO,
            pause: FIRST,
            recorded: 0,
        };
        let host = cx.host;
        let set = |value: &str| vec![("thp.enabled".to_owned(), value.to_owned())];
        settings.say(&mut cx, host, set("always"), Ns(10));
        settings.say(&mut cx, host, set("always"), Ns(20));
        settings.say(&mut cx, host, set("never"), Ns(30));
        let told: Vec<_> = cx
            .take_rows()
            .entity
            .into_iter()
            .filter(|e| e.kind == EntityKind::Setting)
            .map(|e| (e.name.to_string(), e.from, e.to))
            .collect();
        assert!(told.contains(&("thp.enabled=never".to_owned(), Some(Ns(30)), None)), "{told:?}");
        let ended = ("thp.enabled=always".to_owned(), Some(Ns(10)), Some(Ns(30)));
        assert!(told.contains(&ended), "{told:?}");
        assert_eq!(settings.recorded, 2);
        // This process and the host have some.
        settings.tick(Ns(40), &mut cx).unwrap();
        let rows = cx.take_rows();
        let has = |name: &str| rows.entity.iter().any(|e| e.name.starts_with(name));
        assert!(has("kernel=") && has("cpus.count=") && has("nice="), "{:?}", rows.entity);
    }
}
