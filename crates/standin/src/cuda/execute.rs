//! Kernels that are executed, and memory that holds bytes: `GPUWHY_STANDIN_EXECUTES=1`.
//!
//! Each device has a simulator's memory. A launch runs at once, whatever its stream: that is an order which the
//! driver's streams allow. What the real driver reports of a kernel's misdeed at the next call, and for good, is
//! reported at the launch; the reason is printed, since a test should say why.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, OnceLock};

use gpuwhy_gpubpf::image::{Content, ELF_MAGIC, FATBIN_MAGIC, Images, NoPtx, is_binary, ptx_for};
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Device, Image, Launch};
use gpuwhy_gpubpf::splice::GIVEN;

use super::code::{Captured, Function, Library, Loaded};
use super::driver::{Context, Driver, Handle, handle};
use super::ledger;
use super::{Code, Status};
use crate::c::Out;
use crate::machine::{epoch, now};

/// The compute capability of the devices, times 10.
pub(super) const ARCH: u32 = 90;
/// Their streaming multiprocessors.
const SMS: u32 = 132;
/// What `__cudaFatCudaBinary` begins with.
const WRAPPER: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();

/// Whether kernels are executed in this process.
pub(super) fn executes() -> bool {
    static EXECUTES: OnceLock<bool> = OnceLock::new();
    *EXECUTES.get_or_init(|| std::env::var("GPUWHY_STANDIN_EXECUTES").is_ok_and(|v| v == "1"))
}

/// The parameters of a launch: the address of each, or all in one buffer.
#[derive(Clone, Copy)]
pub(super) struct Parameters {
    pub(super) each: Out<Out<u8>>,
    pub(super) extra: Out<usize>,
}

impl Parameters {
    /// The bytes of each, by their sizes and where each lies in a buffer.
    fn bytes(self, sizes: &[u32], places: &[u32]) -> Result<Vec<Vec<u8>>, Code> {
        if !self.each.is_null() || self.extra.is_null() {
            let one =
                |(at, bytes): (usize, &u32)| Ok(self.each.get_at(at)?.bytes(*bytes as usize)?);
            return sizes.iter().enumerate().map(one).collect();
        }
        // CU_LAUNCH_PARAM_BUFFER_POINTER and CU_LAUNCH_PARAM_BUFFER_SIZE, and 0 behind them.
        let (mut from, mut all) = (None, None);
        for pair in 0.. {
            match (self.extra.get_at(2 * pair)?, self.extra.get_at(2 * pair + 1)) {
                (0, _) => break,
                (1, at) => from = Some(Out::<u8>::at(at?)),
                (2, at) => all = Some(Out::<usize>::at(at?).get()?),
                _ => return Err(Code::InvalidValue),
            }
        }
        let buffer = from.zip(all).ok_or(Code::InvalidValue)?;
        let buffer = buffer.0.bytes(buffer.1)?;
        let one = |(at, bytes): (&u32, &u32)| {
            let part = buffer.get(*at as usize..(*at + *bytes) as usize);
            part.map(<[u8]>::to_vec).ok_or(Code::InvalidValue)
        };
        places.iter().zip(sizes).map(one).collect()
    }
}

/// How an execution went.
#[derive(Clone, Copy)]
pub(super) struct Ran {
    pub(super) cycles: u64,
    /// When it began, ns of CLOCK_MONOTONIC.
    pub(super) begin: u64,
}

/// Launches of a kernel that begin late: `KERNEL:FROM:US`, all but the first FROM of this process by so many us.
struct Late {
    of: String,
    from: u64,
    ns: u64,
}

fn late() -> Option<&'static Late> {
    static LATE: OnceLock<Option<Late>> = OnceLock::new();
    let read = || {
        let text = std::env::var("GPUWHY_STANDIN_LATE").ok()?;
        let mut words = text.split(':');
        let (of, from) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        Some(Late { of, from, ns: words.next()?.parse::<u64>().ok()? * 1000 })
    };
    LATE.get_or_init(read).as_ref()
}

