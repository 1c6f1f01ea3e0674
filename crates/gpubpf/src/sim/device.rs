//! The device: memory, modules, launches, and the order in which blocks and warps run.

use super::code::{Function, Inst, Op, Space};
use super::exec::{frame, frame_bytes};
use super::facts::{Facts, WarpFacts};
use super::fault::{Fail, Fault, Trouble};
use super::load::{self, Image, LoadFault, SHARED_START};
use super::machine::{Block, Context, Launched, thread_of};
use super::memory::{Bytes, Global, Touch};
use super::warp::{Wait, Warp};
use crate::ptx::Module;

/// What a device has, and what a simulation may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Streaming multiprocessors, on which blocks run.
    pub sms: u32,
    /// Warps that an SM holds at once.
    pub warps_per_sm: u32,
    /// Blocks that an SM holds at once.
    pub blocks_per_sm: u32,
    /// Bytes of shared memory of an SM, and the most of one block.
    pub shared_bytes: u64,
    /// Whether reading a register or memory that nobody has written is a fault.
    pub check_unwritten: bool,
    /// Whether a result that PTX leaves open is a fault.
    pub check_undefined: bool,
    /// `%globaltimer` before the first launch, in ns. A cycle counts as 1 ns.
    pub epoch_ns: u64,
    /// What a simulation may take.
    pub limits: Limits,
}

/// What a simulation may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Instructions that all warps of a launch issue.
    pub instructions: u64,
    /// Bytes of device memory; blocks that run at once may take as much again.
    pub memory: u64,
    /// Bytes of local memory of a thread.
    pub local: u64,
    /// Calls within each other.
    pub calls: u32,
    /// Warps whose facts are kept one by one.
    pub warp_facts: usize,
}

impl Default for Config {
    /// Four SMs with 32 warps each; 10⁹ instructions, 1 GiB of memory.
    fn default() -> Self {
        Self {
            sms: 4,
            warps_per_sm: 32,
            blocks_per_sm: 16,
            shared_bytes: 227 << 10,
            check_unwritten: true,
            check_undefined: true,
            epoch_ns: 0,
            limits: Limits {
                instructions: 1_000_000_000,
                memory: 1 << 30,
                local: 64 << 10,
                calls: 64,
                warp_facts: 65_536,
            },
        }
    }
}

/// One launch of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch<'a> {
    /// The kernel's name as the text has it.
    pub kernel: &'a str,
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block in each direction; at most 1,024 together.
    pub block: [u32; 3],
    /// Bytes of shared memory that the launch adds (`.extern .shared`).
    pub dynamic_shared: u64,
    /// Each parameter's bytes, in order, little-endian.
    pub parameters: &'a [Vec<u8>],
}

/// Why a launch did not end well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The image has no such kernel.
    #[error("the module has no kernel `{0}`")]
    NoKernel(String),
    /// Grid, block, shared memory or parameters do not fit the kernel or the device.
    #[error("kernel `{kernel}`: {reason}")]
    Shape {
        /// The kernel.
        kernel: String,
        /// What does not fit.
        reason: String,
    },
    /// The kernel did something wrong, or more than it may.
    #[error(transparent)]
    Fault(Box<Fault>),
}

/// A device with its memory.
#[derive(Debug)]
pub struct Device {
    config: Config,
    global: Global,
    /// Cycles of all launches so far.
    time: u64,
    launches: u64,
}

impl Device {
    /// A device without allocations.
    pub fn new(config: Config) -> Self {
        Self { config, global: Global::new(config.limits.memory), time: 0, launches: 0 }
    }

    /// Its streaming multiprocessors.
    pub fn sms(&self) -> u64 {
        self.config.sms.max(1).into()
    }

    /// From now on `%globaltimer` goes on from here, ns.
    pub fn set_globaltimer(&mut self, ns: u64) {
        self.config.epoch_ns = ns.wrapping_sub(self.time);
    }

    /// Bytes of device memory that may yet be allocated.
    pub fn room(&self) -> u64 {
        self.global.room()
    }

