//! Interpreters of Python programs.
//!
//! *What it sees*: which targets and descendants of them run CPython, and where in their memory its interpreter lock and the
//! stacks of its threads are. *Why it matters*: a wait for the interpreter lock is told from other waits by its
//! address, and stacks name functions of the program instead of the interpreter's.
//!
//! *What fools it*: an interpreter that exports no `_PyRuntime`, or whose file is called neither `python…` nor `libpython…`
//! (PyPy, frozen programs); sub-interpreters with locks of their own. A process is looked at again when it may have loaded
//! one, the last time half a minute after it was first seen. Stacks are read of 3.10 to 3.15 on x86-64; the lock of any later
//! version too.

use std::rc::Rc;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Ns, SourceId, sources};

use crate::bpf::Bpf;
use crate::config::Target;
use crate::context::Context;
use crate::error::CollectError;
use crate::every::Every;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::procfs::{self, process_tree};
use crate::{python, sys};

pub(crate) const PROBE: ProbeSpec = ProbeSpec::new(
    "python",
    &sources::PYTHON,
    "where the interpreters of Python programs have their lock and their stacks",
    start,
);

/// When a process is looked at: so long after it was first seen.
const LOOKS: [Ns; 5] = [Ns::millis(200), Ns::secs(1), Ns::secs(4), Ns::secs(12), Ns::secs(30)];
/// How often new descendants are looked for, if there are any new processes.
const PERIOD: Ns = Ns::millis(500);
/// Processes that are known.
const KEPT: usize = 4096;

/// What is known of a process.
struct Known {
    /// When it began, in clock ticks, so that it is told from a later one of its number.
    start: u64,
    seen: Ns,
    looks: usize,
    has_interpreter: bool,
}

struct PythonProbe {
    bpf: Rc<Bpf>,
    source: SourceId,
    targets: Vec<u32>,
    every: Every,
    /// The latest process of the host at the last look for descendants.
    latest: Option<u32>,
    known: HashMap<u32, Known>,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    start.bpf.check()?;
    Ok(Box::new(PythonProbe {
        bpf: Rc::clone(start.bpf),
        source: start.source,
        targets: start.config.targets.iter().filter_map(|t| u32::try_from(t.pid()).ok()).collect(),
        every: Every::new(PERIOD),
        latest: None,
        known: HashMap::new(),
    }))
}

impl PythonProbe {
    /// Learns of descendants that are new, and forgets processes that have ended.
    fn find_processes(&mut self, now: Ns) {
        let latest = procfs::latest_process();
        if latest.is_some() && latest == self.latest {
            return;
        }
        self.latest = latest;
        let trees = self.targets.iter().flat_map(|pid| process_tree((*pid).cast_signed()));
        let mut lives: Vec<u32> = trees.collect();
        lives.sort_unstable();
        lives.dedup();
        lives.truncate(KEPT);
        self.known.retain(|pid, _| lives.binary_search(pid).is_ok());
        for pid in lives {
            let Some(start) = procfs::start_time(pid) else { continue };
            let fresh = Known { start, seen: now, looks: 0, has_interpreter: false };
            match self.known.get_mut(&pid) {
                Some(known) if known.start == start => {}
                Some(known) => *known = fresh,
                None => drop(self.known.insert(pid, fresh)),
            }
        }
    }

    /// Looks for an interpreter in a process.
    fn look(&self, pid: u32, cx: &mut Context) -> bool {
        let mut found = false;
        for file in python::files(pid) {
            let Some(interpreter) = file.interpreter(pid) else { continue };
            found = true;
            if let Err(error) = self.bpf.set_python(pid, &interpreter.for_kernel()) {
                cx.degraded(self.source, &format!("an interpreter is not followed: {error}"));
            } else if interpreter.layout.is_none() {
                let minor = interpreter.minor;
                cx.degraded(self.source, &format!("stacks of Python 3.{minor} are not read"));
            }
            if cx.interpreters.len() < KEPT {
                cx.interpreters.push(file);
            }
        }
        found
    }
}

impl Probe for PythonProbe {
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if !self.every.is_due(now) {
            return Ok(());
        }
        // Threads that come and go all the time make the trees be walked each time.
        let began = sys::thread_time();
        self.find_processes(now);
        self.every.spare(sys::thread_time() - began, now);
        let is_due = |known: &Known| {
            let due = LOOKS.get(known.looks).is_some_and(|after| now - known.seen >= *after);
            due && !known.has_interpreter
        };
        let due: Vec<u32> =
            self.known.iter().filter(|(_, k)| is_due(k)).map(|(pid, _)| *pid).collect();
        for pid in due {
            let found = self.look(pid, cx);
            if let Some(known) = self.known.get_mut(&pid) {
                known.looks += 1;
                known.has_interpreter = found;
            }
        }
        Ok(())
    }

    fn add_target(&mut self, target: Target, _cx: &mut Context) -> Result<(), CollectError> {
        if let Ok(pid) = u32::try_from(target.pid())
            && self.targets.len() < KEPT
        {
            self.targets.push(pid);
            self.latest = None;
        }
        Ok(())
    }
}
