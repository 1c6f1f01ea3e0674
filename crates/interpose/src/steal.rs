//! Launches of kernels beside which one stands that steals work: that one is launched in their place, with as many blocks as run
//! at once.
//!
//! *Records.* Such a launch counts its blocks in a record on the device, which it leaves as it found it, all zero. Launches of
//! one stream do not overlap, so each stream has a record in each context, and nothing is done between two launches. A
//! stream that is destroyed while it has work keeps its record for good, since another may get its handle before that work has ended.
//!
//! *What is launched as it is*: launches of which all blocks run at once, since there is nothing to be stolen; what is captured
//! for a graph and needs a record, since one graph may be made executable twice, and both may run at once with one record; launches with attributes
//! that let them overlap or that speak of their blocks (clusters, cooperative ones); streams beyond [`RECORDS`]; and what
//! the driver refuses with one parameter more. Each is counted.

use core::cell::Cell;
use core::ffi::{c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::collections::BTreeMap;
use std::ffi::CString;

use gpuwhy_wire::images::{Plan, State, Stealing, Stolen, Thief, name_hash};

use crate::lock::Lock;
use crate::streams::{PER_THREAD, stream_of};
use crate::types::{Code, Handle, Of, SUCCESS};
use crate::{driver, guarded};

/// Streams of a context that have records.
pub const RECORDS: usize = 64;
/// The most blocks of a launch that steals.
const MOST_BLOCKS: u64 = 1 << 31;

/// What a launch is of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
}

/// A kernel that can steal, by a handle that the program has.
#[derive(Clone, Copy, Debug)]
struct Known {
    image: u64,
    /// Which one of the image.
    kernel: usize,
    thief: Thief,
    /// The one that steals: a function, or a kernel of a library.
    other: u64,
    of_library: bool,
}

/// What belongs to an image in a context.
#[derive(Debug, Default)]
struct Pool {
    /// Whether its kernels steal.
    on: bool,
    /// Device memory of its records.
    at: u64,
    record_bytes: u64,
    /// The streams of the first records; 0 is one that is gone.
    streams: Vec<u64>,
    /// Records that may be taken again.
    free: Vec<usize>,
    /// By kernel that steals: its function here, and how many blocks run at once by threads and shared memory.
    functions: BTreeMap<u64, Option<u64>>,
    resident: BTreeMap<(u64, u32, u32), u64>,
    counts: Vec<Stolen>,
}

#[derive(Debug, Default)]
struct Thieves {
    functions: BTreeMap<u64, Known>,
    /// By image and context.
    pools: BTreeMap<(u64, usize), Pool>,
}

static THIEVES: Lock<Thieves> =
    Lock::new(Thieves { functions: BTreeMap::new(), pools: BTreeMap::new() });
/// Whether there is a kernel that can steal.
static STEALS: AtomicBool = AtomicBool::new(false);

/// The program got a function of an image, or a kernel of a library.
pub fn got(plan: &Plan, of: Of, name: &[u8], handle: u64) {
    let Some(stealing) = &plan.stealing else { return };
    let hash = name_hash(name);
    let Some(kernel) = stealing.kernels.iter().position(|thief| thief.name == hash) else { return };
    let Ok(other) = CString::new([name, Stealing::SUFFIX.as_bytes()].concat()) else { return };
    let (found, of_library) = match of {
        Of::Module(module) => (driver::function_of_module(module as Handle, &other), false),
        Of::Library(library) => (driver::kernel_of_library(library as Handle, &other), true),
        // No kernel stands beside one of machine code.
        Of::Code(_) => return,
    };
    let Ok(other) = found else { return };
    let (thief, other) = (stealing.kernels[kernel], other as u64);
    let known = Known { image: plan.image, kernel, thief, other, of_library };
    THIEVES.with(|thieves| thieves.functions.insert(handle, known));
    STEALS.store(true, SeqCst);
}

