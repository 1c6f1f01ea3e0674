//! The controller: takes images as programs load them, puts probes into them, and gives maps their memory.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpuwhy_gpubpf::Attach;
use gpuwhy_gpubpf::Map;
use gpuwhy_gpubpf::contents::{Contents, Layout, Record};
use gpuwhy_gpubpf::image::{Coverage, Cubin, ELF_MAGIC, Images, NoPtx, Way, is_binary, ptx_for};
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::splice::{
    self, KernelReport, Names, NotStealing, Plan, Probe, SiteReport, Table,
};
use gpuwhy_wire::images::{
    self, Answer, Ask, Desk, Launches, MAX_IMAGE, Name, Outcome, Records, Ring, Running, Seat,
    State, Stolen, Thief, name_hash,
};

use crate::cache::{Cache, Key, Made, Steals};
use crate::code::{self, Sanitizer};
use crate::policies::Policies;
use crate::shared::Shared;

/// The most images of which something is kept.
const MAX_IMAGES: usize = 1 << 16;
/// The most connections at a time.
const MAX_SEATS: usize = 64;
/// The map in which programs tell when each launch began.
pub(crate) const LAUNCHES: &str = "gpuwhy_launches";
/// The map in which programs tell which block ended last.
const ENDED: &str = "gpuwhy_ended";
/// The most bytes of records that are kept of an image in a context.
const MAX_RECORDS: u64 = 256 << 20;
/// How often records are taken.
const TAKE: Duration = Duration::from_millis(20);
/// How long a program may take between an answer and what it says next: the driver compiles the image meanwhile.
const PATIENCE: Duration = Duration::from_secs(600);

/// An image that a program has loaded.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub pid: i32,
    /// The program's name.
    pub program: String,
    pub bytes: usize,
    pub made: Arc<Made>,
    /// How long it took to put probes into it, or to find that kept.
    pub took: Duration,
    /// How the driver took it.
    pub outcome: Option<Outcome>,
    pub layout: Option<Layout>,
    pub shared: Arc<Shared>,
    /// What the program was told, without the text.
    plan: Option<images::Plan>,
    /// Its maps, context by context.
    pub states: Vec<Shown>,
}

/// The maps of an image in one context.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The device's ordinal in the program.
    pub device: u32,
    pub context: u64,
    pub state: State,
    /// Records of rings that were taken while kernels ran, by the map's number.
    pub records: Vec<(u32, Record)>,
    /// Bytes of these.
    kept: u64,
    /// Records beyond [`MAX_RECORDS`], and whether some were lost since what the program wrote was not right.
    pub left_out: u64,
    pub garbled: bool,
}

impl Shown {
    /// Takes the records that have come; they begin so many bytes behind the beginning of the maps.
    fn take_records(&mut self, at: u64) {
        let Self { state, records, kept, left_out, garbled, .. } = self;
        let right = Records::new(state, at).take(|map, sm, bytes| {
            if *kept + bytes.len() as u64 > MAX_RECORDS {
                *left_out += 1;
                return;
            }
            *kept += bytes.len() as u64;
            records.push((map, Record { sm: sm.into(), bytes }));
        });
        *garbled |= !right;
    }
}

/// How images are treated.
#[derive(Debug)]
pub(crate) struct Rules {
    pub plan: Plan,
    /// The objects' bytes and how they are spliced, for the cache.
    pub made_of: Vec<Vec<u8>>,
    /// Threads of the largest launch, for maps with a value per thread.
    pub threads: u64,
    /// The most bytes of an image's maps.
    pub most: u64,
    pub cache: Option<Cache>,
    /// Whether programs are switched off at first.
    pub off: bool,
    /// Maps of the kernel that programs count in.
    pub shared: Arc<Shared>,
    /// Policies, if there are any.
    pub policies: Option<Policies>,
    /// How machine code is reached, if it is.
    pub sanitizer: Option<Sanitizer>,
}

/// All that was loaded, in order.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub images: Vec<Loaded>,
    pub notes: Vec<String>,
    /// Images beyond [`MAX_IMAGES`].
    pub uncounted: usize,
    /// Processes whose machine code Sanitizer patches.
    sanitized: HashSet<i32>,
    known: HashMap<Key, Arc<Made>>,
}

