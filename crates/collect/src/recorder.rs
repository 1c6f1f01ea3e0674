//! Starts the probes, wakes at every tick, and hands out what they gathered.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use foldhash::{HashSet, HashSetExt as _};
use gpuwhy_schema::{
    Clock, EntityId, EntityKind, Ids, Lanes, Ns, Rows, SourceId, SourceState, State,
};

use crate::context::{CollectError, Context, OpenStep, Probe, Start};
use crate::doors::{self, DoorConfig};
use crate::kernel::{self, Head, Kernel, PROBES};
use crate::nccl_ras::RasAt;
use crate::{
    Attribution, block_io, cgroup, interrupts, memory, nccl_calls, nccl_ras, network, nvml, psi,
    run_queue, self_cost, stacks, steal, steps, wire_source,
};

/// More entities than this, and it is looked who of them is gone.
const MANY: usize = 2048;
/// Entities that are looked at in a second: half a millisecond.
const SWEPT: usize = 64;
/// How long after his end somebody is remembered.
const FORGOTTEN: Ns = Ns::secs(300);

/// Who is to be recorded exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A process with all its threads and, from now on, all its descendants.
    Pid(i32),
}

impl Target {
    fn check(self) -> Result<(), CollectError> {
        let Target::Pid(pid) = self;
        if pid > 0 && Path::new("/proc").join(pid.to_string()).exists() {
            return Ok(());
        }
        Err(CollectError::NoProcess { pid })
    }
}

/// A function whose every call is a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UprobeStep {
    /// The program or library.
    pub binary: PathBuf,
    /// The function, as its symbol table has it.
    pub symbol: String,
}

impl FromStr for UprobeStep {
    type Err = BadStep;

    /// `uprobe:BINARY:SYMBOL`.
    fn from_str(text: &str) -> Result<UprobeStep, BadStep> {
        let bad = || BadStep { text: text.to_owned() };
        let rest = text.strip_prefix("uprobe:").ok_or_else(bad)?;
        let (binary, symbol) = rest.rsplit_once(':').ok_or_else(bad)?;
        if binary.is_empty() || symbol.is_empty() {
            return Err(bad());
        }
        Ok(UprobeStep { binary: binary.into(), symbol: symbol.to_owned() })
    }
}

/// A step that is not named as steps are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` names no function; write uprobe:BINARY:SYMBOL, as in uprobe:redis-server:call")]
pub struct BadStep {
    /// What was written.
    pub text: String,
}

/// What to record.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whose threads are recorded exactly.
    pub targets: Vec<Target>,
    /// How many wakers out from the targets threads are recorded exactly too.
    pub hops: u8,
    /// Ticks a second: how often aggregates are read and the ring is drained.
    pub hz: u32,
    /// Size of the ring between kernel and recorder; a power of two.
    pub ring_bytes: u32,
    /// Functions of unmodified programs that are steps.
    pub steps: Vec<UprobeStep>,
    /// The shared-memory ring that programs write their marked steps to.
    pub wire: Option<PathBuf>,
    /// The socket at which libraries inside processes knock, and what they are asked.
    pub doors: Option<DoorConfig>,
    /// Where NCCL's RAS is asked while something is the matter; `None` to ask nobody.
    pub ras: Option<RasAt>,
    /// Probes switched off, by name.
    pub off: Vec<String>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            targets: Vec::new(),
            hops: 2,
            hz: 100,
            // 100,000 events of 80 bytes in a second fill 8 MB; a tick is a hundredth of one.
            ring_bytes: 4 << 20,
            steps: Vec::new(),
            wire: None,
            doors: None,
            ras: None,
            off: Vec::new(),
        }
    }
}

impl Config {
    /// The usual, with no probes but these.
    pub fn only(names: &[&str]) -> Config {
        let all = PROBE_LIST.iter().map(|probe| probe.0);
        let off = all.filter(|name| !names.contains(name)).map(str::to_owned).collect();
        Config { off, ..Config::default() }
    }
}

/// What recording has cost and lost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Ring records received.
    pub events: u64,
    /// Events lost: the ring was full, or a probe had no room.
    pub dropped: u64,
    /// Run time of our BPF programs; `None` while the kernel does not measure it.
    pub bpf: Option<Ns>,
    /// How often our BPF programs ran, where the kernel counts it.
    pub bpf_runs: u64,
    /// CPU time of this process, all threads, user and system.
    pub cpu: Ns,
    /// Resident memory of this process in bytes.
    pub rss: u64,
}

