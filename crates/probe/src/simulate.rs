//! `gpuwhy probe simulate`: a kernel without a GPU, as it is and with probes: what it computes, what the
//! probes count, and what they cost in instructions.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use gpuwhy_collect::SharedArray;
use gpuwhy_gpubpf::image::Arch;
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Contents, Counts, Device, Facts, Image, Launch, Maps};
use gpuwhy_gpubpf::splice::{Names, Plan, Record, Stealing};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;
use serde_json::{Value, json};

use crate::programs::{Allowed, Sampling, accepted, ptx, read};
use crate::shared::Pinned;
use crate::show;

/// A kernel, its launch, and the programs that are put into it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A parameter of the kernel is a number or device memory:
  u32:7  i32:-1  u64:7  i64:-1  f32:0.5  f64:0.5    a number
  zeros:4096         that many bytes, all zero
  file:INPUT         the bytes of a file
  count-u32:1024     0, 1, 2 … as 32-bit integers
  random-f32:1024    numbers from -1 to 1, the same in each run

Example: one thread in each of 128 adds two vectors, under a probe
  gpuwhy probe simulate add.ptx --object counts/probe.bpf.o --block 128 \\
      --param random-f32:128 --param random-f32:128 --param zeros:512")]
pub(crate) struct Options {
    /// The module: PTX as nvcc -ptx, Triton or NVRTC write it, a fat binary, or a cubin that carries its PTX
    #[arg(value_name = "KERNELS")]
    kernels: PathBuf,
    /// The GPU for which PTX is chosen from a fat binary, by its compute capability
    #[arg(long, value_name = "ARCH", default_value = "sm_90")]
    device: Arch,
    /// The kernel, if the module has several: a name or pattern, mangled or demangled
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// What clang -target bpf wrote: its programs are put into the kernel, which runs without them first
    #[arg(long, value_name = "OBJECT")]
    object: Vec<PathBuf>,
    /// Blocks in each direction
    #[arg(long, value_name = "X[,Y[,Z]]", default_value = "1")]
    grid: Sides,
    /// Threads of a block in each direction
    #[arg(long, value_name = "X[,Y[,Z]]", default_value = "32")]
    block: Sides,
    /// Let the kernel's blocks take their turns themselves as well, and compare; a program of --object in a section
    /// gpu/order/KERNEL says in which order
    #[arg(long)]
    steal: bool,
    /// Launch so often, and count the last launch
    #[arg(long, value_name = "COUNT", default_value = "1")]
    launches: NonZeroU32,
    /// Bytes of shared memory that the launch adds
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    shared: u64,
    /// A parameter of the kernel, once for each, in order
    #[arg(long = "param", value_name = "KIND:VALUE")]
    params: Vec<Param>,
    /// Write what device memory holds at the end: the parameter's number, from 0, and a file
    #[arg(long, value_name = "NUMBER=FILE")]
    save: Vec<Save>,
    /// Share an array of the programs (1504) with the kernel: its name, and where a map of the kernel is pinned that
    /// was declared with BPF_F_MMAPABLE and values of __u64. It begins with what the map holds, and what the programs
    /// add is added there
    #[arg(long = "map", value_name = "NAME=PINNED", requires = "object")]
    maps: Vec<Pinned>,
    /// Streaming multiprocessors of the simulated device
    #[arg(long, value_name = "COUNT", default_value_t = Config::default().sms)]
    sms: u32,
    /// The most instructions that all warps of a launch may issue
    #[arg(long, value_name = "COUNT", default_value_t = Config::default().limits.instructions)]
    instructions: u64,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    allowed: Allowed,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// `4`, `4,2` or `4,2,1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sides([u32; 3]);

impl FromStr for Sides {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sides = [1; 3];
        let given: Vec<&str> = text.split([',', 'x']).collect();
        if given.len() > 3 {
            return Err("write X, X,Y or X,Y,Z".into());
        }
        for (side, text) in sides.iter_mut().zip(given) {
            *side = text.parse().map_err(|_| format!("`{text}` is no count"))?;
        }
        Ok(Self(sides))
    }
}