impl Books {
    /// Takes the records of rings that have come.
    pub fn take_records(&mut self) {
        for loaded in &mut self.images {
            if let Some(at) = loaded.records_at() {
                loaded.states.iter_mut().for_each(|shown| shown.take_records(at));
            }
        }
    }
}

/// The controller.
#[derive(Debug)]
pub(crate) struct Controller {
    rules: Rules,
    table: Table,
    /// Whether programs are switched off.
    off: AtomicBool,
    books: Mutex<Books>,
}

impl Controller {
    pub fn new(rules: Rules) -> Self {
        let (table, off) = (rules.plan.table(), AtomicBool::new(rules.off));
        Self { rules, table, off, books: Mutex::default() }
    }

    /// What was loaded so far.
    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The policies, if there are any.
    pub fn policies(&self) -> Option<&Policies> {
        self.rules.policies.as_ref()
    }

    /// Switches all programs, in images that are there and in those to come.
    pub fn switch(&self, on: bool) {
        let books = self.books();
        self.off.store(!on, Relaxed);
        for shown in books.images.iter().flat_map(|image| &image.states) {
            (0..self.table.switches.len()).for_each(|program| shown.state.switch(program, on));
        }
    }

    /// How machine code is reached, if it is.
    pub fn sanitizer(&self) -> Option<&Sanitizer> {
        self.rules.sanitizer.as_ref()
    }

    /// Whether there is a program that belongs into kernels.
    pub fn has_probes(&self) -> bool {
        self.rules.plan.steals()
            || self.rules.plan.probes().iter().any(|probe| probe.attach.kernel().is_some())
    }

    /// What the maps of a name hold in a process, as they were copied last, in each image and context; `None` while one of them
    /// is being copied.
    fn copies(&self, pid: i32, name: &str) -> Option<Vec<Contents>> {
        let books = self.books();
        let mut all = Vec::new();
        for loaded in books.images.iter().filter(|loaded| loaded.pid == pid) {
            let Some(layout) = &loaded.layout else { continue };
            for (at, bytes, read) in layout.named(name) {
                for shown in &loaded.states {
                    all.push(read(&shown.state.part(at, bytes)?));
                }
            }
        }
        Some(all)
    }