/// A function has another handle as well.
pub fn also(handle: u64, other: u64) {
    if STEALS.load(Relaxed) {
        THIEVES.with(|thieves| {
            if let Some(known) = thieves.functions.get(&handle).copied() {
                thieves.functions.insert(other, known);
            }
        });
    }
}

/// Bytes of device memory for the records of an image in a context.
pub fn bytes(plan: &Plan) -> u64 {
    plan.stealing.as_ref().map_or(0, |stealing| RECORDS as u64 * stealing.record_bytes)
}

/// An image has memory for its records in a context, all zero.
pub fn place(plan: &Plan, context: usize, at: u64, state: &State) {
    let Some(stealing) = &plan.stealing else { return };
    let pool = Pool {
        on: state.is_on(stealing.switch as usize),
        at,
        record_bytes: stealing.record_bytes,
        counts: vec![Stolen::default(); stealing.kernels.len()],
        ..Pool::default()
    };
    THIEVES.with(|thieves| thieves.pools.insert((plan.image, context), pool));
}

/// Tells how kernels were launched, and learns whether they are to steal.
pub fn show(plan: &Plan, context: usize, state: &State) {
    let Some(stealing) = &plan.stealing else { return };
    THIEVES.with(|thieves| {
        let Some(pool) = thieves.pools.get_mut(&(plan.image, context)) else { return };
        pool.on = state.is_on(stealing.switch as usize);
        for (kernel, counts) in pool.counts.iter().enumerate() {
            state.tell_stolen(plan.stolen_at(), kernel, counts);
        }
    });
}

/// An image is unloaded, in all contexts or in one.
pub fn forget(image: u64, context: Option<usize>) {
    if !STEALS.load(Relaxed) {
        return;
    }
    THIEVES.with(|thieves| {
        thieves
            .pools
            .retain(|(of, at), _| *of != image || context.is_some_and(|context| *at != context));
        if context.is_none() {
            thieves.functions.retain(|_, known| known.image != image);
        }
    });
}

/// A stream is about to be destroyed.
pub fn stream_ends(stream: Handle) {
    if !STEALS.load(Relaxed) {
        return;
    }
    guarded((), || {
        let (key, idle, context) =
            (stream as u64, driver::is_idle(stream), driver::current() as usize);
        THIEVES.with(|thieves| {
            for ((_, of), pool) in &mut thieves.pools {
                let Some(at) = pool.streams.iter().position(|known| *known == key) else {
                    continue;
                };
                pool.streams[at] = 0;
                // In another context the answer was not about this stream's work.
                if idle && *of == context {
                    pool.free.push(at);
                }
            }
        });
    });
}

/// In a forked child: they are the parent's.
pub fn forget_after_fork() {
    THIEVES.forget_after_fork(Thieves::default());
    STEALS.store(false, SeqCst);
}

/// What tells a stream from others while it exists; `None` for a thread that is being torn down.
fn stream_key(stream: usize) -> Option<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static OWN: Cell<u64> = const { Cell::new(0) };
    }
    // Each thread has a stream of its own, and no two threads have had one number.
    if stream != PER_THREAD {
        return Some(stream as u64);
    }
    let own = OWN.try_with(|own| {
        if own.get() == 0 {
            own.set(NEXT.fetch_add(1, Relaxed));
        }
        own.get()
    });
    // No address is as large.
    own.ok().map(|own| 1 << 63 | own)
}

/// A launch in the place of another.
struct Instead {
    key: (u64, usize),
    kernel: usize,
    function: Handle,
    blocks: c_uint,
    record: u64,
    thief: Thief,
}

impl Pool {
    /// The record of a stream.
    fn record(&mut self, stream: u64) -> Option<u64> {
        let at = match self.streams.iter().position(|known| *known == stream) {
            Some(at) => at,
            None => match self.free.pop() {
                Some(at) => {
                    self.streams[at] = stream;
                    at
                }
                None if self.streams.len() < RECORDS => {
                    self.streams.push(stream);
                    self.streams.len() - 1
                }
                None => return None,
            },
        };
        Some(self.at + at as u64 * self.record_bytes)
    }