/// A probe's way to start.
type StartFn = fn(Start<'_>) -> Result<Box<dyn Probe>, CollectError>;

/// Every probe: name, what `source.kind` says, and how it starts. The order is that of starting;
/// who needs another's counters comes later.
pub(crate) const PROBE_LIST: &[(&str, &str, StartFn)] = &[
    ("interrupts", "bpf:interrupts", interrupts::start),
    ("run_queue", "bpf:run_queue", run_queue::start),
    ("steps", "bpf:steps", steps::start),
    ("wire", "wire", wire_source::start),
    ("inject", "inject", doors::start),
    ("self_cost", "self", self_cost::start),
    ("block_io", "bpf:block_io", block_io::start),
    ("network", "bpf:network", network::start),
    ("memory", "bpf:memory", memory::start),
    ("stacks", "bpf:stacks", stacks::start),
    ("psi", "proc:psi", psi::start),
    ("steal", "proc:steal", steal::start),
    ("cgroup", "proc:cgroup", cgroup::start),
    ("nvml", "nvml", nvml::start),
    // Behind who hears the plug-ins, so that it knows whom it need not look at.
    ("nccl_calls", "bpf:nccl_calls", nccl_calls::start),
    ("nccl_ras", "nccl_ras", nccl_ras::start),
];

/// Whether there is anything for this probe to look at. What nobody asked for, and what this host
/// does not have at all, is not spoken of.
pub(crate) fn has_a_subject(name: &str, config: &Config) -> bool {
    match name {
        "wire" => config.wire.is_some(),
        "steps" => !config.steps.is_empty(),
        "inject" => config.doors.is_some(),
        "nvml" => nvml::expected(),
        "nccl_ras" => config.ras.is_some(),
        _ => true,
    }
}

/// Whether the user has asked for this by name, so that there is no recording without it.
fn was_named(name: &str, config: &Config) -> bool {
    match name {
        "steps" | "wire" => true,
        "inject" => config.doors.as_ref().is_some_and(|door| door.needed),
        _ => false,
    }
}

/// A probe that runs, and its source.
struct Running {
    probe: Box<dyn Probe>,
    source: SourceId,
    number: Option<usize>,
}

/// What is left out when recording costs too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// Nothing is looked at more closely around anomalies.
    Detail,
    /// Threads are not recorded exactly for having woken those that are.
    Wakers,
    /// Messages between processes are not recorded.
    Messages,
    /// The page cache is not looked at.
    PageCache,
    /// A CPU may write a tenth of the exact records.
    Exact,
    /// Network devices are not looked at.
    Network,
    /// Aggregates are read a tenth as often.
    Ticks,
    /// What threads do is not looked at: nothing can be judged until it is again.
    Threads,
}

impl Shed {
    /// In the order in which they are left out; the last is taken back first.
    pub const ORDER: [Shed; 8] = [
        Shed::Detail,
        Shed::PageCache,
        Shed::Wakers,
        Shed::Messages,
        Shed::Exact,
        Shed::Network,
        Shed::Ticks,
        Shed::Threads,
    ];

    /// What is missing then, and the probe that misses it.
    pub fn says(self) -> (&'static str, &'static str) {
        match self {
            Shed::Detail => ("stacks", "stacks are not sampled around anomalies"),
            Shed::Wakers => ("run_queue", "wakers are not recorded exactly"),
            Shed::Messages => ("network", "messages are not recorded"),
            Shed::PageCache => ("memory", "the page cache is not looked at"),
            Shed::Exact => ("run_queue", "a tenth of the exact records is written"),
            Shed::Network => ("network", "network devices are not looked at"),
            Shed::Ticks => ("self_cost", "aggregates are read a tenth as often"),
            Shed::Threads => ("run_queue", "what threads do is not looked at"),
        }
    }
}

/// A running recording. Lives on the thread that started it.
pub struct Recorder {
    kernel: Rc<Kernel>,
    probes: Vec<Running>,
    cx: Context,
    staged: Vec<u8>,
    tick: Ns,
    next: Ns,
    next_account: Ns,
    next_forget: Ns,
    events: u64,
    hz: u32,
    /// How many of [`Shed::ORDER`] are left out.
    shed: usize,
    /// Whether detail is wanted, shed or not.
    detailed: bool,
    /// When threads were looked at again after they had been left out.
    resumed: Ns,
}