    /// Answers programs until `stop`, and until those that are being answered have heard it.
    pub fn serve(&self, desk: &Desk, stop: &AtomicBool) {
        let seats = &Mutex::new(0_usize);
        let count = |more: isize| {
            let mut seats = seats.lock().unwrap_or_else(PoisonError::into_inner);
            *seats = seats.saturating_add_signed(more);
            *seats
        };
        let count = &count;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    self.books().take_records();
                    std::thread::sleep(TAKE);
                }
            });
            if let Some(policies) = self.policies() {
                scope.spawn(|| policies.serve(stop, |pid, name| self.copies(pid, name)));
            }
            while !stop.load(Relaxed) {
                let Some(seat) = desk.accept(Duration::from_millis(100)) else { continue };
                // Who is turned away loads its own image.
                if count(1) > MAX_SEATS {
                    count(-1);
                    continue;
                }
                scope.spawn(move || {
                    // Whatever goes wrong is one program's connection.
                    let _ = catch_unwind(AssertUnwindSafe(|| self.attend(&seat, stop)));
                    count(-1);
                });
            }
        });
    }

    /// One connection.
    fn attend(&self, seat: &Seat, stop: &AtomicBool) {
        let mut until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match seat.next(Duration::from_millis(100)) {
                Ok((ask, with)) => {
                    if self.answer(seat, ask, with).is_err() {
                        return;
                    }
                    until = Instant::now() + PATIENCE;
                }
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    if stop.load(Relaxed) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    fn answer(&self, seat: &Seat, ask: Ask, with: Option<OwnedFd>) -> std::io::Result<()> {
        match ask {
            Ask::Image { arch, sms } => {
                let bytes = with.map(contents).transpose()?;
                plan(seat, bytes.and_then(|bytes| self.image(seat.pid, &bytes, arch, sms)))
            }
            Ask::Code { sms } => {
                let bytes = with.map(contents).transpose()?;
                plan(seat, bytes.and_then(|bytes| self.code(seat.pid, &bytes, sms)))
            }
            Ask::Sanitizer { code } => {
                let mut books = self.books();
                if code == 0 {
                    books.sanitized.insert(seat.pid);
                }
                let told = code::trouble(code).filter(|told| !books.notes.contains(told));
                books.notes.extend(told);
                seat.answer(Answer::AsItIs, None::<&OwnedFd>)
            }
            Ask::Loaded { image, outcome } => {
                if let Some(loaded) = self.books().images.get_mut(image as usize) {
                    loaded.outcome = Some(outcome);
                }
                Ok(())
            }
            Ask::State { image, device, context } => {
                let mut books = self.books();
                let loaded = books.images.get_mut(image as usize);
                let Some((loaded, bytes)) = loaded.and_then(|loaded| {
                    let bytes = loaded.shown_bytes()?;
                    Some((loaded, bytes))
                }) else {
                    return Err(std::io::ErrorKind::InvalidData.into());
                };
                let state = State::new(bytes)?;
                let programs = 0..self.table.switches.len();
                programs.for_each(|program| state.switch(program, !self.off.load(Relaxed)));
                let sent = seat.answer(Answer::State, Some(&state));
                let (records, kept, left_out, garbled) = (Vec::new(), 0, 0, false);
                loaded.states.push(Shown {
                    device,
                    context,
                    state,
                    records,
                    kept,
                    left_out,
                    garbled,
                });
                sent
            }
            Ask::Shared { image, word } => {
                let books = self.books();
                let loaded = books.images.get(image as usize);
                let layout = loaded.and_then(|loaded| loaded.layout.as_ref());
                let map = layout.and_then(|layout| layout.outside().find(|(_, at, _)| *at == word));
                let array = map.and_then(|(number, _, _)| self.rules.shared.array(number));
                seat.answer(Answer::Shared, Some(array.ok_or(std::io::ErrorKind::InvalidData)?))
            }
            Ask::Policy => {
                let policies = self.policies().ok_or(std::io::ErrorKind::InvalidData)?;
                let program = name_of(seat.pid);
                policies
                    .open(seat.pid, program, |exchange| seat.answer(Answer::Policy, Some(exchange)))
            }
        }
    }

    /// An image is about to be loaded. The plan, if probes belong into it.
    fn image(&self, pid: i32, bytes: &[u8], arch: u32, sms: u32) -> Option<images::Plan> {
        let begin = Instant::now();
        let made = self.made(bytes, arch);
        if made.machine_code && self.books().sanitized.contains(&pid) {
            // When the driver has loaded it, it is told of again.
            return None;
        }
        let text = made.text.as_ref().map(|text| [text.as_bytes(), &[0]].concat());
        self.enter(pid, (bytes.len(), begin), made, text.map(|text| (text, None)), sms)
    }

    /// The driver has loaded machine code. The plan, if functions are to be called from it.
    fn code(&self, pid: i32, bytes: &[u8], sms: u32) -> Option<images::Plan> {
        let begin = Instant::now();
        let sanitizer = self.rules.sanitizer.as_ref()?;
        let plan = &self.rules.plan;
        let reached = code::reach(sanitizer, plan, bytes)?;
        let ways = vec![(Way::MachineCode.word().to_owned(), reached.cubin.kernels.len())];
        let (made, functions) = match reached.patched {
            Err(why) => (Made { why: Some(why), ..Made::default() }, None),
            Ok((patched, functions)) => {
                let patch = code::told(&patched);
                let made = put(plan, patched.kernels, &patched.sites);
                let made = Made { notes: patched.notes, ..made };
                (made, Some((functions.image.clone(), Some(patch))))
            }
        };
        let made = Made { ways, machine_code: true, ..made };
        self.enter(pid, (bytes.len(), begin), Arc::new(made), functions, sms)
    }

    /// Writes an image down, of so many bytes, which was looked at since then. The plan, if there is a text: another image for
    /// it, or the functions that are called from it.
    fn enter(
        &self,
        pid: i32,
        (bytes, begin): (usize, Instant),
        mut made: Arc<Made>,
        text: Option<(Vec<u8>, Option<images::Patch>)>,
        sms: u32,
    ) -> Option<images::Plan> {
        let layout = match text {
            None => None,
            Some(_) => {
                let Rules { threads, most, shared, .. } = &self.rules;
                match Layout::new(&self.table, *threads, sms.into(), *most, &shared.numbers()) {
                    Ok(layout) => Some(layout),
                    Err(why) => {
                        made = Arc::new(Made { text: None, why: Some(why), ..(*made).clone() });
                        None
                    }
                }
            }
        };
        let mut books = self.books();
        if books.images.len() >= MAX_IMAGES {
            books.uncounted += 1;
            return None;
        }
        let number = books.images.len() as u64;
        let plan = layout.as_ref().map(|layout| {
            let (mut words, places) = layout.words(&self.table);
            for (_, word) in self.table.switches.iter().filter(|_| self.off.load(Relaxed)) {
                words[*word] = 0;
            }
            let switches = self.table.switches.iter().map(|(_, word)| *word as u32).collect();
            let launches = launches(layout);
            let kernels = followed(layout, &made).iter();
            images::Plan {
                image: number,
                state_bytes: layout.bytes,
                host_bytes: layout.host_bytes,
                shared: layout.outside().map(|(_, word, bytes)| (word, bytes)).collect(),
                words,
                places,
                switches,
                running: running(layout),
                launches,
                kernels: kernels.map(|(site, name)| (name_hash(name.as_bytes()), *site)).collect(),
                rings: rings(layout),
                names: names(&made),
                stealing: stealing(&self.table, &made),
                patch: None,
                text: Vec::new(),
            }
        });
        let sent = plan.as_ref().zip(text).map(|(plan, (text, patch))| images::Plan {
            text,
            patch,
            ..plan.clone()
        });
        books.images.push(Loaded {
            pid,
            program: name_of(pid),
            bytes,
            made,
            took: begin.elapsed(),
            outcome: None,
            layout,
            shared: self.rules.shared.clone(),
            plan,
            states: Vec::new(),
        });
        sent
    }

    /// The image with probes in it, made or kept.
    fn made(&self, bytes: &[u8], arch: u32) -> Arc<Made> {
        let arch_bytes = arch.to_le_bytes();
        let parts = self.rules.made_of.iter().map(Vec::as_slice);
        let parts: Vec<&[u8]> = parts.chain([arch_bytes.as_slice(), bytes]).collect();
        let key = Key::of(&parts);
        if let Some(made) = self.books().known.get(&key) {
            return made.clone();
        }
        let cache = self.rules.cache.as_ref();
        if let Some(made) = cache.and_then(|cache| cache.get(key)) {
            let made = Arc::new(made);
            self.books().known.insert(key, made.clone());
            return made;
        }
        let put = catch_unwind(AssertUnwindSafe(|| put_probes(&self.rules.plan, bytes, arch)));
        let (made, keep) = match put {
            Ok(made) => (made, true),
            Err(_) => {
                let why = Some("putting probes into it failed; this is a defect of gpuwhy".into());
                (Made { why, ..Made::default() }, false)
            }
        };
        let kept = cache.filter(|_| keep).map_or(Ok(()), |cache| cache.put(key, &made));
        let made = Arc::new(made);
        let mut books = self.books();
        if let Err(why) = kept {
            let why = format!("{why:#}");
            if !books.notes.contains(&why) {
                books.notes.push(why);
            }
        }
        if books.known.len() < 1024 {
            books.known.insert(key, made.clone());
        }
        made
    }
}

/// What a program has sent.
fn contents(from: OwnedFd) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut from = File::from(from);
    from.rewind()?;
    from.take(MAX_IMAGE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Answers with a plan, if there is one.
fn plan(seat: &Seat, plan: Option<images::Plan>) -> std::io::Result<()> {
    match plan {
        Some(plan) => seat.answer(Answer::Plan, Some(&plan.share()?)),
        None => seat.answer(Answer::AsItIs, None::<&OwnedFd>),
    }
}

/// Where the programs count the blocks that run: a map of this name, whose bins are 2 to the power of 16 ns long.
fn running(layout: &Layout) -> Option<Running> {
    let (at, bins) = layout.array("gpuwhy_running", 8)?;
    let ends = layout.array(ENDED, 8).filter(|(_, others)| *others == bins).map_or(0, |(at, _)| at);
    bins.is_power_of_two().then_some(Running { at, bins, shift: 16, ends })
}

/// Where the programs tell when each launch began: a map of this name.
fn launches(layout: &Layout) -> Option<Launches> {
    let (at, slots) = layout.array(LAUNCHES, Launches::BYTES)?;
    let is = slots.is_power_of_two() && u64::from(slots) <= images::MANY;
    is.then_some(Launches { at, slots })
}

/// The rings of records among the maps.
fn rings(layout: &Layout) -> Vec<Ring> {
    let ring = |(number, map, sms, at): (usize, &Map, u64, u64)| {
        let (slots, slot_bytes) = (map.ring_slots().try_into().ok()?, map.ring_slot() as u32);
        Some(Ring { map: number as u32, sms: sms.try_into().ok()?, at, slots, slot_bytes })
    };
    layout.rings().filter_map(ring).collect()
}

/// The sites where kernels begin whose launches are followed, and the kernels' names.
fn followed<'a>(layout: &Layout, made: &'a Made) -> &'a [(u64, String)] {
    let most = made.begins.len().min(images::MANY as usize);
    if launches(layout).is_some() { &made.begins[..most] } else { &[] }
}