    /// The function of a kernel that steals, in this context.
    fn function(&mut self, known: Known) -> Option<Handle> {
        if !known.of_library {
            return Some(known.other as Handle);
        }
        let find = || driver::function_of_kernel(known.other as Handle).ok().map(|f| f as u64);
        self.functions.entry(known.other).or_insert_with(find).map(|function| function as Handle)
    }

    /// How many blocks run at once; 0 where the driver does not tell.
    fn resident(&mut self, function: Handle, threads: u32, shared: u32) -> u64 {
        let ask = || driver::resident(function, threads, shared).unwrap_or(0);
        *self.resident.entry((function as u64, threads, shared)).or_insert_with(ask)
    }
}

/// Whether another kernel is launched in the place of this one.
fn instead(function: Handle, shape: &Shape, stream: usize, suits: bool) -> Option<Instead> {
    let context = driver::current() as usize;
    let captured = driver::is_capturing(stream as Handle);
    THIEVES.with(|thieves| {
        let known = *thieves.functions.get(&(function as u64))?;
        let key = (known.image, context);
        let pool = thieves.pools.get_mut(&key)?;
        if !pool.on {
            return None;
        }
        let by_hardware = known.thief.by_hardware;
        if captured && !by_hardware {
            pool.counts[known.kernel].captured += 1;
            return None;
        }
        let total = shape.grid.iter().try_fold(1_u64, |all, side| all.checked_mul((*side).into()));
        let [x, y, z] = shape.block;
        let rows = x % 32 == 0 || (y == 1 && z == 1) || !known.thief.rows;
        let threads = x
            .checked_mul(y)
            .and_then(|all| all.checked_mul(z))
            .filter(|all| (1..=1024).contains(all));
        let (Some(total @ 1..=MOST_BLOCKS), Some(threads), true) = (total, threads, rows && suits)
        else {
            pool.counts[known.kernel].unsuitable += 1;
            return None;
        };
        let resident =
            pool.function(known).map(|other| (other, pool.resident(other, threads, shape.shared)));
        let Some((other, resident @ 1..)) = resident else {
            pool.counts[known.kernel].refused += 1;
            return None;
        };
        if total <= resident {
            pool.counts[known.kernel].fits += 1;
            return None;
        }
        let record = if by_hardware {
            Some(0)
        } else {
            stream_key(stream).and_then(|stream| pool.record(stream))
        };
        let Some(record) = record else {
            pool.counts[known.kernel].no_record += 1;
            return None;
        };
        pool.counts[known.kernel].stolen += 1;
        let (kernel, thief, blocks) = (known.kernel, known.thief, resident as c_uint);
        Some(Instead { key, kernel, function: other, blocks, record, thief })
    })
}

/// The parameter that is added.
fn parameter(record: u64, grid: [u32; 3], blocks: u32) -> [u64; Stealing::PARAMETER_BYTES / 8] {
    let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    [record, pair(grid[0], grid[1]), pair(grid[2], blocks)]
}