impl Recorder {
    /// Starts everything that this host offers. A probe that cannot run is a `source` row that
    /// says why, not an error.
    ///
    /// # Errors
    /// A target, step or ring that was asked for by name cannot be had.
    pub fn start(config: Config) -> Result<Recorder, CollectError> {
        config.targets.iter().try_for_each(|target| target.check())?;
        let mut cx = context();
        let mut probes = Vec::new();
        let words =
            format!("hz={} hops={} ring_bytes={}", config.hz, config.hops, config.ring_bytes);
        let kernel = Rc::new(Kernel::new(config.ring_bytes));
        kernel.turn(&knobs(0, Ns::ZERO))?;
        for &(name, kind, start) in PROBE_LIST {
            if !has_a_subject(name, &config) {
                continue;
            }
            let source = cx.lanes.source(kind, "gpuwhy", env!("CARGO_PKG_VERSION"), &words);
            if config.off.iter().any(|off| off == name) {
                refuse(&mut cx.lanes, source, "switched off".into());
                continue;
            }
            match start(Start { kernel: &kernel, config: &config, cx: &mut cx, source }) {
                Ok(probe) => {
                    let kinds = probe.kinds();
                    let number = (!kinds.is_empty()).then_some(usize::from(kinds.start >> 8));
                    probes.push(Running { probe, source, number });
                }
                // What the user named and cannot be had is an error; what the host lacks is not.
                Err(error) if was_named(name, &config) => return Err(error),
                Err(error) => refuse(&mut cx.lanes, source, story(&error)),
            }
        }
        kernel.started();
        let now = kernel::monotonic();
        cx.rows.clock.push(wall_clock(cx.host));
        let hz = config.hz.clamp(1, 1000);
        let tick = Ns(1_000_000_000 / i64::from(hz));
        Ok(Recorder {
            kernel,
            probes,
            cx,
            staged: Vec::new(),
            tick,
            next: now + tick,
            next_account: now + Ns::secs(1),
            next_forget: now + FORGOTTEN,
            events: 0,
            hz,
            shed: 0,
            resumed: Ns::ZERO,
            detailed: false,
        })
    }

    /// Leaves out the first `count` of [`Shed::ORDER`], and nothing else; the sources say so.
    ///
    /// # Errors
    /// The kernel refuses to attach again what was left out.
    pub fn shed(&mut self, count: usize) -> Result<(), CollectError> {
        let count = count.min(Shed::ORDER.len());
        let off = |shed| Shed::ORDER[..count].contains(&shed);
        if self.shedding().contains(&Shed::Threads) && !off(Shed::Threads) {
            self.resumed = kernel::monotonic();
        }
        self.kernel.turn(&knobs(count, self.resumed))?;
        for running in &mut self.probes {
            match running.probe.name() {
                "memory" => running.probe.pause(off(Shed::PageCache))?,
                "network" => running.probe.pause(off(Shed::Network))?,
                "run_queue" => running.probe.pause(off(Shed::Threads))?,
                _ => {}
            }
        }
        let hz = if off(Shed::Ticks) { self.hz.div_ceil(10) } else { self.hz };
        self.tick = Ns(1_000_000_000 / i64::from(hz));
        self.shed = count;
        self.detail(self.detailed)?;
        for running in &self.probes {
            let missing: Vec<&str> = Shed::ORDER[..count]
                .iter()
                .map(|shed| shed.says())
                .filter(|(probe, _)| *probe == running.probe.name())
                .map(|(_, what)| what)
                .collect();
            let note = format!("shed to stay within the limits: {}", missing.join("; "));
            self.cx.lanes.update_source(running.source, |s| {
                let ours = s.note.as_ref().is_none_or(|n| n.starts_with("shed"));
                if !missing.is_empty() {
                    s.state = SourceState::Degraded;
                    s.note = Some(note.as_str().into());
                } else if ours && s.state == SourceState::Degraded {
                    s.state = SourceState::Ok;
                    s.note = None;
                }
            });
        }
        Ok(())
    }

