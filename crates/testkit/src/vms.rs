//! Small virtual machines under KVM, and threads of the host in their way: the truth about who took CPUs from whom.
//!
//! Each is a process of its own, pinned to a CPU. One that spins wants its CPU always; one that halts does nothing,
//! but for every 5 ms, when a signal interrupts it and its virtual CPU is entered again. When its time is over, it says what the kernel has counted of
//! the thread that ran its virtual CPU: an involuntary switch is a preemption. Its threads have no names that tell what
//! they are.

use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::gpu::Environment;
use crate::helper::{HelperProcess, print_json};
use crate::sys::{self, Switches};

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A virtual machine that wants its CPU always.
    Spins,
    /// A virtual machine that halts.
    Halts,
    /// No virtual machine; a thread that wants its CPU always.
    Hog,
}

/// A process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// What it does.
    pub kind: Kind,
    /// The CPU that it is pinned to.
    pub cpu: usize,
    /// How long, s.
    pub seconds: f64,
}

impl FromStr for Task {
    type Err = String;

    /// `CPU:KIND`, of no duration.
    fn from_str(text: &str) -> Result<Task, String> {
        let parts = text.split_once(':').and_then(|(cpu, kind)| Some((cpu.parse().ok()?, kind)));
        let kind = match parts.map(|parts| parts.1) {
            Some("spins") => Kind::Spins,
            Some("halts") => Kind::Halts,
            Some("hog") => Kind::Hog,
            _ => return Err("write CPU:spins, CPU:halts or CPU:hog".into()),
        };
        Ok(Task { kind, cpu: parts.map_or(0, |parts| parts.0), seconds: 0.0 })
    }
}

/// What became of one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ran {
    /// What it did.
    pub kind: Kind,
    /// Where.
    pub cpu: usize,
    /// Its process.
    pub pid: i32,
    /// What the kernel counted of the thread that ran its virtual CPU, or of the hog's.
    pub switches: Switches,
    /// How often its code came to its end, or was interrupted where it had halted.
    pub rounds: u64,
}

/// Starts one.
///
/// # Errors
/// The process cannot be started.
pub fn start(task: &Task) -> Result<HelperProcess<Ran>> {
    HelperProcess::start("vm", task, &Environment::default())
}

/// Runs all of them to their ends, at the same time.
///
/// # Errors
/// One of them failed.
pub fn together(tasks: &[Task]) -> Result<Vec<Ran>> {
    let all = tasks.iter().map(start).collect::<Result<Vec<_>>>()?;
    all.into_iter().map(HelperProcess::finish).collect()
}

/// The role of a process.
pub(crate) fn run(task: Task) -> Result<()> {
    let Task { kind, cpu, seconds } = task;
    let until = sys::now() + (seconds * 1e9) as u64;
    sys::set_comm(match kind {
        Kind::Spins => "vm-spins",
        Kind::Halts => "vm-halts",
        Kind::Hog => "hog",
    });
    sys::pin(cpu).with_context(|| format!("cannot run on CPU {cpu}"))?;
    sys::survive_interrupts().context("cannot handle a signal")?;
    // A thread of its own, which does nothing but run the virtual CPU.
    let guest = Guest::new(kind)?;
    let (send, receive) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || -> Result<Ran> {
        let _ = send.send(sys::thread_id());
        let rounds = guest.run(until)?;
        Ok(Ran { kind, cpu, pid: std::process::id() as i32, switches: sys::switches(), rounds })
    });
    let tid = receive.recv().unwrap_or_default();
    while kind == Kind::Halts && !thread.is_finished() {
        sys::sleep_until(sys::now() + 5_000_000);
        sys::interrupt(tid);
    }
    match thread.join() {
        Ok(ran) => print_json(&ran?),
        Err(_) => bail!("the thread of a virtual CPU has panicked"),
    }
    Ok(())
}

fn spin(until: u64) -> u64 {
    let (mut x, mut rounds) = (1u64, 0);
    while sys::now() < until {
        for _ in 0..100_000 {
            x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
        }
        rounds += 1;
    }
    rounds
}

/// Counts to 20,000, writes to a port, and begins again.
#[cfg(target_arch = "x86_64")]
const SPINS: &[u8] = &[
    0x66, 0xb9, 0x20, 0x4e, 0x00, 0x00, // mov ecx, 20000
    0x67, 0xe2, 0xfd, // loop to itself, by ecx
    0xe6, 0x10, // out 0x10, al
    0xeb, 0xf3, // jmp to the begin
];
/// Halts, and halts again.
#[cfg(target_arch = "x86_64")]
const HALTS: &[u8] = &[0xf4, 0xeb, 0xfd];

/// What a thread runs.
enum Guest {
    Hog,
    #[cfg(target_arch = "x86_64")]
    Machine(sys::kvm::Machine, sys::kvm::Stop),
}

impl Guest {
    #[cfg(target_arch = "x86_64")]
    fn new(kind: Kind) -> Result<Guest> {
        use sys::kvm::{Machine, Stop};
        let (code, expected) = match kind {
            Kind::Hog => return Ok(Guest::Hog),
            Kind::Halts => (HALTS, Stop::Interrupted),
            Kind::Spins => (SPINS, Stop::Wrote(0x10)),
        };
        let machine = Machine::new(code).context("cannot make a virtual machine with /dev/kvm")?;
        Ok(Guest::Machine(machine, expected))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn new(kind: Kind) -> Result<Guest> {
        match kind {
            Kind::Hog => Ok(Guest::Hog),
            _ => bail!("the code of these virtual machines is of x86-64"),
        }
    }

    /// Until a time; how many rounds that were.
    fn run(self, until: u64) -> Result<u64> {
        match self {
            Guest::Hog => Ok(spin(until)),
            #[cfg(target_arch = "x86_64")]
            Guest::Machine(mut machine, expected) => {
                let mut rounds = 0;
                while sys::now() < until {
                    let stop = machine.run().context("cannot run a virtual CPU")?;
                    let is_expected = stop == expected || stop == sys::kvm::Stop::Interrupted;
                    ensure!(is_expected, "the virtual machine stopped: {stop:?}");
                    rounds += u64::from(stop == expected);
                }
                Ok(rounds)
            }
        }
    }
}

/// Whether virtual machines can be made here; the reason if not.
pub fn refusal() -> Option<String> {
    let open = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    match open {
        Ok(_) if cfg!(target_arch = "x86_64") => None,
        Ok(_) => Some("the code of the virtual machines is of x86-64".into()),
        Err(error) => Some(format!("/dev/kvm: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_by_its_cpu_and_what_it_does() {
        let task: Task = "3:halts".parse().unwrap();
        assert_eq!((task.cpu, task.kind), (3, Kind::Halts));
        for bad in ["halts", "3", "x:hog", "3:sleeps"] {
            assert!(bad.parse::<Task>().is_err(), "{bad}");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn root_a_guest_writes_to_its_port() {
        if let Some(reason) = refusal() {
            return eprintln!("skipped: {reason}");
        }
        let soon = sys::now() + 100_000_000;
        assert!(Guest::new(Kind::Spins).unwrap().run(soon).unwrap() > 0);
    }
}
