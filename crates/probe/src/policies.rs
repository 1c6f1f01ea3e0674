//! The controller's part of policies: the processes that tell of their memory and launches, and what policies ask of
//! each.
//!
//! Each process has a machine of its own: policies keep their maps apart, and what one asks for while it hears of a
//! process is asked of that one.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpuwhy_gpubpf::contents::Contents;
use gpuwhy_gpubpf::policy::{Machine, Policy};
use gpuwhy_gpubpf::{Action, Event};
use gpuwhy_wire::images::{Exchange, Request, Told, name_hash};
use gpuwhy_wire::now;

/// How often it is looked for what processes tell.
const EVERY: Duration = Duration::from_millis(2);
/// How often policies hear of the time, and see the maps of device programs.
const TICK: Duration = Duration::from_millis(100);
/// The most processes.
const MOST: usize = 256;
/// The most allocations of a process whose places are known.
const MOST_ALLOCATIONS: usize = 1 << 16;

/// The policies, and the processes that they are for.
#[derive(Debug)]
pub(crate) struct Policies {
    pub policy: Policy,
    /// Whether what they ask for is told alone.
    pub dry_run: bool,
    /// The maps of device programs that they see.
    shared: Vec<String>,
    processes: Mutex<Vec<Process>>,
}

/// What was decided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Decided {
    pub prefetches: u64,
    pub prefetch_bytes: u64,
    pub advice: u64,
    pub delays: u64,
    pub priorities: u64,
    /// Beyond what one run of a program may ask for, or what the process has room for.
    pub no_room: u64,
}

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    pub pid: i32,
    pub program: String,
    pub exchange: Exchange,
    /// `None` once a program has failed.
    machine: Option<Machine>,
    /// By number: first byte, and how many.
    allocations: BTreeMap<u64, (u64, u64)>,
    /// Events by kind: allocations, launches, ticks.
    pub events: [u64; 3],
    pub decided: Decided,
    pub failed: Option<String>,
}

impl Policies {
    /// Policies that see these maps of device programs.
    pub fn new(policy: Policy, shared: Vec<String>, dry_run: bool) -> Self {
        Self { policy, dry_run, shared, processes: Mutex::default() }
    }

    /// The processes so far.
    pub fn processes(&self) -> MutexGuard<'_, Vec<Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process is about to make its first call: `answer` sends it the exchange.
    pub fn open(
        &self,
        pid: i32,
        program: String,
        answer: impl FnOnce(&Exchange) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let machine = Machine::new(&self.policy).map_err(std::io::Error::other)?;
        let mut process = Process {
            pid,
            program,
            exchange: Exchange::new()?,
            machine: Some(machine),
            allocations: BTreeMap::new(),
            events: [0; 3],
            decided: Decided::default(),
            failed: None,
        };
        process.exchange.beat(now());
        process.tick(self.dry_run, &[]);
        let mut processes = self.processes();
        if processes.len() >= MOST {
            return Err(std::io::ErrorKind::QuotaExceeded.into());
        }
        answer(&process.exchange)?;
        processes.push(process);
        Ok(())
    }

    /// Runs the policies until `stop`. `maps` gives the copies of a map of device programs in a process, by its pid
    /// and the map's name; `None` where these are being written, so that the policies see the older ones.
    pub fn serve(&self, stop: &AtomicBool, maps: impl Fn(i32, &str) -> Option<Vec<Contents>>) {
        let mut next = Instant::now() + TICK;
        loop {
            // What was told before the command ended is heard.
            let last = stop.load(Relaxed);
            let ticks = Instant::now() >= next;
            if ticks {
                next = Instant::now() + TICK;
            }
            for process in self.processes().iter_mut() {
                process.exchange.beat(now());
                process.hear(self.dry_run);
                if ticks && process.is_there() {
                    let shown: Vec<(&str, Vec<Contents>)> = self
                        .shared
                        .iter()
                        .filter_map(|name| Some((name.as_str(), maps(process.pid, name)?)))
                        .collect();
                    process.tick(self.dry_run, &shown);
                }
            }
            if last {
                return;
            }
            std::thread::sleep(EVERY);
        }
    }
}