    /// `bytes` of device memory that nobody has written, aligned to 256; `None` where the limit is
    /// reached.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        self.global.allocate(Space::Global, bytes, 256)
    }

    /// Device memory that holds `bytes`.
    pub fn upload(&mut self, bytes: &[u8]) -> Option<u64> {
        let address = self.allocate(bytes.len() as u64)?;
        self.global.fill(address, bytes).ok()?;
        Some(address)
    }

    /// `bytes` of device memory of which it is kept which pages kernels touch; they begin at a multiple of `page_bytes`.
    pub fn allocate_pages(&mut self, bytes: u64, page_bytes: u64) -> Option<u64> {
        let address = self.global.allocate(Space::Global, bytes, page_bytes)?;
        self.global.watch(address, page_bytes);
        Some(address)
    }

    /// The pages of such memory that kernels touched since this was last asked, in order; one that is touched again at once
    /// stands there once, and after 2^20 no more are kept.
    pub fn touched(&mut self) -> Vec<Touch> {
        self.global.touched()
    }

    /// Gives an allocation back; whether one begins at `address`.
    pub fn free(&mut self, address: u64) -> bool {
        self.global.free(address)
    }

    /// Writes bytes to device or constant memory, within one allocation.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Trouble> {
        self.global.fill(address, bytes)
    }

    /// Reads `bytes` from device memory, within one allocation; what nobody has written is 0xa5.
    pub fn read(&self, address: u64, bytes: usize) -> Result<&[u8], Trouble> {
        self.global.slice(address, bytes)
    }

    /// Loads a module: its variables get memory, its functions are decoded. Instructions that are
    /// not known stand in [`Image::missing`] and are a fault when they are reached.
    pub fn load(&mut self, module: &Module) -> Result<Image, LoadFault> {
        let global = &mut self.global;
        let mut place = |space, bytes, align| {
            global.allocate(space, bytes, align).ok_or_else(|| {
                format!("{bytes} bytes of {space} memory are more than the device has left")
            })
        };
        let image = load::load(module, &mut place)?;
        for variable in &image.variables {
            let filled = self.global.fill(variable.address, &variable.initial);
            filled.map_err(|trouble| LoadFault { line: 1, reason: trouble.to_string() })?;
        }
        Ok(image)
    }

    /// How many blocks of a launch an SM holds at once.
    pub fn occupancy(&self, image: &Image, launch: &Launch) -> Result<u32, LaunchError> {
        let launched = self.prepare(image, launch)?;
        let shape = |reason| LaunchError::Shape { kernel: launch.kernel.to_owned(), reason };
        residents(&launched, &self.config).map(|blocks| blocks as u32).map_err(shape)
    }

    /// Runs a kernel to its end. Blocks go to SMs in their order; of the SMs that of the earliest
    /// clock issues next, of its warps the one that has waited longest: the same launch gives the
    /// same result and the same facts.
    pub fn launch(&mut self, image: &Image, launch: &Launch) -> Result<Facts, LaunchError> {
        let launched = self.prepare(image, launch)?;
        self.launches += 1;
        let (begin, config) = (self.time, self.config);
        let resident = residents(&launched, &config)
            .map_err(|reason| LaunchError::Shape { kernel: launch.kernel.to_owned(), reason })?;
        let mut run = Run {
            launched,
            global: &mut self.global,
            sms: (0..config.sms.max(1)).map(|_| Sm { clock: begin, ..Sm::default() }).collect(),
            next: 0,
            resident,
            facts: Facts::default(),
            limits: config.limits,
            issued: 0,
        };
        let ended = run.run().map_err(|fault| LaunchError::Fault(Box::new(fault)));
        let end = run.sms.iter().map(|sm| sm.clock).max().unwrap_or(begin);
        let mut facts = run.facts;
        facts.sms = run.sms.iter().map(|sm| sm.clock - begin).collect();
        self.time = end;
        ended?;
        facts.cycles = end - begin;
        Ok(facts)
    }

    fn prepare<'a>(&self, image: &'a Image, launch: &Launch) -> Result<Launched<'a>, LaunchError> {
        let Launch { grid, block, dynamic_shared, parameters, .. } = *launch;
        let found = image.functions.iter().position(|f| f.kernel && f.name == launch.kernel);
        let kernel = found.filter(|&at| image.functions[at].defined);
        let kernel = kernel.ok_or_else(|| LaunchError::NoKernel(launch.kernel.to_owned()))?;
        let function = &image.functions[kernel];
        let shape = |reason| LaunchError::Shape { kernel: launch.kernel.to_owned(), reason };
        let threads: u64 = block.iter().map(|&side| u64::from(side)).product();
        let blocks = grid.iter().try_fold(1_u64, |all, &side| all.checked_mul(side.into()));
        if threads == 0 || threads > 1024 || block.iter().any(|&side| side > 1024) {
            return Err(shape(format!("blocks of {block:?} threads; 1 to 1,024 are possible")));
        }
        if blocks.is_none_or(|blocks| blocks == 0) {
            return Err(shape(format!("a grid of {grid:?} blocks")));
        }
        if let Some(required) = function.block
            && required != block
        {
            return Err(shape(format!("blocks of {block:?} threads; it needs {required:?}")));
        }
        if parameters.len() != function.parameters.len() {
            let (given, has) = (parameters.len(), function.parameters.len());
            return Err(shape(format!("{given} parameters are given; it has {has}")));
        }
        let mut bytes = Bytes::unwritten(function.parameter_bytes as usize);
        for (number, (given, has)) in parameters.iter().zip(&function.parameters).enumerate() {
            if given.len() != has.bytes as usize || has.reg.is_some() {
                let (given, has) = (given.len(), has.bytes);
                let reason = format!("parameter {number} is given {given} bytes and has {has}");
                return Err(shape(reason));
            }
            bytes.fill(has.at.into(), given);
        }
        let dynamic = u64::from(function.shared_bytes).next_multiple_of(image.dynamic_align);
        let shared = dynamic.checked_add(dynamic_shared).map(|end| end - SHARED_START);
        let shared_bytes = shared.unwrap_or(u64::MAX);
        if shared_bytes > self.config.shared_bytes {
            let most = self.config.shared_bytes;
            return Err(shape(format!("{shared_bytes} bytes of shared memory; at most {most}")));
        }
        Ok(Launched {
            image,
            kernel,
            grid,
            block,
            parameters: bytes,
            dynamic: (dynamic, dynamic_shared),
            shared_bytes,
            number: self.launches + 1,
            sms: self.config.sms.max(1),
            warps_per_sm: self.config.warps_per_sm,
            check_unwritten: self.config.check_unwritten,
            check_undefined: self.config.check_undefined,
            call_depth: self.config.limits.calls,
            local_limit: self.config.limits.local,
            epoch: self.config.epoch_ns,
        })
    }
}