/// Adds a launch to the ledger, for tests to compare with: its kernel, and when it was called, began and ended, ns of
/// CLOCK_MONOTONIC.
fn note(kernel: &str, called: u64, begin: u64, end: u64) {
    let Some(path) = std::env::var_os("GPUWHY_STANDIN_LEDGER") else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| writeln!(file, "{kernel} {called} {begin} {end}"));
    if let Err(why) = written {
        eprintln!("gpuwhy-standin: the ledger: {why}");
    }
}

fn failed(code: Code, why: &dyn std::fmt::Display) -> Code {
    eprintln!("gpuwhy-standin: {why}");
    code
}

/// The bytes of an image at an address, whose length the image itself tells.
fn bytes_at(image: Out<u8>) -> Result<Vec<u8>, Code> {
    let head = |at: Out<u8>| at.bytes(4);
    let number = |at: Out<u8>, from, bytes| -> Result<u64, Code> {
        let digits = at.cast::<u8>(from).bytes(bytes)?;
        Ok(digits.iter().rev().fold(0, |all, digit| all << 8 | u64::from(*digit)))
    };
    let image = match head(image)? {
        wrapper if wrapper == WRAPPER => Out::at(number(image, 8, 8)? as usize),
        _ => image,
    };
    let length = match head(image)? {
        fat if fat == FATBIN_MAGIC => number(image, 6, 2)? + number(image, 8, 8)?,
        // The table of sections, and that of segments behind it.
        elf if elf == ELF_MAGIC => {
            let sections = number(image, 40, 8)? + number(image, 58, 2)? * number(image, 60, 2)?;
            sections.max(number(image, 32, 8)? + number(image, 54, 2)? * number(image, 56, 2)?)
        }
        _ => (0..).find(|at| matches!(image.get_at(*at), Ok(0) | Err(_))).unwrap_or(0) as u64,
    };
    Ok(image.bytes(length as usize)?)
}

/// The PTX text of an image that the device would compile, or that its machine code carries.
pub(super) fn text_of(bytes: Vec<u8>) -> Result<String, Code> {
    let text = if is_binary(&bytes) {
        match (ptx_for(&bytes, ARCH), std::env::var_os("GPUWHY_STANDIN_SOURCE")) {
            (Ok(chosen), _) => chosen.text,
            // What stands for it.
            (Err(NoPtx::MachineCode(_)), Some(source)) => {
                std::fs::read_to_string(source).map_err(|why| failed(Code::NotFound, &why))?
            }
            (Err(why), _) => return Err(failed(Code::InvalidImage, &why)),
        }
    } else {
        String::from_utf8(bytes).map_err(|why| failed(Code::InvalidImage, &why))?
    };
    let refused = std::env::var("GPUWHY_STANDIN_REFUSES").unwrap_or_default();
    if !refused.is_empty() && text.contains(&refused) {
        return Err(Code::InvalidPtx);
    }
    Ok(text)
}

/// The machine code that a device would run, of an image; its text if it has none.
fn code_of(bytes: &[u8]) -> Arc<[u8]> {
    let runs = |image: &gpuwhy_gpubpf::image::Image| {
        image.content == Content::Cubin && image.arch.runs_on(ARCH)
    };
    if !bytes.starts_with(&FATBIN_MAGIC) {
        return bytes.into();
    }
    let found = Images::new(bytes).flatten().find(runs);
    found.map_or_else(|| bytes.into(), |image| image.bytes.into())
}

/// What a file holds.
pub(super) fn file(path: &str) -> Result<Vec<u8>, Code> {
    std::fs::read(path).map_err(|_| Code::NotFound)
}

/// What is at an address.
pub(super) fn memory(image: Out<u8>) -> Result<Vec<u8>, Code> {
    if image.is_null() { Err(Code::InvalidValue) } else { bytes_at(image) }
}

impl Driver {
    pub(super) fn device(&mut self, device: usize) -> &mut Device {
        let config = Config { sms: SMS, ..Config::default() };
        self.code.devices.entry(device).or_insert_with(|| Device::new(config))
    }