    /// Looks more closely, at stacks, until told otherwise: while something is the matter.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn detail(&mut self, wanted: bool) -> Result<(), CollectError> {
        self.detailed = wanted;
        let wanted = wanted && !self.shedding().contains(&Shed::Detail);
        self.probes.iter_mut().try_for_each(|running| running.probe.detail(wanted))
    }

    /// What is left out now.
    pub fn shedding(&self) -> &'static [Shed] {
        &Shed::ORDER[..self.shed]
    }

    /// Records `target` exactly from now on, with all its threads and descendants.
    ///
    /// # Errors
    /// There is no such process, or the kernel refuses.
    pub fn add_target(&mut self, target: Target) -> Result<(), CollectError> {
        target.check()?;
        for running in &mut self.probes {
            running.probe.add_target(target, &mut self.cx)?;
        }
        Ok(())
    }

    /// Sleeps to the next tick, but no longer than `timeout`; then drains the ring and ticks the
    /// probes. Returns the rows gathered since the last call, lanes before what lies on them.
    ///
    /// # Errors
    /// What no recording can do without.
    pub fn poll(&mut self, timeout: Duration) -> Result<Rows, CollectError> {
        let now = kernel::monotonic();
        let patience =
            now.saturating_add(Ns(i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX)));
        kernel::sleep_until(self.next.min(patience));
        let now = kernel::monotonic();
        self.gather(now);
        if now >= self.next {
            // A recorder that was stopped for a while does not catch up tick by tick.
            self.next = (self.next + self.tick).max(now);
        }
        Ok(self.take())
    }

    /// The last rows: the ring's rest, states that are still open, and what each source lost.
    pub fn finish(mut self) -> Rows {
        let now = kernel::monotonic();
        self.gather(now);
        for running in &mut self.probes {
            running.probe.finish(now, &mut self.cx);
        }
        self.account();
        self.cx.rows.clock.push(wall_clock(self.cx.host));
        self.take()
    }

    /// Steps that have begun before `ts` and not ended, of threads that live.
    pub fn open_steps(&self, before: Ns) -> Vec<OpenStep> {
        let mut open = Vec::new();
        self.probes.iter().for_each(|running| running.probe.open_steps(before, &mut open));
        open
    }

    /// What threads do since their last row: states without an end.
    pub fn going_on(&self) -> Vec<State> {
        let mut states = Vec::new();
        self.probes.iter().for_each(|running| running.probe.going_on(&mut states));
        states
    }

    /// What the recording has cost and lost so far.
    pub fn status(&self) -> Status {
        let (bpf, bpf_runs) = self.kernel.bpf_time();
        let dropped = self.probes.iter().map(|r| self.dropped(r)).sum();
        Status {
            events: self.events,
            dropped,
            bpf: (bpf_runs > 0).then_some(bpf),
            bpf_runs,
            cpu: kernel::cpu_time(),
            rss: self_cost::resident(),
        }
    }

    /// This host's entities, for callers that add rows of their own.
    pub fn context(&mut self) -> &mut Context {
        &mut self.cx
    }

    fn gather(&mut self, now: Ns) {
        self.kernel.drain(&mut self.staged);
        for record in kernel::records(&self.staged) {
            let Some(head) = kernel::plain::<Head>(record) else { continue };
            self.events += 1;
            if let Some(running) =
                self.probes.iter_mut().find(|r| r.number == Some(usize::from(head.kind >> 8)))
            {
                running.probe.event(head.kind, record, &mut self.cx);
            }
        }
        for running in &mut self.probes {
            if let Err(error) = running.probe.tick(now, &mut self.cx) {
                self.cx.lanes.update_source(running.source, |s| {
                    s.state = SourceState::Degraded;
                    s.note = Some(story(&error).as_str().into());
                });
            }
        }
        for target in std::mem::take(&mut self.cx.wanted) {
            // Nobody waits for the answer; a process without states is seen to have none.
            let _ = self.add_target(target);
        }
        if now >= self.next_account {
            self.next_account = now + Ns::secs(1);
            self.account();
            self.look_for_hangs(now);
            if self.cx.lanes.len() > MANY {
                self.cx.people.sweep(&mut self.cx.lanes, now, SWEPT);
            }
        }
        if now >= self.next_forget {
            self.next_forget = now + FORGOTTEN;
            self.cx.lanes.forget(now - FORGOTTEN);
        }
    }

    /// Says whether a step has been open for long, to whoever wants to know.
    fn look_for_hangs(&mut self, now: Ns) {
        if self.probes.iter().any(|running| running.probe.name() == "nccl_ras") {
            let hangs = !self.open_steps(now.saturating_sub(nccl_ras::HANGS)).is_empty();
            self.probes.iter_mut().for_each(|running| running.probe.hangs(hangs));
        }
    }

    /// Brings `source.recorded` and `source.dropped` up to date.
    fn account(&mut self) {
        for i in 0..self.probes.len() {
            let running = &self.probes[i];
            let (recorded, dropped) = (self.recorded(running), self.dropped(running));
            self.cx.lanes.update_source(running.source, |s| {
                s.recorded = recorded;
                s.dropped = dropped;
            });
        }
    }

    fn recorded(&self, running: &Running) -> u64 {
        self.ring_sum(running, |cpu, i| cpu.recorded[i]) + running.probe.counted()
    }

    fn dropped(&self, running: &Running) -> u64 {
        self.ring_sum(running, |cpu, i| cpu.dropped[i]) + running.probe.dropped()
    }

    fn ring_sum(&self, running: &Running, of: impl Fn(&kernel::Cpu, usize) -> u64) -> u64 {
        let Some(number) = running.number.filter(|&n| n < PROBES) else { return 0 };
        (0..self.kernel.cpu_count()).map(|i| of(&self.kernel.cpu(i), number)).sum()
    }

    fn take(&mut self) -> Rows {
        let mut rows = Rows::default();
        self.cx.lanes.drain(&mut rows);
        rows.append(&mut self.cx.rows);
        rows
    }
}

