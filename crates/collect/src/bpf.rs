//! The kernel side: loads the probes' BPF objects, shares their maps, drains their ring.
//!
//! The maps of `gpuwhy.h` are created once, from an object without programs, and every probe's
//! object is given the same descriptors. Maps that the recorder reads at every tick are arrays that
//! it maps into its own memory (`BPF_F_MMAPABLE`), so that a tick costs no system call for them.

pub(crate) mod layout;
mod mapped;
mod messages;
mod object;
pub(crate) mod process_sums;
mod ring;
pub(crate) mod run_time;
mod shared_array;
pub(crate) mod uprobes;

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};

use gpuwhy_schema::Ns;
use libbpf_rs::btf::types::{Enum, FuncProto, Ptr, Typedef};
use libbpf_rs::btf::{Btf, ReferencesType};
use libbpf_rs::{MapHandle, Object, ObjectBuilder, OpenObject};

pub(crate) use layout::{bytes_of, from_bytes, shared_with_c, text_of};
pub(crate) use mapped::MappedArray;
pub(crate) use object::{LoadedObject, bpf_object, leave_out, set_constants, set_map_entries};
pub(crate) use ring::records;
pub use shared_array::SharedArray;

use crate::error::{CollectError, error_chain};
use crate::sys;
use object::put;
use ring::Ring;

mod numbers {
    include!(concat!(env!("OUT_DIR"), "/probe_numbers.rs"));
}
use numbers::{PROBE_SLOTS, STEMS};

/// The oldest kernel that has all that the probes cannot do without.
pub(crate) const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// Run times and losses are asked for by several, once a second each, at a system call for each of some sixty programs.
const KNOWN_HOLDS: Ns = Ns::millis(200);

/// What came with [`OLDEST_KERNEL`], after task storage for tracing programs (5.13) and atomic
/// operations (5.12). Distributions bring it to older kernels (RHEL 9 to its 5.14).
const NEWEST_HELPER: &str = "BPF_FUNC_task_pt_regs";

/// Softirq vectors of Linux, in the kernel's order.
pub(crate) const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// The number of a probe in the kernel's records and counters: the place of its `.bpf.c` file among all
/// of them in the order of their names, from 1. `None` for a probe without one.
pub(crate) fn probe_number(name: &str) -> Option<usize> {
    STEMS.iter().position(|stem| *stem == name).map(|i| i + 1)
}

// The structs of `gpuwhy.h`, where each field is explained.
shared_with_c! {
    objects ["shared"];

    /// One CPU's counters. Times are ns since the objects were loaded.
    pub(crate) struct CpuCounters = "cpu" {
        /// In interrupt handlers.
        pub hardirq_ns: u64,
        /// In each softirq vector.
        pub softirq_ns: [u64; SOFTIRQS.len()],
        hardirq_start: u64,
        softirq_start: u64,
        softirq_hardirq0: u64,
        hardirq_depth: u32,
        softirq_vec: u32,
        slice_hardirq_ns: u64,
        slice_softirq_ns: u64,
        slice_vec_ns: [u64; SOFTIRQS.len()],
        /// How long all threads together waited for this CPU.
        pub runq_wait_ns: u64,
        /// Context switches.
        pub switches: u64,
        /// Ring records lost to a full ring, by [`probe_number`].
        pub dropped: [u64; PROBE_SLOTS],
        credit: u64,
        credited: u64,
        stolen_ns: u64,
        stolen_recorded_ns: u64,
        /// When the kernel last told exactly what the hypervisor had taken of it; 0: never.
        pub stolen_at: u64,
    }

    /// The beginning of every ring record.
    pub(crate) struct Head = "head" {
        /// ns, CLOCK_MONOTONIC.
        pub ts: u64,
        /// Which of the probe's records it is.
        pub kind: u8,
        /// The probe's number.
        pub probe: u8,
        /// The CPU it was written on.
        pub cpu: u16,
        /// The thread that it is about, 0 for none.
        pub tid: u32,
    }

    /// The interpreter of a process that runs Python: addresses, and offsets in bytes.
    pub(crate) struct Python = "python" {
        /// `_PyRuntime`, which holds the interpreter lock.
        pub from: u64,
        /// Its end.
        pub to: u64,
        /// In `_PyRuntime`: the first interpreter; 0: stacks cannot be read.
        pub interpreters: u32,
        /// In it: its first thread.
        pub threads: u32,
        /// In a thread: the next one.
        pub next_thread: u32,
        /// What `pthread_self()` says there.
        pub thread_id: u32,
        /// Its innermost frame, or the struct that holds that.
        pub frame: u32,
        /// Where in that struct the frame is; `u32::MAX` if there is no such struct.
        pub in_between: u32,
        /// In a frame: the one that called it.
        pub previous: u32,
        /// Its code object.
        pub code: u32,
        /// Where in the code it is.
        pub instruction: u32,
        /// Whose it is; `u32::MAX` where frames have no such member.
        pub owner: u32,
    }

    /// What the recorder changes while the programs run.
    pub(crate) struct Knobs = "knobs" {
        /// ns that one exact record costs a CPU, which may save up a second's worth.
        pub record_ns: u32,
        /// Whether a thread becomes of interest by waking one that is.
        pub without_wakers: u32,
        /// Whether messages are left out.
        pub without_messages: u32,
        pub pad: u32,
        /// ns; what the scheduler probe noted before is out of date.
        pub resumed: u64,
    }
}