    fn load_text(
        &mut self,
        text: String,
        code: Arc<[u8]>,
        library: Handle,
    ) -> Result<Handle, Code> {
        let (context, Context { device, .. }) = self.current()?;
        let image = self.image(&text, device)?;
        let module = handle();
        self.code.images.insert(module, Loaded { device, context, library, image, text, code });
        self.code.fresh.push(module);
        Ok(module)
    }

    fn image(&mut self, text: &str, device: usize) -> Result<Image, Code> {
        let module = Module::read(text).map_err(|why| failed(Code::InvalidPtx, &why))?;
        self.device(device).load(&module).map_err(|why| failed(Code::InvalidPtx, &why))
    }

    /// Another text is executed as a module; its variables are new ones.
    pub(super) fn replace(&mut self, module: Handle, text: &str) -> Status {
        let device = self.code.images.get(&module).ok_or(Code::InvalidHandle)?.device;
        let image = self.image(text, device)?;
        let loaded = self.code.images.get_mut(&module).ok_or(Code::InvalidHandle)?;
        loaded.image = image;
        Ok(())
    }

    /// Loads a module into the current context.
    pub(super) fn load_image(&mut self, bytes: Vec<u8>) -> Result<Handle, Code> {
        let code = code_of(&bytes);
        self.load_text(text_of(bytes)?, code, 0)
    }

    /// Loads a library: into contexts when it is used there.
    pub(super) fn load_library(&mut self, bytes: Vec<u8>) -> Result<Handle, Code> {
        let code = code_of(&bytes);
        let text = text_of(bytes)?;
        Module::read(&text).map_err(|why| failed(Code::InvalidPtx, &why))?;
        let library = handle();
        self.code.libraries.insert(library, Library { text, code, modules: HashMap::new() });
        Ok(library)
    }

    /// The module of a library in the current context.
    pub(super) fn module_of(&mut self, library: Handle) -> Result<Handle, Code> {
        let (at, _) = self.current()?;
        let known = self.code.libraries.get(&library).ok_or(Code::InvalidHandle)?;
        if let Some(module) = known.modules.get(&at) {
            return Ok(*module);
        }
        let (text, code) = (known.text.clone(), known.code.clone());
        let module = self.load_text(text, code, library)?;
        if let Some(known) = self.code.libraries.get_mut(&library) {
            known.modules.insert(at, module);
        }
        Ok(module)
    }

    /// Unloads a module; whether it was one.
    pub(super) fn unload_image(&mut self, module: Handle) -> bool {
        self.code.images.remove(&module).is_some()
    }

    /// A kernel of a module or library.
    pub(super) fn function(&mut self, of: Handle, name: String) -> Result<Handle, Code> {
        let there = match (self.code.images.get(&of), self.code.libraries.get(&of)) {
            (Some(loaded), _) => loaded.image.parameters(&name).is_some(),
            (_, Some(library)) => {
                let module = Module::read(&library.text).map_err(|_| Code::InvalidPtx)?;
                module.functions().iter().any(|f| f.kernel && f.name == name)
            }
            _ => return Err(Code::InvalidHandle),
        };
        if !there {
            return Err(Code::NotFound);
        }
        let function = handle();
        self.code.functions.insert(function, Function { name, of });
        Ok(function)
    }

    /// Address and size of a variable of a module.
    pub(super) fn global(&self, module: Handle, name: &str) -> Result<(u64, usize), Code> {
        let loaded = self.code.images.get(&module).ok_or(Code::InvalidHandle)?;
        let found = loaded.image.symbol(name).zip(loaded.image.symbol_bytes(name));
        found.map(|(at, bytes)| (at, bytes as usize)).ok_or(Code::NotFound)
    }