/// What the program is asked for.
fn request(action: Action) -> Request {
    match action {
        Action::Prefetch { address, bytes } => Request::Prefetch { address, bytes },
        Action::Advise { address, bytes, advice } => Request::Advise { address, bytes, advice },
        Action::Delay { kernel, us } => Request::Delay { kernel, us },
        Action::Priority { stream, priority } => Request::Priority { stream, priority },
    }
}

impl Decided {
    fn count(&mut self, action: Action) {
        match action {
            Action::Prefetch { bytes, .. } => {
                self.prefetches += 1;
                self.prefetch_bytes = self.prefetch_bytes.saturating_add(bytes);
            }
            Action::Advise { .. } => self.advice += 1,
            Action::Delay { .. } => self.delays += 1,
            Action::Priority { .. } => self.priorities += 1,
        }
    }
}

impl Process {
    /// Whether it has not ended, as far as that is known.
    fn is_there(&self) -> bool {
        let dir = format!("/proc/{}", self.pid);
        // One outside of our namespace has the number 0.
        !self.exchange.is_closed() && (self.pid == 0 || std::path::Path::new(&dir).exists())
    }

    /// What the process has told since.
    fn hear(&mut self, dry_run: bool) {
        let mut told = Vec::new();
        self.exchange.told(|one| told.push(one));
        for one in told {
            match one {
                Told::Memory { number, address, bytes, managed, device, freed } => {
                    if freed {
                        self.allocations.remove(&number);
                    } else if self.allocations.len() < MOST_ALLOCATIONS {
                        self.allocations.insert(number, (address, bytes));
                    }
                    let kind = if managed { 2 } else { 1 };
                    let words = [number, address, bytes, kind, device, freed.into()];
                    self.run(Event::Allocation, &words, dry_run);
                }
                Told::Launch { number, kernel, stream, grid, block, pointers, pointer } => {
                    let mut words = vec![number, kernel, stream];
                    words.extend(grid.iter().chain(&block).map(|side| u64::from(*side)));
                    words.push(pointers);
                    for (allocation, offset) in pointer {
                        let place = self.allocations.get(&allocation).copied();
                        let (base, bytes) = place.unwrap_or_default();
                        words.extend([allocation, base, bytes, offset]);
                    }
                    self.run(Event::Launch, &words, dry_run);
                }
            }
        }
    }

    /// A tick, with what maps of device programs hold.
    fn tick(&mut self, dry_run: bool, maps: &[(&str, Vec<Contents>)]) {
        if let Some(machine) = &mut self.machine {
            for (name, copies) in maps {
                machine.show(name, &copies.iter().collect::<Vec<_>>());
            }
        }
        let (pid, program) = (self.pid.try_into().unwrap_or(0), name_hash(self.program.as_bytes()));
        let words = [now(), self.events[Event::Tick as usize], pid, program];
        self.run(Event::Tick, &words, dry_run);
    }

    /// Runs the programs of an event, and asks for what they ask for.
    fn run(&mut self, event: Event, words: &[u64], dry_run: bool) {
        self.events[event as usize] += 1;
        let Some(machine) = &mut self.machine else { return };
        match machine.run(event, words, now()) {
            Ok(asked) => {
                self.decided.no_room += asked.lost;
                for action in asked.actions {
                    self.decided.count(action);
                    if !dry_run && !self.exchange.ask(request(action)) {
                        self.decided.no_room += 1;
                    }
                }
            }
            Err(why) => {
                self.failed = Some(why);
                self.machine = None;
            }
        }
    }

    /// What the maps of its policies hold.
    pub fn maps(&self) -> Vec<Contents> {
        self.machine.as_ref().map(Machine::maps).unwrap_or_default()
    }
}