/// What a kernel is given.
#[derive(Debug, Clone, PartialEq)]
enum Param {
    Number(Vec<u8>),
    Memory(Contained),
}

/// What device memory holds at first.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Contained {
    Zeros(usize),
    File(PathBuf),
    Count(usize),
    Random(usize),
}

/// The most bytes of one parameter's memory.
const MAX_MEMORY: usize = 512 << 20;

impl FromStr for Param {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, value) = text.split_once(':').ok_or("write KIND:VALUE, such as u32:7")?;
        fn bytes<T: FromStr, const N: usize>(
            value: &str,
            of: fn(T) -> [u8; N],
        ) -> Result<Param, String> {
            let number = value.parse().map_err(|_| format!("`{value}` is no such number"))?;
            Ok(Param::Number(of(number).to_vec()))
        }
        let many = |each: usize| -> Result<usize, String> {
            let many: usize = value.parse().map_err(|_| format!("`{value}` is no count"))?;
            match many.checked_mul(each) {
                Some(1..=MAX_MEMORY) => Ok(many),
                _ => Err(format!("`{value}` is nothing, or more than {MAX_MEMORY} bytes")),
            }
        };
        Ok(match kind {
            "u32" => bytes(value, u32::to_le_bytes)?,
            "i32" => bytes(value, i32::to_le_bytes)?,
            "u64" => bytes(value, u64::to_le_bytes)?,
            "i64" => bytes(value, i64::to_le_bytes)?,
            "f32" => bytes(value, f32::to_le_bytes)?,
            "f64" => bytes(value, f64::to_le_bytes)?,
            "zeros" => Self::Memory(Contained::Zeros(many(1)?)),
            "file" => Self::Memory(Contained::File(value.into())),
            "count-u32" => Self::Memory(Contained::Count(many(4)?)),
            "random-f32" => Self::Memory(Contained::Random(many(4)?)),
            _ => {
                return Err(format!(
                    "`{kind}` is none of u32, i32, u64, i64, f32, f64, zeros, file, count-u32, random-f32"
                ));
            }
        })
    }
}

impl Contained {
    fn bytes(&self) -> Result<Vec<u8>> {
        Ok(match self {
            Self::Zeros(bytes) => vec![0; *bytes],
            Self::File(path) => read(path, MAX_MEMORY as u64)?,
            Self::Count(many) => (0..*many as u32).flat_map(u32::to_le_bytes).collect(),
            Self::Random(many) => {
                // xorshift64 (Marsaglia 2003); its upper bits.
                let mut state = 0x9e37_79b9_7f4a_7c15_u64;
                let mut next = || {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 40) as f32 / (1 << 23) as f32 - 1.0
                };
                (0..*many).flat_map(|_| next().to_le_bytes()).collect()
            }
        })
    }
}

/// `2=FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Save {
    parameter: usize,
    path: PathBuf,
}

impl FromStr for Save {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, path) = text.split_once('=').ok_or("write NUMBER=FILE")?;
        let parameter = number.parse().map_err(|_| format!("`{number}` is no number"))?;
        Ok(Self { parameter, path: path.into() })
    }
}

/// An array of the programs that is a map of the kernel.
struct Shared<'a> {
    name: &'a str,
    array: SharedArray,
    before: Vec<u64>,
}