    /// A launch of a function that can be executed, with a copy of its parameters, and its name; `None` if the
    /// function only takes time.
    pub(super) fn captured(
        &mut self,
        function: Handle,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        params: Parameters,
    ) -> Result<Option<Captured>, Code> {
        let Some(function) = self.code.functions.get(&function).cloned() else { return Ok(None) };
        let module = self.module_with(function.of)?;
        let loaded = self.code.images.get(&module).ok_or(Code::InvalidHandle)?;
        let sizes = loaded.image.parameters(&function.name).ok_or(Code::NotFound)?;
        let places = loaded.image.parameter_places(&function.name).ok_or(Code::NotFound)?;
        let parameters =
            if sizes.is_empty() { Vec::new() } else { params.bytes(&sizes, &places)? };
        Ok(Some(Captured { function, grid, block, shared, parameters, given: 0 }))
    }

    /// Where a parameter of a function lies in a buffer of all, and its bytes.
    pub(super) fn parameter(
        &mut self,
        function: Handle,
        number: usize,
    ) -> Result<(usize, usize), Code> {
        let function = self.code.functions.get(&function).cloned().ok_or(Code::InvalidHandle)?;
        let module = self.module_with(function.of)?;
        let image = &self.code.images.get(&module).ok_or(Code::InvalidHandle)?.image;
        let of = |all: Option<Vec<u32>>| all.and_then(|all| all.get(number).copied());
        let place = of(image.parameter_places(&function.name));
        let found = place.zip(of(image.parameters(&function.name)));
        found.map(|(at, bytes)| (at as usize, bytes as usize)).ok_or(Code::InvalidValue)
    }

    /// How many blocks of a function a multiprocessor runs at once.
    pub(super) fn occupancy(
        &mut self,
        function: Handle,
        threads: u32,
        shared: u64,
    ) -> Result<u32, Code> {
        let function = self.code.functions.get(&function).cloned().ok_or(Code::InvalidHandle)?;
        let module = self.module_with(function.of)?;
        let loaded = self.code.images.get(&module).ok_or(Code::InvalidHandle)?;
        let sizes = loaded.image.parameters(&function.name).ok_or(Code::NotFound)?;
        let device = self.code.devices.get(&loaded.device).ok_or(Code::InvalidDevice)?;
        let launch = Launch {
            kernel: &function.name,
            grid: [1, 1, 1],
            block: [threads, 1, 1],
            dynamic_shared: shared,
            parameters: &sizes.iter().map(|bytes| vec![0; *bytes as usize]).collect::<Vec<_>>(),
        };
        device.occupancy(&loaded.image, &launch).map_err(|why| failed(Code::InvalidValue, &why))
    }

    pub(super) fn module_with(&mut self, of: Handle) -> Result<Handle, Code> {
        if self.code.libraries.contains_key(&of) { self.module_of(of) } else { Ok(of) }
    }

    /// Keeps a launch that was captured.
    pub(super) fn keep(&mut self, captured: Captured) -> usize {
        self.code.captured.push(captured);
        self.code.captured.len() - 1
    }

    /// Executes a launch that was kept.
    pub(super) fn execute_kept(&mut self, kept: usize, stream: Handle) -> Result<Ran, Code> {
        let captured = self.code.captured.get(kept).cloned().ok_or(Code::InvalidHandle)?;
        self.execute(&captured, stream)
    }

    /// Executes a launch. It begins when the work before it on the stream has ended, or later if a test asks for that; the
    /// device's clock is that of the day.
    pub(super) fn execute(&mut self, launch: &Captured, stream: Handle) -> Result<Ran, Code> {
        if std::env::var("GPUWHY_STANDIN_REFUSES_LAUNCHES")
            .is_ok_and(|kernel| kernel == launch.function.name)
        {
            return Err(Code::InvalidValue);
        }
        let called = now();
        let begin = called.max(self.stream(stream)?.0.until) + self.late(&launch.function.name);
        let module = self.module_with(launch.function.of)?;
        let before = self.bring(module)?;
        let loaded = self.code.images.get(&module).ok_or(Code::InvalidHandle)?;
        let device = self.code.devices.get_mut(&loaded.device).ok_or(Code::InvalidDevice)?;
        device.set_globaltimer(begin + epoch());
        if let Some(at) = loaded.image.symbol(GIVEN) {
            let written = device.write(at, &launch.given.to_le_bytes());
            written.map_err(|why| failed(Code::InvalidValue, &why))?;
        }
        let launched = device.launch(
            &loaded.image,
            &Launch {
                kernel: &launch.function.name,
                grid: launch.grid,
                block: launch.block,
                dynamic_shared: launch.shared.into(),
                parameters: &launch.parameters,
            },
        );
        let cycles = launched.map_err(|why| failed(Code::LaunchFailed, &why))?.cycles;
        let touched = device.touched();
        let paging = self.code.paging.get_mut(&loaded.device);
        let stalled =
            paging.map_or(0, |paging| ledger::ran(paging, launch, &touched, begin, cycles));
        let cycles = cycles + stalled;
        self.take_back(module, before)?;
        note(&launch.function.name, called, begin, begin + cycles);
        Ok(Ran { cycles, begin })
    }