/// How many blocks of the launch an SM holds at once.
fn residents(launched: &Launched, config: &Config) -> Result<usize, String> {
    let function = launched.function(launched.kernel);
    let threads: u32 = launched.block.iter().product();
    let warps = u64::from(threads.div_ceil(32));
    let local = u64::from(function.local_bytes);
    if local > config.limits.local {
        let most = config.limits.local;
        return Err(format!("{local} bytes of local memory for a thread; at most {most}"));
    }
    let bytes = warps * (frame_bytes(function) + local * 64 + 8192) + launched.shared_bytes * 2;
    let all = bytes * u64::from(launched.sms);
    let fits = config.limits.memory / all.max(1);
    if fits == 0 {
        return Err(format!("{all} bytes to simulate one block on each SM, beyond the limit"));
    }
    let by_shared = config.shared_bytes / launched.shared_bytes.max(1);
    let by_warps = u64::from(config.warps_per_sm) / warps;
    let blocks = fits.min(by_shared).min(by_warps).min(u64::from(config.blocks_per_sm));
    Ok(blocks.max(1) as usize)
}

#[derive(Default)]
struct Sm {
    clock: u64,
    /// When its memory has done what was asked of it so far.
    memory: u64,
    blocks: Vec<Block>,
}

struct Run<'a, 'g> {
    launched: Launched<'a>,
    global: &'g mut Global,
    sms: Vec<Sm>,
    /// The next block that has not begun.
    next: u64,
    resident: usize,
    facts: Facts,
    limits: Limits,
    issued: u64,
}