impl Loaded {
    /// Bytes that its maps take where they are shown.
    fn shown_bytes(&self) -> Option<u64> {
        self.plan.as_ref().map(images::Plan::shown_bytes)
    }

    /// Where records of rings come in, from the beginning of the maps; `None` if it has no ring.
    pub fn records_at(&self) -> Option<u64> {
        self.plan.as_ref().filter(|plan| !plan.rings.is_empty()).map(images::Plan::records_at)
    }

    /// How each kernel that can steal was launched, in all contexts.
    pub fn stolen(&self) -> Vec<(&Steals, Stolen)> {
        let at = self.plan.as_ref().map_or(0, images::Plan::stolen_at);
        let sum = |kernel: usize| {
            let mut sum = Stolen::default();
            self.states.iter().for_each(|shown| sum.add(&shown.state.stolen(at, kernel)));
            sum
        };
        self.made
            .stealing
            .iter()
            .enumerate()
            .map(|(kernel, steals)| (steals, sum(kernel)))
            .collect()
    }

    /// The kernels whose launches are followed.
    pub fn followed(&self) -> &[(u64, String)] {
        self.layout.as_ref().map_or(&[], |layout| followed(layout, &self.made))
    }
}

/// A process's name; empty if it has gone.
fn name_of(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map(|name| name.trim_end().to_owned()).unwrap_or_default()
}