/// The maps that all probes share, and the loader of their objects.
pub(crate) struct Bpf {
    /// Or why there are none.
    shared: Result<SharedMaps, String>,
    cpu_count: usize,
    /// With the probe that each belongs to.
    programs: RefCell<Vec<(&'static str, OwnedFd)>>,
    /// What the kernel said last of the programs, and when.
    known: RefCell<Option<(Ns, Known)>>,
    kernel_types: RefCell<Option<Btf<'static>>>,
}

/// What the kernel knows of our programs, since they were loaded.
#[derive(Default)]
struct Known {
    run_time: Ns,
    runs: u64,
    /// For each probe, how often its programs did not run for an event.
    missed: Vec<(&'static str, u64)>,
}

struct SharedMaps {
    events: MapHandle,
    tasks: MapHandle,
    cpus: MapHandle,
    targets: MapHandle,
    generation: MapHandle,
    knobs: MapHandle,
    pythons: MapHandle,
    changes: Cell<u32>,
    counters: MappedArray<CpuCounters>,
    ring: Ring,
    _object: Object,
}

impl std::fmt::Debug for Bpf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bpf")
            .field("shared", &self.shared.as_ref().map(|_| ()))
            .finish_non_exhaustive()
    }
}

impl Bpf {
    /// Creates the shared maps, with a ring of `ring_bytes` (rounded up to a power of two, at
    /// least a page). Where the kernel refuses, sources that need no BPF run all the same, and
    /// [`Bpf::load`] says why the others do not.
    pub fn new(ring_bytes: u32) -> Bpf {
        messages::capture();
        let cpu_count = libbpf_rs::num_possible_cpus().unwrap_or(1);
        let shared = SharedMaps::new(ring_bytes, cpu_count).map_err(|error| error_chain(&error));
        let kernel_types = RefCell::new(Btf::from_vmlinux().ok());
        let (programs, known) = (RefCell::default(), RefCell::default());
        Bpf { shared, cpu_count, programs, known, kernel_types }
    }

    /// Why BPF cannot be used, if it cannot.
    pub fn refusal(&self) -> Option<&str> {
        self.shared.as_ref().err().map(String::as_str)
    }

    /// Fails if BPF cannot be used.
    ///
    /// # Errors
    /// It cannot, and why.
    pub fn check(&self) -> Result<(), CollectError> {
        self.maps().map(|_| ())
    }

    fn maps(&self) -> Result<&SharedMaps, CollectError> {
        self.shared.as_ref().map_err(|why| CollectError::Unsupported {
            missing: format!("BPF cannot be used: {why}"),
            fix: "run as root, or give the program CAP_BPF and CAP_PERFMON; `gpuwhy doctor` \
                  says more"
                .into(),
        })
    }