impl Run<'_, '_> {
    fn run(&mut self) -> Result<(), Fault> {
        for _ in 0..self.resident {
            for sm in 0..self.sms.len() {
                self.begin_block(sm);
            }
        }
        loop {
            let busy = self.sms.iter().enumerate().filter(|(_, sm)| !sm.blocks.is_empty());
            let Some((sm, _)) = busy.min_by_key(|(_, sm)| sm.clock) else { return Ok(()) };
            self.issue(sm)?;
        }
    }

    /// Gives the next block of the grid to an SM.
    fn begin_block(&mut self, sm: usize) {
        let [x, y, z] = self.launched.grid.map(u64::from);
        if self.next >= x * y * z {
            return;
        }
        let number = self.next;
        self.next += 1;
        let index = [number % x, number / x % y, number / x / y].map(|at| at as u32);
        let threads: u32 = self.launched.block.iter().product();
        let function = self.launched.function(self.launched.kernel);
        let begin = self.sms[sm].clock;
        let warps = (0..threads.div_ceil(32)).map(|at| {
            let count = (threads - at * 32).min(32);
            let mask = if count == 32 { u32::MAX } else { (1 << count) - 1 };
            let mut warp = Warp::new(at, mask, frame(function, self.launched.kernel, 0, 0));
            warp.local = vec![Bytes::unwritten(function.local_bytes as usize); 32];
            warp.facts =
                WarpFacts { block: number, warp: at, sm: sm as u32, begin, ..WarpFacts::default() };
            warp.ready = begin;
            warp
        });
        let block = Block {
            index,
            shared: Bytes::unwritten(self.launched.shared_bytes as usize),
            barriers: Default::default(),
            warps: warps.collect(),
            sm: sm as u32,
        };
        self.sms[sm].blocks.push(block);
    }

    /// Lets one warp of an SM issue an instruction.
    fn issue(&mut self, number: usize) -> Result<(), Fault> {
        let sm = &mut self.sms[number];
        let mut found: Option<((u64, u64), usize, usize)> = None;
        for (block, warps) in sm.blocks.iter().enumerate().map(|(at, b)| (at, &b.warps)) {
            for (warp, state) in warps.iter().enumerate() {
                let key = (state.ready.max(sm.clock), state.issued);
                if found.is_none_or(|(best, ..)| key < best) && state.runnable() {
                    found = Some((key, block, warp));
                }
            }
        }
        let Some(((ready, _), block, warp)) = found else { return self.stuck(number) };
        sm.clock = ready;
        self.issued += 1;
        if self.issued > self.limits.instructions {
            let limit = self.limits.instructions;
            let fail = Fail { lane: 0, trouble: Trouble::Limit { what: "instructions", limit } };
            return Err(self.fault(number, block, warp, None, fail));
        }
        let ended = self.step(number, block, warp)?;
        if ended {
            self.end_warps(number, block);
        }
        Ok(())
    }

    /// One instruction; whether the warp has ended with it.
    fn step(&mut self, number: usize, at: usize, which: usize) -> Result<bool, Fault> {
        let sm = &mut self.sms[number];
        let now = sm.clock;
        let block = &mut sm.blocks[at];
        let mut warp = std::mem::take(&mut block.warps[which]);
        let Some(path) = warp.pick() else {
            block.warps[which] = warp;
            return Ok(false);
        };
        let here = warp.paths[path];
        let function = warp.frame(here.frame).map(|frame| frame.function);
        warp.issued = self.issued;
        let (launched, global) = (&self.launched, &mut *self.global);
        let (busy, rest, frame, active) = (0, 0, here.frame, here.mask);
        let mut context =
            Context { launched, global, block, warp, now, busy, rest, path, frame, active };
        let result = context.step();
        let (busy, rest) = (context.busy, context.rest);
        let mut warp = std::mem::take(&mut context.warp);
        sm.clock = now + 1;
        warp.ready = warp.ready.max(now + 1 + rest);
        if busy > 0 {
            sm.memory = sm.memory.max(now + 1) + busy;
            warp.ready = warp.ready.max(sm.memory);
        }
        let ended = warp.paths.is_empty();
        warp.facts.end = warp.ready;
        sm.blocks[at].warps[which] = warp;
        let place = function.map(|function| (function, here.at));
        result.map_err(|fail| self.fault(number, at, which, place, fail))?;
        Ok(ended)
    }