/// How the programs' knobs stand when the first `shed` of [`Shed::ORDER`] are left out.
fn knobs(shed: usize, resumed: Ns) -> kernel::Knobs {
    let off = |what| Shed::ORDER[..shed].contains(&what);
    let usual = run_queue::RECORDS_PER_SECOND;
    let records = if off(Shed::Exact) { usual / 10 } else { usual };
    kernel::Knobs {
        record_ns: 1_000_000_000 / records,
        without_wakers: u32::from(off(Shed::Wakers)),
        without_messages: u32::from(off(Shed::Messages)),
        pad: 0,
        resumed: resumed.0 as u64,
    }
}

/// What the wall clock shows now, so that times of the trace can be told to people.
fn wall_clock(host: EntityId) -> Clock {
    let before = kernel::monotonic();
    let ts_source = kernel::wall();
    let after = kernel::monotonic();
    let error_ns = Ns((after - before).0 / 2 + 1);
    Clock { host, clock: "CLOCK_REALTIME".into(), ts_source, ts_trace: before + error_ns, error_ns }
}

fn refuse(lanes: &mut Lanes, source: SourceId, why: String) {
    lanes.update_source(source, |s| {
        s.state = SourceState::Unavailable;
        s.note = Some(why.as_str().into());
    });
}

/// An error with its causes, in one line.
pub(crate) fn story(error: &CollectError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The lanes that every recording has: this host and its CPUs.
pub(crate) fn context() -> Context {
    let mut lanes = Lanes::default();
    let read = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let name = read("/proc/sys/kernel/hostname");
    let machine = read("/etc/machine-id");
    // Containers often lack a machine id; the boot id tells hosts apart as well, for one boot.
    let key = if machine.is_empty() { read("/proc/sys/kernel/random/boot_id") } else { machine };
    let host = lanes.entity(EntityKind::Host, &key, |e| e.name = name.as_str().into());
    let count = libbpf_rs::num_possible_cpus().unwrap_or(1);
    let cpus: Vec<EntityId> = (0..count)
        .map(|i| {
            lanes.entity(EntityKind::Cpu, &format!("{key}/cpu{i}"), |e| {
                e.parent = Some(host);
                e.name = format!("cpu{i}").as_str().into();
                e.number = Some(i as i64);
            })
        })
        .collect();
    let people = Attribution::new(host);
    Context {
        lanes,
        rows: Rows::default(),
        ids: Ids::of_shard(0),
        people,
        host,
        cpus,
        wanted: Vec::new(),
        gpu_memory: Default::default(),
        gpu_used: Default::default(),
        inside: HashSet::new(),
    }
}