impl<'a> Shared<'a> {
    /// Gives the array of the programs what the map holds.
    fn begin(pinned: &'a Pinned, maps: &Maps, device: &mut Device) -> Result<Shared<'a>> {
        let array = SharedArray::open(&pinned.path)?;
        let before = array.numbers();
        let set = maps.set_numbers(device, &pinned.name, &before);
        set.map_err(|e| anyhow!("`{}`: {e}", pinned.path.display()))?;
        Ok(Shared { name: &pinned.name, array, before })
    }

    /// Adds to the map what the programs have added. The kernel may have done so meanwhile too.
    fn end(&self, maps: &Maps, device: &Device) -> Result<()> {
        let after = maps.numbers(device, self.name).map_err(|e| anyhow!(e))?;
        self.array.add_growth(&self.before, &after);
        Ok(())
    }
}

/// What a launch left.
struct Ran {
    cycles: u64,
    /// Cycles that SMs had nothing more to do, until the last one was done.
    idle: u64,
    blocks: u64,
    total: Counts,
    /// Each parameter's memory at the end; empty where it is a number.
    memory: Vec<Vec<u8>>,
    maps: Vec<Contents>,
}

/// Exit code 1 where the kernel computes something else with the programs than without.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let name = options.kernels.display();
    let text = ptx(&options.kernels, options.device)?;
    let module = Module::read(&text).with_context(|| format!("`{name}` is no PTX"))?;
    let kernel = kernel(&module, options.kernel.as_deref()).with_context(|| format!("`{name}`"))?;
    let given: Vec<Option<Vec<u8>>> = options
        .params
        .iter()
        .map(|param| match param {
            Param::Number(_) => Ok(None),
            Param::Memory(contained) => contained.bytes().map(Some),
        })
        .collect::<Result<_>>()?;
    if let Some(save) =
        options.save.iter().find(|s| !matches!(given.get(s.parameter), Some(Some(_))))
    {
        bail!("parameter {} has no memory that could be saved", save.parameter);
    }
    let without = launch(options, &module, &kernel, &given, None, None)
        .with_context(|| format!("`{name}`, as it is"))?;
    let plan = plan(options)?;
    let mut columns = Columns { without, with: None, stealing: None };
    if let Some(plan) = plan.as_ref().filter(|plan| has_probes(plan) || !options.steal) {
        let spliced = plan.splice(&module).with_context(|| format!("`{name}`"))?;
        let sites = spliced.kernels.iter().find(|k| k.name == kernel).map_or(0, |k| k.sites);
        if sites == 0 {
            let notes = spliced.notes.join("; ");
            bail!(
                "no program belongs to kernel `{kernel}`{}{notes}",
                if notes.is_empty() { "" } else { ": " }
            );
        }
        let module = Module::read(&spliced.text)
            .with_context(|| format!("`{name}`, with programs in it"))?;
        let ran = launch(options, &module, &kernel, &given, Some(plan), None)
            .with_context(|| format!("`{name}`, with programs in it"))?;
        columns.with = Some((ran, sites));
    }
    if options.steal {
        let plan = plan.unwrap_or_else(|| Plan::new(options.sampling.how(&options.allowed, true)));
        let stolen = stealing(options, &module, &kernel, &given, plan);
        columns.stealing = Some(stolen.with_context(|| format!("`{name}`, stealing"))?);
    }
    for Save { parameter, path } in &options.save {
        std::fs::write(path, &columns.last().memory[*parameter])
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    // A pointer that a kernel stores differs from run to run only if the layout of memory does, and it is the same.
    let differs =
        |at: &usize| columns.others().any(|ran| ran.memory[*at] != columns.without.memory[*at]);
    let changed: Vec<usize> = (0..given.len()).filter(differs).collect();
    if options.json {
        terminal::say_json(&format!("{:#}", document(&kernel, &columns, &changed)))?;
    } else {
        terminal::show(&page(&kernel, &columns, &changed))?;
    }
    Ok(if changed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A kernel as it is, with programs in it at so many sites, and where it steals work, with the program that orders its blocks.
struct Columns {
    without: Ran,
    with: Option<(Ran, usize)>,
    stealing: Option<(Ran, Option<String>)>,
}

impl Columns {
    fn others(&self) -> impl Iterator<Item = &Ran> {
        let with = self.with.iter().map(|(ran, _)| ran);
        with.chain(self.stealing.iter().map(|(ran, _)| ran))
    }

    fn last(&self) -> &Ran {
        self.others().last().unwrap_or(&self.without)
    }
}

/// Whether any of the programs belongs into a kernel.
fn has_probes(plan: &Plan) -> bool {
    plan.probes().iter().any(|probe| probe.attach.kernel().is_some())
}

/// Runs the kernel that steals in the place of `kernel`, with the programs in it.
fn stealing(
    options: &Options,
    module: &Module,
    kernel: &str,
    given: &[Option<Vec<u8>>],
    mut plan: Plan,
) -> Result<(Ran, Option<String>)> {
    plan.steal(&[kernel.to_owned()]);
    let spliced = plan.splice(module)?;
    if let Some(not) = spliced.not_stealing.iter().find(|not| not.kernel == kernel) {
        let reasons: Vec<String> = not.reasons.iter().map(ToString::to_string).collect();
        bail!("{} may not steal: {}", not.readable, reasons.join("; "));
    }
    let steals = spliced.stealing.iter().find(|steals| steals.kernel == kernel);
    let steals = steals.context("the kernel has no text")?;
    if steals.by_hardware {
        bail!(
            "its blocks would ask the hardware of the device that it is for (clusterlaunchcontrol), which the simulator \
             does not know"
        );
    }
    let [x, y, z] = options.block.0;
    if steals.rows && x % 32 != 0 && (y != 1 || z != 1) {
        bail!("it may steal in blocks whose side in x is a multiple of 32, or the only one");
    }
    let module = Module::read(&spliced.text)?;
    let ran = launch(options, &module, kernel, given, Some(&plan), Some(steals))?;
    Ok((ran, steals.order.clone()))
}

/// The kernel that is meant, by its mangled name.
fn kernel(module: &Module, pattern: Option<&str>) -> Result<String> {
    let kernels = module.functions().iter().filter(|f| f.kernel && f.body.is_some());
    let named: Vec<(&str, Names)> =
        kernels.map(|function| (function.name.as_str(), Names::new(&function.name))).collect();
    let meant: Vec<&(&str, Names)> = named
        .iter()
        .filter(|(_, names)| pattern.is_none_or(|pattern| names.matches(pattern)))
        .collect();
    match (meant.as_slice(), pattern) {
        ([(name, _)], _) => Ok((*name).to_owned()),
        ([], Some(pattern)) => {
            let all: Vec<&str> = named.iter().map(|(_, names)| names.readable()).take(20).collect();
            bail!("it has no kernel like `{pattern}`; it has {}", all.join(", "))
        }
        ([], None) => bail!("it has no kernel"),
        (several, _) => {
            let all: Vec<&str> =
                several.iter().map(|(_, names)| names.readable()).take(20).collect();
            bail!(
                "it has {} such kernels; say which with --kernel: {}",
                several.len(),
                all.join(", ")
            )
        }
    }
}

/// The programs of all objects; an error where one for a device is refused.
fn plan(options: &Options) -> Result<Option<Plan>> {
    if options.object.is_empty() {
        return Ok(None);
    }
    let how = options.sampling.how(&options.allowed, true);
    Ok(Some(accepted(&options.object, how)?.0))
}

/// Launches a kernel, or the one that steals in its place, as often as that was asked for. What the last launch did.
fn launches(
    options: &Options,
    device: &mut Device,
    image: &Image,
    launch: &Launch,
    steals: Option<&Stealing>,
) -> Result<(Facts, u64)> {
    let total = launch.grid.iter().map(|side| u64::from(*side)).product();
    let Some(steals) = steals else {
        let mut facts = Facts::default();
        for _ in 0..options.launches.get() {
            facts = device.launch(image, launch)?;
        }
        return Ok((facts, total));
    };
    let record = vec![0; Record::bytes(steals.order.is_some()) as usize];
    let record = device.upload(&record).context("the device has no room for the record")?;
    let (name, mut parameters) = (steals.name(), launch.parameters.to_vec());
    parameters.push(Stealing::parameter(record, launch.grid, 0).to_vec());
    let one = Launch { kernel: &name, grid: [1, 1, 1], parameters: &parameters, ..launch.clone() };
    let blocks = (u64::from(device.occupancy(image, &one)?) * device.sms()).min(total);
    let grid = launch.grid;
    parameters.pop();
    parameters.push(Stealing::parameter(record, grid, blocks as u32).to_vec());
    let one = Launch {
        kernel: &name,
        grid: [blocks as u32, 1, 1],
        parameters: &parameters,
        ..launch.clone()
    };
    let mut facts = Facts::default();
    for _ in 0..options.launches.get() {
        facts = device.launch(image, &one)?;
    }
    Ok((facts, blocks))
}

/// Runs a kernel on a device of its own.
fn launch(
    options: &Options,
    module: &Module,
    kernel: &str,
    given: &[Option<Vec<u8>>],
    plan: Option<&Plan>,
    steals: Option<&Stealing>,
) -> Result<Ran> {
    let mut config = Config { sms: options.sms, ..Config::default() };
    config.limits.instructions = options.instructions;
    let mut device = Device::new(config);
    // Parameters first: they have the same addresses with programs and without.
    let mut places = Vec::new();
    let mut parameters = Vec::new();
    for (param, memory) in options.params.iter().zip(given) {
        match (param, memory) {
            (Param::Number(bytes), _) => {
                parameters.push(bytes.clone());
                places.push(None);
            }
            (_, memory) => {
                let bytes = memory.as_deref().unwrap_or_default();
                let place = device.upload(bytes).ok_or_else(|| {
                    anyhow!(
                        "the parameters take more than the {} bytes of the device",
                        config.limits.memory
                    )
                })?;
                parameters.push(place.to_le_bytes().to_vec());
                places.push(Some((place, bytes.len())));
            }
        }
    }
    let image = device.load(module)?;
    let missing = image.missing(kernel);
    let (grid, block) = (options.grid.0, options.block.0);
    let threads =
        grid.iter().chain(&block).try_fold(1_u64, |all, side| all.checked_mul((*side).into()));
    let maps = match plan {
        None => None,
        Some(plan) => {
            let threads = threads.ok_or_else(|| anyhow!("a grid of {grid:?} blocks"))?;
            let table = plan.table();
            let who = u64::from(std::process::id()) << 32 | u64::from(std::process::id());
            Some(Maps::bind(&mut device, &image, &table, threads, who).map_err(|e| anyhow!(e))?)
        }
    };
    let shared = match &maps {
        None => Vec::new(),
        Some(maps) => {
            let begin = |pinned| Shared::begin(pinned, maps, &mut device);
            options.maps.iter().map(begin).collect::<Result<_>>()?
        }
    };
    let launch =
        Launch { kernel, grid, block, dynamic_shared: options.shared, parameters: &parameters };
    let (facts, blocks) =
        launches(options, &mut device, &image, &launch, steals).map_err(|error| {
            let unknown = match missing.as_slice() {
                [] => String::new(),
                some => format!("; of this kernel the simulator does not know {}", some.join(", ")),
            };
            anyhow!("{error:#}{unknown}")
        })?;
    let memory = places
        .iter()
        .map(|place| match place {
            None => Ok(Vec::new()),
            Some((at, bytes)) => device.read(*at, *bytes).map(<[u8]>::to_vec),
        })
        .collect::<Result<_, _>>()?;
    if let Some(maps) = &maps {
        shared.iter().try_for_each(|one| one.end(maps, &device))?;
    }
    let maps = maps.map(|maps| maps.read(&device)).unwrap_or_default();
    let idle = facts.sms.iter().map(|sm| facts.cycles - sm).sum();
    Ok(Ran { cycles: facts.cycles, idle, blocks, total: facts.total, memory, maps })
}

/// The counts of a launch, with their names.
fn counts(ran: &Ran) -> [(&'static str, u64); 8] {
    let Counts { instructions, requests, sectors, bank_conflicts, atomics, .. } = ran.total;
    [
        ("cycles", ran.cycles),
        ("cycles of SMs without work at the end", ran.idle),
        ("blocks of the launch", ran.blocks),
        ("instructions of warps", instructions),
        ("memory requests", requests),
        ("sectors of 32 bytes", sectors),
        ("cycles of bank conflicts", bank_conflicts),
        ("atomic operations", atomics),
    ]
}

fn page(kernel: &str, columns: &Columns, changed: &[usize]) -> Screen {
    let mut screen = terminal::screen(|name| std::env::var_os(name));
    screen.bold(Names::new(kernel).readable()).end();
    let Columns { without, with, stealing } = columns;
    let mut heads = vec![("as it is", without)];
    let mut told = Vec::new();
    if let Some((ran, sites)) = with {
        heads.push(("with", ran));
        told.push(format!("with programs at {sites} sites"));
    }
    if let Some((ran, order)) = stealing {
        heads.push(("stealing", ran));
        told.push(match order {
            Some(order) => format!("stealing in the order of `{order}`"),
            None => "stealing in order".to_owned(),
        });
    }
    if heads.len() > 1 {
        let line: String = heads.iter().map(|(head, _)| format!("{head:>14}")).collect();
        screen.line(format_args!("{line}  {}", told.join(", ")));
    }
    for (at, (what, _)) in counts(without).into_iter().enumerate() {
        let line: String =
            heads.iter().map(|(_, ran)| format!("{:>14}", counts(ran)[at].1)).collect();
        screen.line(format_args!("{line}  {what}"));
    }
    if heads.len() > 1 {
        match changed {
            [] => screen.line("The kernel left the same in the memory that it was given."),
            some => screen
                .bold(format_args!("The kernel left something else in parameters {some:?}."))
                .end(),
        };
    }
    show::maps(&mut screen, &columns.last().maps);
    screen
}

fn document(kernel: &str, columns: &Columns, changed: &[usize]) -> Value {
    let numbers = |ran: &Ran| -> Value {
        counts(ran)
            .into_iter()
            .map(|(what, count)| (what.replace(' ', "_"), json!(count)))
            .collect()
    };
    let mut document = json!({
        "kernel": kernel,
        "readable": Names::new(kernel).readable(),
        "as_it_is": numbers(&columns.without),
    });
    if let Some((ran, order)) = &columns.stealing {
        document["stealing"] = numbers(ran);
        document["order"] = json!(order);
        document["changed_parameters"] = json!(changed);
    }
    let Some((ran, sites)) = &columns.with else { return document };
    document["with_programs"] = numbers(ran);
    document["sites"] = json!(sites);
    document["changed_parameters"] = json!(changed);
    document["sampled"] = show::sampled_document(&ran.maps);
    document["maps"] = show::documents(&ran.maps);
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbers_or_memory() {
        for (text, bytes) in [
            ("u32:7", vec![7, 0, 0, 0]),
            ("i32:-1", vec![0xff; 4]),
            ("i64:-1", vec![0xff; 8]),
            ("f32:0.5", 0.5_f32.to_le_bytes().to_vec()),
        ] {
            assert_eq!(text.parse(), Ok(Param::Number(bytes)), "{text}");
        }
        for (text, says) in [
            ("7", "KIND:VALUE"),
            ("u32:-1", "`-1` is no such number"),
            ("u8:1", "`u8` is none of"),
            ("zeros:0", "is nothing"),
            ("zeros:99999999999", "or more than"),
            ("random-f32:18446744073709551615", "or more than"),
        ] {
            let error = text.parse::<Param>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        let Ok(Param::Memory(random)) = "random-f32:1000".parse() else { panic!() };
        let bytes = random.bytes().unwrap();
        let numbers = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        assert!(numbers.clone().all(|x| (-1.0..1.0).contains(&x)));
        assert!(numbers.clone().filter(|x| *x < 0.0).count().abs_diff(500) < 60);
    }

    #[test]
    fn a_grid_has_up_to_three_sides() {
        assert_eq!("4".parse(), Ok(Sides([4, 1, 1])));
        assert_eq!("4,2".parse(), Ok(Sides([4, 2, 1])));
        assert_eq!("4x2x3".parse(), Ok(Sides([4, 2, 3])));
        assert!("1,2,3,4".parse::<Sides>().is_err());
        assert!("".parse::<Sides>().is_err());
    }
}