    /// Opens the object of `probe`, lets `configure` change it (sizes of maps, programs left out),
    /// gives it the shared maps, and loads it. Programs for tracepoints that this kernel does not
    /// have are left out.
    ///
    /// # Errors
    /// What libbpf or the verifier objects to.
    pub fn load(
        &self,
        probe: &'static str,
        bytes: &[u8],
        configure: impl FnOnce(&mut OpenObject) -> Result<(), libbpf_rs::Error>,
    ) -> Result<LoadedObject, CollectError> {
        let shared = self.maps()?;
        let load = |source| CollectError::Load { probe, message: messages::take(), source };
        let mut open = open(probe, bytes).map_err(load)?;
        configure(&mut open).map_err(load)?;
        for mut map in open.maps_mut() {
            let ours = match map.name().to_str() {
                Some("events") => &shared.events,
                Some("tasks") => &shared.tasks,
                Some("cpus") => &shared.cpus,
                Some("targets") => &shared.targets,
                Some("generation") => &shared.generation,
                Some("knobs") => &shared.knobs,
                Some("pythons") => &shared.pythons,
                _ => continue,
            };
            map.reuse_fd(ours.as_fd()).map_err(load)?;
        }
        for mut program in open.progs_mut() {
            let section = program.section().to_string_lossy().into_owned();
            if let Some(tracepoint) = section.strip_prefix("tp_btf/")
                && self.tracepoint_arguments(tracepoint).is_none()
            {
                program.set_autoload(false);
            }
        }
        let object = open.load().map_err(load)?;
        let mut programs = self.programs.borrow_mut();
        for program in object.progs() {
            if let Ok(fd) = program.as_fd().try_clone_to_owned() {
                programs.push((probe, fd));
            }
        }
        Ok(LoadedObject { object, links: Vec::new(), probe })
    }

    /// How many arguments the tracepoint has on this kernel, `None` if the kernel lacks it. Only
    /// while probes start.
    pub fn tracepoint_arguments(&self, name: &str) -> Option<usize> {
        let btf = self.kernel_types.borrow();
        let typedef = btf.as_ref()?.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"))?;
        let pointer = Ptr::try_from(typedef.referenced_type()).ok()?;
        let function = FuncProto::try_from(pointer.referenced_type()).ok()?;
        // The first parameter is the tracepoint's own.
        Some(function.iter().count().saturating_sub(1))
    }

    /// Frees the kernel's types (some MB) once all probes have started.
    pub fn forget_kernel_types(&self) {
        self.kernel_types.replace(None);
    }

    /// Moves the records that lie in the ring to `into`, up to one ring's worth; [`records`] walks
    /// them.
    pub fn drain(&self, into: &mut Vec<u8>) {
        into.clear();
        if let Ok(shared) = &self.shared {
            shared.ring.drain(into);
        }
    }

    /// Makes these processes, by tgid, targets from now on; `hops` wakers away from them threads
    /// are of interest too.
    ///
    /// # Errors
    /// The kernel refuses; there may be too many.
    pub fn add_targets(&self, tgids: &[u32], hops: u32) -> Result<(), CollectError> {
        let Ok(shared) = &self.shared else { return Ok(()) };
        for tgid in tgids {
            put(&shared.targets, "targets", bytes_of(tgid), bytes_of(&hops))?;
        }
        shared.changes.set(shared.changes.get() + 1);
        let changes = shared.changes.get();
        put(&shared.generation, "generation", bytes_of(&0_u32), bytes_of(&changes))
    }