/// A kernel is launched on a stream by `real`, which takes the function, the grid, and the parameters in one form or the other.
/// `per_thread`: the default stream is the thread's own. `suits`: nothing about the launch forbids to steal.
#[allow(clippy::too_many_arguments)]
pub fn launch(
    function: Handle,
    shape: &Shape,
    stream: Handle,
    per_thread: bool,
    suits: bool,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    real: impl Fn(Handle, [c_uint; 3], *mut *mut c_void, *mut *mut c_void) -> Code,
) -> Code {
    let own = || real(function, shape.grid, params, extra);
    if !STEALS.load(Relaxed) {
        return own();
    }
    let stream = stream_of(stream as usize, per_thread);
    let Some(instead) = guarded(None, || instead(function, shape, stream, suits)) else {
        return own();
    };
    let mut added = parameter(instead.record, shape.grid, instead.blocks);
    let grid = [instead.blocks, 1, 1];
    let code = match (params.is_null(), extra.is_null()) {
        _ if instead.thief.by_hardware => Some(real(instead.function, shape.grid, params, extra)),
        (false, true) | (true, true) => {
            let many = instead.thief.parameters as usize;
            if params.is_null() && many > 0 {
                None
            } else {
                let own = (0..many).map(|n| {
                    // SAFETY: the driver reads as many addresses there, one for each parameter of the kernel.
                    unsafe { params.add(n).read_unaligned() }
                });
                let mut all: Vec<*mut c_void> = own.collect();
                all.push(added.as_mut_ptr().cast());
                Some(real(instead.function, grid, all.as_mut_ptr(), null_mut()))
            }
        }
        (true, false) => {
            guarded(None, || buffer(extra, instead.thief.at as usize, &added)).map(|mut buffer| {
                let mut bytes = buffer.len() * 8;
                let mut extra = [
                    BUFFER as *mut c_void,
                    buffer.as_mut_ptr().cast(),
                    SIZE as *mut c_void,
                    (&raw mut bytes).cast(),
                    null_mut(),
                ];
                real(instead.function, grid, null_mut(), extra.as_mut_ptr())
            })
        }
        // The driver refuses that.
        (false, false) => None,
    };
    if code == Some(SUCCESS) {
        return SUCCESS;
    }
    guarded((), || {
        THIEVES.with(|thieves| {
            if let Some(pool) = thieves.pools.get_mut(&instead.key) {
                pool.counts[instead.kernel].stolen -= 1;
                pool.counts[instead.kernel].refused += 1;
            }
        });
    });
    own()
}

/// `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`.
const BUFFER: usize = 1;
const SIZE: usize = 2;

/// The parameters of a launch that gives all in one buffer, with one more at `at`; `None` where the form is another.
fn buffer(extra: *mut *mut c_void, at: usize, added: &[u64]) -> Option<Vec<u64>> {
    let (mut from, mut bytes) = (None, None);
    // Two pairs, in any order.
    for pair in 0..3 {
        // SAFETY: the driver reads pairs of words there up to a zero, and knows no more than two kinds.
        let what = unsafe { extra.add(2 * pair).read_unaligned() } as usize;
        if what == 0 {
            break;
        }
        // SAFETY: as above: a pair that begins has its second word.
        let value = unsafe { extra.add(2 * pair + 1).read_unaligned() };
        match what {
            BUFFER => from = Some(value),
            // SAFETY: its value is the address of the buffer's size.
            SIZE => bytes = Some(unsafe { value.cast::<usize>().read_unaligned() }),
            _ => return None,
        }
    }
    let (from, bytes) = (from?, bytes?);
    let mut all = vec![0_u64; at / 8];
    // SAFETY: the program has so many bytes there, and the vector has room for `at`.
    unsafe {
        core::ptr::copy_nonoverlapping(
            from.cast::<u8>(),
            all.as_mut_ptr().cast::<u8>(),
            bytes.min(at),
        )
    };
    all.extend(added);
    Some(all)
}

/// Bytes of a `CUlaunchConfig`: seven numbers, the stream, the attributes and how many.
const CONFIG_WORDS: usize = 7;
/// Bytes of a `CUlaunchAttribute`, which begins with what it is.
const ATTRIBUTE_BYTES: usize = 72;
/// Attributes of launches that say nothing of how blocks run: none, access policy, synchronisation policy, priority, memory
/// synchronisation domains, and the preferred carve-out of shared memory.
const HARMLESS: [u32; 7] = [0, 1, 3, 8, 9, 10, 14];

