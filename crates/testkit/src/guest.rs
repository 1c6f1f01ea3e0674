//! Processes that send records to a recorder, honest ones and others, so that it can be seen whose rows
//! become whose.
//!
//! Each mark that one writes is called `INDEX:NAME`: the number that its task gave it, and the name of the
//! thread that really wrote it. What else is in the record may be a lie.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gpuwhy_wire::ring::RawRing;
use gpuwhy_wire::{Client, Event, Producer, Received, Record, encode};
use serde::{Deserialize, Serialize};

use crate::gpu::Environment;
use crate::helper::{HelperProcess, MARKER, print_json};
use crate::sys::{self, Random};

/// What one does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// What its marks begin with.
    pub index: u32,
    /// The agent socket, or the file of a ring.
    pub at: Place,
    /// How long it goes on, s.
    pub seconds: f64,
    /// Seed of what it draws.
    pub seed: u64,
    /// How it behaves.
    pub manner: Manner,
    /// Whether it runs in a pid namespace of its own, as its first process.
    pub own_namespace: bool,
    /// The user that it becomes.
    pub uid: Option<u32>,
}

/// Where it writes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Place {
    /// So many connections to the agent socket.
    Socket(PathBuf, usize),
    /// A file.
    Ring(PathBuf),
}

/// How it behaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Manner {
    /// This many threads write this many records a second together, all true.
    Honest {
        /// Threads.
        threads: u32,
        /// Records a second.
        per_second: u32,
    },
    /// Threads that write a few records and end, this many a second.
    ShortLived {
        /// Threads a second.
        per_second: u32,
        /// Whether their numbers are used again and again.
        reused: bool,
    },
    /// Records under the tids of others, and of nobody, and some under the pids of others.
    Liar {
        /// Records a second.
        per_second: u32,
        /// The numbers.
        victims: Vec<u32>,
    },
    /// Records of all kinds with random numbers and names, as fast as it can.
    Flood,
    /// Connects, leaves its socket and its ring to an heir, and ends.
    Testator {
        /// Records a second of the heir.
        per_second: u32,
    },
    /// Writes into the ring of a process that has ended, as that process.
    Heir {
        /// Records a second.
        per_second: u32,
        /// The process.
        pid: u32,
    },
}

/// What one has done.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Rings that it got.
    pub rings: usize,
    /// Records that it tried to write.
    pub written: u64,
}

/// Starts one.
///
/// # Errors
/// The process cannot be started.
pub fn start(task: &Task) -> Result<HelperProcess<Summary>> {
    HelperProcess::start("guest", task, &Environment::default())
}