/// What becomes of an image.
fn put_probes(plan: &Plan, bytes: &[u8], arch: u32) -> Made {
    let as_it_is =
        |why: String| Made { why: Some(why), ways: ways(bytes, arch), ..Made::default() };
    let (text, older) = if is_binary(bytes) {
        match ptx_for(bytes, arch) {
            Ok(chosen) => {
                let newer = chosen.machine.filter(|machine| *machine > chosen.arch);
                let older = newer.map(|machine| (chosen.arch.to_string(), machine.to_string()));
                (chosen.text, older)
            }
            Err(why) => {
                let machine_code = matches!(why, NoPtx::MachineCode(_));
                let why = format!("{:#}", anyhow::Error::new(why));
                return Made { machine_code, ..as_it_is(why) };
            }
        }
    } else {
        match std::str::from_utf8(bytes) {
            Ok(text) => (text.to_owned(), None),
            Err(_) => return as_it_is("it is neither PTX nor a fat binary nor a cubin".into()),
        }
    };
    let module = match Module::read(&text) {
        Ok(module) => module,
        Err(fault) => return as_it_is(format!("it is no PTX: {fault}")),
    };
    let spliced = match plan.splice(&module) {
        Ok(spliced) => spliced,
        Err(refusal) => return as_it_is(refusal.to_string()),
    };
    let nothing = if plan.steals() {
        "no probe belongs into it, and no kernel of it steals"
    } else {
        "no probe belongs into it"
    };
    let has_none = spliced.sites.is_empty() && spliced.stealing.is_empty();
    let why = has_none.then(|| nothing.to_owned());
    let stealing = spliced.stealing.into_iter().map(steals).collect();
    let told = |not: NotStealing| {
        (not.readable, not.reasons.iter().map(ToString::to_string).collect::<Vec<String>>())
    };
    let not_stealing = spliced.not_stealing.into_iter().map(told).collect();
    Made {
        text: why.is_none().then_some(spliced.text),
        why,
        ways: ways(bytes, arch),
        notes: spliced.notes,
        older,
        stealing,
        not_stealing,
        ..put(plan, spliced.kernels, &spliced.sites)
    }
}