    /// Changes what the programs record while they run.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_knobs(&self, knobs: &Knobs) -> Result<(), CollectError> {
        let Ok(shared) = &self.shared else { return Ok(()) };
        put(&shared.knobs, "knobs", bytes_of(&0_u32), bytes_of(knobs))
    }

    /// Process `tgid` runs Python.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_python(&self, tgid: u32, python: &Python) -> Result<(), CollectError> {
        let Ok(shared) = &self.shared else { return Ok(()) };
        put(&shared.pythons, "pythons", bytes_of(&tgid), bytes_of(python))
    }

    /// How many CPUs this host may have.
    pub fn cpu_count(&self) -> usize {
        self.cpu_count
    }

    /// The counters of CPU `i`.
    pub fn cpu(&self, i: usize) -> CpuCounters {
        self.shared.as_ref().map_or_else(|_| CpuCounters::default(), |s| s.counters.read(i))
    }

    /// Run time of all our BPF programs and how often they ran, since they were loaded, as it was
    /// [`KNOWN_HOLDS`] ago or later. Both are 0 while the kernel's BPF statistics are off.
    pub fn run_time(&self) -> (Ns, u64) {
        self.known(|known| (known.run_time, known.runs))
    }

    /// For how many events the programs of `probe` did not run, as it was [`KNOWN_HOLDS`] ago or
    /// later. The kernel runs no program inside itself: an event of an interrupt is missed if it
    /// comes while that CPU runs the same program.
    pub fn missed(&self, probe: &str) -> u64 {
        let of = |known: &Known| known.missed.iter().find(|(of, _)| *of == probe).map(|m| m.1);
        self.known(of).unwrap_or(0)
    }

    fn known<T>(&self, of: impl FnOnce(&Known) -> T) -> T {
        let now = sys::monotonic();
        let mut known = self.known.borrow_mut();
        if known.as_ref().is_none_or(|(at, _)| now.saturating_sub(*at) >= KNOWN_HOLDS) {
            *known = Some((now, self.known_now()));
        }
        of(&known.as_ref().expect("just set").1)
    }

    fn known_now(&self) -> Known {
        let mut known = Known::default();
        for (probe, program) in self.programs.borrow().iter() {
            let Some(info) = run_time::info(program) else { continue };
            known.run_time += Ns(info.run_time_ns as i64);
            known.runs += info.run_cnt;
            match known.missed.iter_mut().find(|(of, _)| of == probe) {
                Some((_, missed)) => *missed += info.recursion_misses,
                None => known.missed.push((probe, info.recursion_misses)),
            }
        }
        known
    }
}

impl SharedMaps {
    fn new(ring_bytes: u32, cpu_count: usize) -> Result<SharedMaps, CollectError> {
        let load =
            |source| CollectError::Load { probe: "shared", message: messages::take(), source };
        let map = |name| move |source| CollectError::Map { map: name, source };
        let ring_bytes = ring_bytes.clamp(4096, 1 << 30).next_power_of_two();
        let mut open = open("shared", bpf_object!("shared")).map_err(load)?;
        set_map_entries(&mut open, "events", ring_bytes).map_err(map("events"))?;
        set_map_entries(&mut open, "cpus", cpu_count as u32).map_err(map("cpus"))?;
        let object = open.load().map_err(load)?;
        let loaded = LoadedObject { object, links: Vec::new(), probe: "shared" };
        let (events, cpus) = (loaded.map("events")?, loaded.map("cpus")?);
        let counters = MappedArray::new("cpus", &cpus)?;
        let ring = Ring::new(&events, ring_bytes).map_err(map("events"))?;
        Ok(SharedMaps {
            events,
            tasks: loaded.map("tasks")?,
            cpus,
            targets: loaded.map("targets")?,
            generation: loaded.map("generation")?,
            knobs: loaded.map("knobs")?,
            pythons: loaded.map("pythons")?,
            changes: Cell::new(0),
            counters,
            ring,
            _object: loaded.object,
        })
    }
}

fn open(probe: &str, bytes: &[u8]) -> Result<OpenObject, libbpf_rs::Error> {
    ObjectBuilder::default().name(probe)?.open_memory(bytes)
}

/// Whether this kernel has what came with [`OLDEST_KERNEL`], whatever its version number says.
pub(crate) fn has_newest_helper() -> bool {
    let btf = Btf::from_vmlinux().ok();
    let helpers = btf.as_ref().and_then(|btf| btf.type_by_name::<Enum<'_>>("bpf_func_id"));
    helpers.is_some_and(|helpers| {
        helpers.iter().any(|member| member.name.is_some_and(|name| name == NEWEST_HELPER))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bpf_file_has_a_number_of_its_own() {
        let numbers: Vec<usize> = STEMS.iter().filter_map(|stem| probe_number(stem)).collect();
        assert_eq!(numbers, (1..PROBE_SLOTS).collect::<Vec<_>>());
        assert_eq!(probe_number("psi"), None);
    }
}