    /// Ends the block if none of its warps is left.
    fn end_warps(&mut self, number: usize, at: usize) {
        if self.sms[number].blocks[at].warps.iter().any(|warp| !warp.paths.is_empty()) {
            return;
        }
        let block = self.sms[number].blocks.remove(at);
        for warp in block.warps {
            self.facts.total.add(&warp.facts.counts);
            let sm = &mut self.sms[number];
            sm.clock = sm.clock.max(warp.facts.end.min(sm.memory));
            if self.facts.warps.len() < self.limits.warp_facts {
                self.facts.warps.push(warp.facts);
            }
        }
        self.begin_block(number);
    }

    /// No warp of the SM can go on: lanes that wait at a join may go on without the others, and
    /// where there are none this is a deadlock.
    fn stuck(&mut self, number: usize) -> Result<(), Fault> {
        let launched = &self.launched;
        let code = |warp: &Warp, path: &super::warp::Path| -> Option<Inst> {
            let function = launched.function(warp.frame(path.frame)?.function);
            function.code.get(path.at as usize).cloned()
        };
        for block in &mut self.sms[number].blocks {
            for warp in &mut block.warps {
                let at_barrier = warp.paths.iter().any(|path| {
                    matches!(path.wait, Wait::Lanes(_))
                        && code(warp, path).is_some_and(|i| matches!(i.op, Op::Barrier { .. }))
                });
                if !at_barrier && warp.release_parked() {
                    return Ok(());
                }
            }
        }
        let Some(block) = self.sms[number].blocks.first() else { return Ok(()) };
        let mut places: Vec<(usize, u32)> = Vec::new();
        let mut first = None;
        for (at, warp) in block.warps.iter().enumerate() {
            for path in &warp.paths {
                let line = code(warp, path).map_or(0, |inst| inst.line);
                first.get_or_insert((at, *path, line));
                match places.iter_mut().find(|(known, _)| *known == line) {
                    Some((_, count)) => *count += path.mask.count_ones(),
                    None => places.push((line, path.mask.count_ones())),
                }
            }
        }
        let told: Vec<String> = places
            .iter()
            .map(|(line, threads)| format!("{threads} threads wait at line {line}"))
            .collect();
        let ended = block.warps.iter().map(|warp| warp.live.count_ones()).sum::<u32>();
        let all: u32 = launched.block.iter().product();
        let words = format!("{}; {} of {all} threads have ended", told.join(", "), all - ended);
        let (warp, path) = first.map_or((0, None), |(warp, path, _)| (warp, Some(path)));
        let place =
            path.and_then(|path| Some((block.warps[warp].frame(path.frame)?.function, path.at)));
        let lane = path.map_or(0, |path| path.mask.trailing_zeros().min(31));
        let fail = Fail { lane, trouble: Trouble::Deadlock(words) };
        Err(self.fault(number, 0, warp, place, fail))
    }

    fn fault(
        &self,
        sm: usize,
        block: usize,
        warp: usize,
        place: Option<(usize, u32)>,
        fail: Fail,
    ) -> Fault {
        let block = &self.sms[sm].blocks[block];
        let running = &block.warps[warp];
        let place = place.or_else(|| {
            let path = running.paths.first()?;
            Some((running.frame(path.frame)?.function, path.at))
        });
        let unknown = Function::default();
        let (function, inst) = match place {
            Some((function, at)) => {
                let function = self.launched.function(function);
                (function, function.code.get(at as usize).or(function.code.last()))
            }
            None => (&unknown, None),
        };
        let text = inst.map_or("", |inst| &self.launched.image.text[inst.text.0..inst.text.1]);
        let statement = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Fault {
            function: function.name.clone(),
            line: inst.map_or(0, |inst| inst.line),
            statement: statement.chars().take(200).collect(),
            block: block.index,
            thread: thread_of(self.launched.block, warp as u32, fail.lane),
            trouble: fail.trouble,
        }
    }
}