/// The kernels into which programs were put, and where.
fn put(plan: &Plan, kernels: Vec<KernelReport>, all: &[SiteReport]) -> Made {
    let entry = |attach: &Attach| matches!(attach, Attach::Entry(_));
    Made {
        kernels: kernels.into_iter().map(|k| (k.name, k.readable, k.sites)).collect(),
        begins: sites(plan, all, &[LAUNCHES], entry),
        sites: sites(plan, all, &[LAUNCHES, ENDED], |_| true),
        ..Made::default()
    }
}

fn steals(of: splice::Stealing) -> Steals {
    let splice::Stealing { kernel, readable, parameters, at, rows, order, by_hardware } = of;
    Steals { kernel, readable, parameters, at, rows, order, by_hardware }
}

/// What a program is told of the kernels that can steal.
fn stealing(table: &Table, made: &Made) -> Option<images::Stealing> {
    const {
        assert!(images::Stealing::PARAMETER_BYTES == splice::PARAMETER_BYTES as usize);
    }
    let switch = table.switches.iter().position(|(name, _)| name == splice::STEAL)?;
    let ordered = made.stealing.iter().any(|steals| steals.order.is_some());
    let kernels = made.stealing.iter().take(images::MANY as usize);
    let kernels: Vec<Thief> = kernels
        .map(|steals| Thief {
            name: name_hash(steals.kernel.as_bytes()),
            parameters: steals.parameters,
            at: steals.at,
            rows: steals.rows,
            by_hardware: steals.by_hardware,
        })
        .collect();
    let record_bytes = splice::Record::bytes(ordered);
    (!kernels.is_empty()).then_some(images::Stealing {
        switch: switch as u32,
        record_bytes,
        kernels,
    })
}

/// The sites of programs that use one of these maps, with the kernels in which they lie.
fn sites(
    plan: &Plan,
    sites: &[SiteReport],
    maps: &[&str],
    of: impl Fn(&Attach) -> bool,
) -> Vec<(u64, String)> {
    let uses = |probe: &&Probe| {
        let mut all = probe.verdict.iter().flat_map(|(program, _)| &program.maps);
        of(&probe.attach) && all.any(|map| maps.contains(&map.name.as_str()))
    };
    let programs: Vec<&str> = plan.probes().iter().filter(uses).map(|p| p.name.as_str()).collect();
    let sites = (0..).zip(sites);
    let sites = sites.filter(|(_, site)| programs.contains(&site.probe.as_str()));
    sites.map(|(number, site)| (number, site.function.clone())).collect()
}

/// What a program is told of the names of kernels.
fn names(made: &Made) -> Vec<Name> {
    let cut = |name: &str| name[..name.floor_char_boundary(Name::MOST)].to_owned();
    let name = |(site, mangled): &(u64, String)| {
        let readable = cut(Names::new(mangled).readable());
        Name { site: *site, readable, mangled: cut(mangled) }
    };
    made.sites.iter().take(images::MANY as usize).map(name).collect()
}

/// The kernels of an image, by the way in which a probe reaches them.
fn ways(bytes: &[u8], arch: u32) -> Vec<(String, usize)> {
    let mut coverage = Coverage::new(arch);
    if bytes.starts_with(&ELF_MAGIC) {
        if let Ok(cubin) = Cubin::read(bytes) {
            let arch = cubin.arch;
            coverage.cubin(cubin, arch);
        }
    } else if is_binary(bytes) {
        for image in Images::new(bytes).flatten() {
            // What cannot be read has no kernels that could be counted.
            let _ = coverage.image(&image);
        }
    } else if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = coverage.text(text);
    }
    let found = coverage.unit();
    let count = |way: Way| found.iter().filter(|kernel| kernel.way == way).count();
    let all = Way::ALL.into_iter().map(|way| (way.word().to_owned(), count(way)));
    all.filter(|(_, count)| *count > 0).collect()
}