    /// Copies memory of the host that kernels of a module's device reach to that device: what was there, by its address.
    fn bring(&mut self, module: Handle) -> Result<Vec<(usize, Vec<u8>)>, Code> {
        let number = self.code.images.get(&module).ok_or(Code::InvalidHandle)?.device;
        let device = self.code.devices.get_mut(&number).ok_or(Code::InvalidDevice)?;
        let mut brought = Vec::new();
        for (host, (at, _)) in self.registered.iter().filter(|(_, (_, of))| *of == number) {
            let bytes = Out::<u8>::at(*host).bytes(self.pinned.get(host).copied().unwrap_or(0))?;
            device.write(*at, &bytes).map_err(|why| failed(Code::InvalidValue, &why))?;
            brought.push((*host, bytes));
        }
        Ok(brought)
    }

    /// Adds to that memory what kernels have added to it since. Others may have changed it meanwhile.
    fn take_back(&mut self, module: Handle, brought: Vec<(usize, Vec<u8>)>) -> Status {
        let number = self.code.images.get(&module).ok_or(Code::InvalidHandle)?.device;
        let device = self.code.devices.get_mut(&number).ok_or(Code::InvalidDevice)?;
        for (host, before) in brought {
            let Some((at, _)) = self.registered.get(&host) else { continue };
            let read = device.read(*at, before.len());
            let after = read.map_err(|why| failed(Code::InvalidValue, &why))?;
            let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            let words = before
                .chunks_exact(8)
                .zip(after.chunks_exact(8))
                .map(|(a, b)| (number(a), number(b)));
            for (word, (before, after)) in words.enumerate().filter(|(_, (a, b))| a != b) {
                Out::<u64>::at(host + 8 * word).add(after.wrapping_sub(before))?;
            }
        }
        Ok(())
    }

    /// How much later than it could a launch of a kernel begins, ns.
    fn late(&mut self, kernel: &str) -> u64 {
        let Some(Late { of, from, ns }) = late() else { return 0 };
        if kernel != of {
            return 0;
        }
        self.code.launches += 1;
        if self.code.launches > *from { *ns } else { 0 }
    }

    /// Device memory of the current context's device.
    pub(super) fn allocate(&mut self, bytes: u64) -> Result<u64, Code> {
        let (_, context) = self.current()?;
        self.device(context.device).allocate(bytes).ok_or(Code::OutOfMemory)
    }

    /// Gives it back.
    pub(super) fn free(&mut self, at: u64) -> Status {
        let (_, context) = self.current()?;
        if let Some(paging) = self.code.paging.get_mut(&context.device) {
            paging.remove(at);
        }
        if self.device(context.device).free(at) { Ok(()) } else { Err(Code::InvalidValue) }
    }

    /// Writes to device memory.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Status {
        let (_, context) = self.current()?;
        let written = self.device(context.device).write(at, bytes);
        written.map_err(|why| failed(Code::InvalidValue, &why))
    }

    /// Reads device memory.
    pub(super) fn read(&mut self, at: u64, bytes: usize) -> Result<Vec<u8>, Code> {
        let (_, context) = self.current()?;
        let read = self.device(context.device).read(at, bytes).map(<[u8]>::to_vec);
        read.map_err(|why| failed(Code::InvalidValue, &why))
    }
}