/// As [`launch`], of a `CUlaunchConfig`.
pub fn launch_config(
    how: *const c_void,
    function: Handle,
    per_thread: bool,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    real: impl Fn(*const c_void, Handle, *mut *mut c_void, *mut *mut c_void) -> Code,
) -> Code {
    if !STEALS.load(Relaxed) || how.is_null() {
        return real(how, function, params, extra);
    }
    // SAFETY: the driver is about to read it there as well; no alignment is assumed.
    let config = unsafe { how.cast::<[u64; CONFIG_WORDS]>().read_unaligned() };
    let number = |at: usize| (config[at / 2] >> (32 * (at % 2))) as u32;
    let shape = Shape {
        grid: core::array::from_fn(number),
        block: core::array::from_fn(|at| number(3 + at)),
        shared: number(6),
    };
    let (attributes, many) = (config[5] as *const u8, config[6] as u32 as usize);
    let harmless = |at: usize| {
        // SAFETY: the driver reads as many attributes there.
        let what = unsafe { attributes.add(at * ATTRIBUTE_BYTES).cast::<u32>().read_unaligned() };
        HARMLESS.contains(&what)
    };
    let suits = many == 0 || (!attributes.is_null() && (0..many).all(harmless));
    let stream = config[4] as Handle;
    launch(
        function,
        &shape,
        stream,
        per_thread,
        suits,
        params,
        extra,
        |other, grid, params, extra| {
            if other == function {
                return real(how, function, params, extra);
            }
            let mut config = config;
            config[0] = u64::from(grid[1]) << 32 | u64::from(grid[0]);
            config[1] = config[1] & !0xffff_ffff | u64::from(grid[2]);
            real(config.as_ptr().cast(), other, params, extra)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool { at: 4096, record_bytes: 128, ..Pool::default() }
    }

    #[test]
    fn each_stream_has_a_record_until_there_are_no_more() {
        let mut pool = pool();
        assert_eq!(
            (pool.record(7), pool.record(8), pool.record(7)),
            (Some(4096), Some(4224), Some(4096))
        );
        let last = (9..7 + RECORDS as u64).map(|stream| pool.record(stream)).last();
        assert_eq!(last, Some(Some(4096 + 128 * (RECORDS as u64 - 1))));
        assert_eq!(pool.record(1000), None);
        // One that ended with its work done.
        pool.streams[3] = 0;
        pool.free.push(3);
        assert_eq!((pool.record(1000), pool.record(1001)), (Some(4096 + 3 * 128), None));
    }

    #[test]
    fn threads_have_default_streams_of_their_own() {
        let own = stream_key(2).unwrap();
        assert_eq!(stream_key(2), Some(own));
        let others: Vec<u64> =
            (0..3).map(|_| std::thread::spawn(|| stream_key(2).unwrap()).join().unwrap()).collect();
        assert!(others[0] != others[1] && others[1] != others[2] && !others.contains(&own));
        assert_eq!((stream_key(1), stream_key(0x500)), (Some(1), Some(0x500)));
    }

    #[test]
    fn a_buffer_of_parameters_gets_one_more_behind_them() {
        let mut given = [1_u8, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        let mut bytes = given.len();
        let words = |first: usize, second: usize, given: *mut c_void, bytes: *mut c_void| {
            let value = |what| if what == BUFFER { given } else { bytes };
            [first as *mut c_void, value(first), second as *mut c_void, value(second), null_mut()]
        };
        for (first, second) in [(BUFFER, SIZE), (SIZE, BUFFER)] {
            let mut extra =
                words(first, second, given.as_mut_ptr().cast(), (&raw mut bytes).cast());
            let all = buffer(extra.as_mut_ptr(), 16, &parameter(9, [2, 3, 4], 5)).unwrap();
            assert_eq!(all, [0x0807_0605_0403_0201, 0x0a09, 9, 3 << 32 | 2, 5 << 32 | 4]);
        }
        let mut extra = words(BUFFER, 5, given.as_mut_ptr().cast(), null_mut());
        assert_eq!(buffer(extra.as_mut_ptr(), 16, &[]), None);
        assert_eq!(buffer([null_mut()].as_mut_ptr(), 16, &[]), None);
    }

    #[test]
    fn attributes_that_speak_of_blocks_or_of_other_launches_do_not_suit() {
        // Cluster dimension, cooperative, programmatic serialisation and event, preferred cluster, events, graph nodes.
        for what in [2, 4, 5, 6, 7, 11, 12, 13] {
            assert!(!HARMLESS.contains(&what), "{what}");
        }
    }
}