/// The process of a guest in a pid namespace of its own, by that of its helper.
///
/// # Errors
/// There is none.
pub fn inner_process(helper: i32) -> Result<u32> {
    let path = format!("/proc/{helper}/task/{helper}/children");
    for _ in 0..500 {
        let children =
            fs::read_to_string(&path).with_context(|| format!("cannot read `{path}`"))?;
        if let Some(first) = children.split_whitespace().next() {
            return Ok(first.parse()?);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    anyhow::bail!("the helper {helper} has no child")
}

/// The next process or thread in this pid namespace gets the number after `last`, if it is free.
///
/// # Errors
/// Without CAP_CHECKPOINT_RESTORE, or a kernel without it.
pub fn set_last_pid(last: u32) -> std::io::Result<()> {
    fs::write("/proc/sys/kernel/ns_last_pid", last.to_string())
}

/// Runs one.
///
/// # Errors
/// It gets no ring.
pub fn run(task: Task) -> Result<()> {
    if task.own_namespace {
        sys::new_pidns().context("cannot make a pid namespace")?;
        let inner = Task { own_namespace: false, ..task };
        // Its last line is ours. It cannot be bound to us by its parent's number, which it does not see.
        let status = again(&inner)?.stdin(Stdio::null()).status()?;
        ensure!(status.success(), "the guest failed: {status}");
        return Ok(());
    }
    if let Some(uid) = task.uid {
        sys::become_user(uid).context("cannot become another user")?;
    }
    let rings = Rings::open(&task.at)?;
    let written = behave(&task, &rings)?;
    print_json(&Summary { rings: rings.producers.len(), written });
    Ok(())
}

/// The rings of one process, with the connections that keep them.
struct Rings {
    producers: Vec<Producer>,
    clients: Vec<Client>,
}

impl Rings {
    fn open(at: &Place) -> Result<Rings> {
        let (mut producers, mut clients) = (Vec::new(), Vec::new());
        match at {
            Place::Ring(path) => producers.push(Producer::open(path)?),
            Place::Socket(path, rings) => {
                for _ in 0..*rings {
                    let client = Client::connect(path).context("cannot connect")?;
                    // The recorder may be busy with others.
                    if let Received::Welcome(producer, _) = client.recv(30_000) {
                        producers.push(producer);
                        clients.push(client);
                    }
                }
            }
        }
        ensure!(!producers.is_empty(), "the recorder gave no ring");
        Ok(Rings { producers, clients })
    }
}

fn behave(task: &Task, rings: &Rings) -> Result<u64> {
    let (first, index) = (&rings.producers[0], task.index);
    let end = Instant::now() + Duration::from_secs_f64(task.seconds);
    match task.manner.clone() {
        Manner::Honest { threads, per_second } => Ok(std::thread::scope(|scope| {
            let write = |n: u32| {
                let name = format!("g{index}.{n}");
                let text = format!("{index}:{name}");
                let each = (per_second / threads.max(1)).max(1);
                let work = move || pace(end, each, || first.mark(&*text, None));
                std::thread::Builder::new().name(name).spawn_scoped(scope, work)
            };
            let all: Vec<_> = (0..threads).filter_map(|n| write(n).ok()).collect();
            all.into_iter().filter_map(|thread| thread.join().ok()).sum()
        })),
        Manner::ShortLived { per_second, reused } => {
            let mut n = 0;
            Ok(5 * pace(end, per_second, || {
                n += 1;
                // The next round of numbers, much sooner than a host would come to it.
                if reused && n % (5 * per_second) == 0 {
                    let _ = set_last_pid(std::process::id() + 10);
                }
                let name = format!("s{index}.{n}");
                let text = format!("{index}:{name}");
                let thread = std::thread::Builder::new().name(name);
                let work = || (0..5).for_each(|_| first.mark(&*text, None));
                std::thread::scope(|scope| {
                    let _ = thread.spawn_scoped(scope, work);
                });
            }))
        }
        Manner::Liar { per_second, victims } => {
            let text = format!("{index}:liar");
            let (mut random, own) = (Random::new(task.seed), std::process::id());
            Ok(pace(end, per_second, || {
                let drawn = below(&mut random, victims.len() as u64 + 2) as usize;
                let tid = match victims.get(drawn) {
                    Some(victim) => *victim,
                    None => below(&mut random, 1 << 22) as u32,
                };
                let pid = if below(&mut random, 8) == 0 { tid } else { own };
                raw_mark(first, &text, pid, tid);
            }))
        }
        Manner::Flood => Ok(std::thread::scope(|scope| {
            let flood = |(n, producer): (usize, &Producer)| {
                let (producer, seed) = (producer.clone(), task.seed.wrapping_add(n as u64));
                scope.spawn(move || flood(&producer, seed, end))
            };
            let all: Vec<_> = rings.producers.iter().enumerate().map(flood).collect();
            all.into_iter().filter_map(|thread| thread.join().ok()).sum()
        })),
        Manner::Testator { per_second } => {
            first.mark(&*format!("{index}:testator"), None);
            bequeath(task, rings, per_second)?;
            Ok(1)
        }
        Manner::Heir { per_second, pid } => {
            let text = format!("{index}:heir");
            Ok(pace(end, per_second, || raw_mark(first, &text, pid, pid)))
        }
    }
}

/// Calls `work` so many times a second until the time is over; how often.
fn pace(end: Instant, per_second: u32, mut work: impl FnMut()) -> u64 {
    // In bursts of a hundredth of a second.
    let mut next = sys::now();
    let (mut done, mut owed) = (0, 0.0);
    while Instant::now() < end {
        owed += f64::from(per_second) / 100.0;
        while owed >= 1.0 {
            work();
            (owed, done) = (owed - 1.0, done + 1);
        }
        next += 10_000_000;
        sys::sleep_until(next);
    }
    done
}

fn below(random: &mut Random, n: u64) -> u64 {
    random.next_u64() % n.max(1)
}

/// A mark under any numbers.
fn raw_mark(producer: &Producer, text: &str, pid: u32, tid: u32) {
    let event = Event::Mark { name: producer.name(text), at: gpuwhy_wire::now(), value: None };
    if let Some(ring) = producer.raw() {
        ring.push(&mut encode(&Record { pid, tid, event }));
    }
}

/// Random records until the time is over; how many.
fn flood(producer: &Producer, seed: u64, end: Instant) -> u64 {
    let Some(ring) = producer.raw() else { return 0 };
    let (mut random, mut written, pid) = (Random::new(seed), 0, std::process::id());
    while Instant::now() < end {
        for _ in 0..1000 {
            let text = format!("{:0>100}", below(&mut random, 1 << 20));
            let (tid, name) = (below(&mut random, 1 << 22) as u32, producer.name(&text));
            let event = random_event(&mut random, name);
            ring.push(&mut encode(&Record { pid, tid, event }));
            written += 1;
            vandalise(ring, &mut random);
        }
    }
    written
}

/// Now and then it writes over what is not its own to write.
fn vandalise(ring: &RawRing, random: &mut Random) {
    use std::sync::atomic::Ordering::Relaxed;
    let header = ring.header();
    match below(random, 10_000) {
        0 => header.lost.store(below(random, u64::MAX), Relaxed),
        1 => header.head.store(below(random, u64::MAX), Relaxed),
        2 => header.tail.store(below(random, 1 << 20), Relaxed),
        _ => {}
    }
}

fn random_event(random: &mut Random, name: gpuwhy_wire::NameId) -> Event {
    let (start, dur) = (gpuwhy_wire::now().saturating_sub(below(random, 1 << 20)), 1000);
    let (device, stream) = (below(random, 1 << 16) as u16, below(random, 1 << 32) as u32);
    let (seq, at) = (below(random, 1 << 20), start);
    match below(random, 10) {
        0 => Event::Kernel { name, device, stream, correlation: seq, graph: None, start, dur },
        1 => Event::Launch { name, device, stream, correlation: seq, start, dur },
        2 => Event::Counter { name, unit: name, device: Some(device), at, value: 1.0 },
        3 => Event::Counter { name, unit: name, device: None, at, value: 1.0 },
        4 => Event::Device { name, device, at },
        5 => {
            let communicator = device;
            Event::Communicator { name, communicator, id: seq, rank: stream, ranks: 9, at }
        }
        6 => Event::Notice { name, code: stream, value: None, at },
        7 => Event::Phase { name, step: Some(seq), start, dur },
        8 => Event::StepOpen { name, seq, size: None, rank: Some(stream), start },
        _ => Event::Mark { name, at, value: None },
    }
}

/// Starts an heir, which has our socket as its input and our ring open.
fn bequeath(task: &Task, rings: &Rings, per_second: u32) -> Result<()> {
    let socket = rings.clients.first().context("a testator has a socket")?;
    let ring = own_ring().context("a testator has a ring")?;
    let heir = Task {
        at: Place::Ring(ring),
        manner: Manner::Heir { per_second, pid: std::process::id() },
        ..task.clone()
    };
    let mut child = again(&heir)?
        .stdin(Stdio::from(sys::duplicate(socket.as_raw_fd())?))
        .stdout(Stdio::null())
        .spawn()?;
    // Once it has opened the ring, we are not needed any more.
    let maps = format!("/proc/{}/maps", child.id());
    for _ in 0..500 {
        if fs::read_to_string(&maps).unwrap_or_default().contains("gpuwhy-ring") {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    anyhow::bail!("the heir did not open the ring")
}

/// This program in the role of another guest, which goes on without us.
fn again(task: &Task) -> Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    command.args([MARKER, "guest", &serde_json::to_string(task)?]);
    Ok(command)
}

/// Where others find the ring that the recorder gave us.
fn own_ring() -> Option<PathBuf> {
    let all = fs::read_dir("/proc/self/fd").ok()?.flatten();
    let is_ring = |path: &Path| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("gpuwhy-ring"))
    };
    let fd = all.map(|entry| entry.path()).find(|path| is_ring(path))?;
    Some(format!("/proc/{}/fd/{}", std::process::id(), fd.file_name()?.to_str()?).into())
}
