//! Policies: eBPF programs that decide, on the host, what a program's driver is asked for.
//!
//! A policy is verified and compiled like any device program, and runs as a kernel of one thread in the simulator
//! ([`crate::sim`]): each access is checked, it ends within its certificate, and nothing native is made. What it asks
//! for ([`Action`]) is a list that whoever runs it may carry out or not. Its maps are its own; one that has the name
//! of a map of a device program holds what that one held when it was copied last ([`Machine::show`]).

use std::collections::{BTreeMap, BTreeSet};

use crate::actions::{self, Action};
use crate::attach::Event;
use crate::compile;
use crate::insn::{Insn, Wide};
use crate::options::{Addresses, Options, TABLE_HEADER};
use crate::program::{Map, MapKind, Program};
use crate::ptx::Module;
use crate::sim::{Config, Contents, Device, Image, Launch, Limits};
use crate::splice::Plan;
use crate::verify::Certificate;

/// Instructions of the simulator that one run may take; the verifier has bounded it before.
const MOST_INSTRUCTIONS: u64 = 20_000_000;
/// Memory of the maps of a policy.
const MOST_MEMORY: u64 = 256 << 20;
/// The kernel that a program is compiled to.
const KERNEL: &str = "policy";

/// The policies of a plan, verified.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    programs: Vec<Decides>,
}

/// One program.
#[derive(Debug, Clone)]
pub struct Decides {
    /// The function's name.
    pub name: String,
    /// What it answers to.
    pub event: Event,
    /// What it costs at most, and what it may ask for.
    pub certificate: Certificate,
    program: Program,
    /// What tells the maps of its object from those of others.
    object: usize,
}

/// Policies in a simulated device, with their maps.
#[derive(Debug)]
pub struct Machine {
    device: Device,
    programs: Vec<(Event, String, Image)>,
    maps: Vec<Held>,
    /// Device memory of the context, of what is asked for, and of the result.
    context: u64,
    list: u64,
    result: u64,
}

#[derive(Debug)]
struct Held {
    map: Map,
    at: u64,
    bytes: usize,
}

/// What the programs of an event asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// In order.
    pub actions: Vec<Action>,
    /// What found no room in a list.
    pub lost: u64,
}

impl Policy {
    /// The policies among the programs of a plan; those that are refused are left out.
    pub fn of(plan: &Plan) -> Self {
        let program = |probe: &crate::splice::Probe| {
            let event = probe.attach.policy()?;
            let (program, certificate) = probe.verdict.as_ref().ok()?.clone();
            let (name, object) = (probe.name.clone(), probe.first_map);
            Some(Decides { name, event, certificate, program, object })
        };
        Self { programs: plan.probes().iter().filter_map(program).collect() }
    }

    /// The programs.
    pub fn programs(&self) -> &[Decides] {
        &self.programs
    }

    /// Their maps, those of one object once.
    fn maps(&self) -> BTreeMap<usize, &[Map]> {
        let mut all: BTreeMap<usize, &[Map]> = BTreeMap::new();
        for of in &self.programs {
            // An object without maps has the number of the one behind it.
            let maps = all.entry(of.object).or_default();
            if of.program.maps.len() > maps.len() {
                *maps = &of.program.maps;
            }
        }
        all
    }

    /// Whether maps of a kind may be shown to policies: those with a value for each number, of which one value is the
    /// sum.
    fn is_shown(kind: MapKind) -> bool {
        !matches!(kind, MapKind::Hash | MapKind::Ring | MapKind::Other(_))
    }

    /// The names of maps that device programs of the plan have as well, which are shown to the policies.
    ///
    /// # Errors
    /// One is no array of 64-bit numbers, or is declared differently.
    pub fn shared(&self, plan: &Plan) -> Result<Vec<String>, String> {
        let device = plan.probes().iter().filter(|probe| probe.attach.kernel().is_some());
        let device = device.filter_map(|probe| probe.verdict.as_ref().ok());
        // An object's maps are declared for all of its programs: what no device program uses is the policy's own.
        let device: Vec<&Map> = device.flat_map(|(program, _)| used(program)).collect();
        let mut names = Vec::new();
        for own in self.maps().into_values().flatten() {
            let others = || device.iter().filter(|other| other.name == own.name);
            if others().next().is_none() || names.contains(&own.name) {
                continue;
            }
            // A hash map or ring of both, in one object, is each one's own.
            if !Self::is_shown(own.kind) {
                continue;
            }
            let shape = |map: &Map| (map.value_size, map.max_entries);
            if !own.value_size.is_multiple_of(8)
                || others().any(|other| shape(other) != shape(own) || !Self::is_shown(other.kind))
            {
                return Err(format!(
                    "map `{}` is read by a policy and written by a device program: it has to be an array in both, with as \
                     many values, of 64-bit numbers",
                    own.name
                ));
            }
            names.push(own.name.clone());
        }
        Ok(names)
    }
}

/// The maps that a program's instructions name.
fn used(program: &Program) -> impl Iterator<Item = &Map> {
    let named = program.insns.iter().filter_map(|insn| match insn {
        Insn::LoadWide { value: Wide::Map(map), .. } => Some(*map as usize),
        _ => None,
    });
    let named: BTreeSet<usize> = named.collect();
    named.into_iter().filter_map(|map| program.maps.get(map))
}

impl Machine {
    /// With all maps zero.
    ///
    /// # Errors
    /// A program cannot be compiled for a host, or its maps are too large.
    pub fn new(policy: &Policy) -> Result<Self, String> {
        let limits = Limits {
            instructions: MOST_INSTRUCTIONS,
            memory: MOST_MEMORY,
            ..Config::default().limits
        };
        let mut device = Device::new(Config { sms: 1, limits, ..Config::default() });
        let words = Event::ALL.into_iter().map(Event::context_words).max().unwrap_or(1);
        let mut room = |bytes: u64| device.upload(&vec![0; bytes as usize]);
        let [context, list, result] =
            [8 * words as u64, actions::LIST_BYTES, 8].map(|bytes| room(bytes).unwrap_or_default());
        let mut machine =
            Self { device, programs: Vec::new(), maps: Vec::new(), context, list, result };
        let mut tables = BTreeMap::new();
        for (object, maps) in policy.maps() {
            tables.insert(object, machine.bind(maps)?);
        }
        for of in &policy.programs {
            let addresses = Addresses::Fixed(tables[&of.object].clone());
            let image = machine.load(&of.program, addresses);
            let image = image.map_err(|why| format!("policy `{}`: {why}", of.name))?;
            machine.programs.push((of.event, of.name.clone(), image));
        }
        Ok(machine)
    }

    /// Gives the maps of an object memory; the table of their addresses.
    fn bind(&mut self, maps: &[Map]) -> Result<Vec<u64>, String> {
        let mut words = vec![0; TABLE_HEADER + 3 * maps.len()];
        words[actions::TABLE_WORD] = self.list;
        for (map, at) in maps.iter().zip((TABLE_HEADER..).step_by(3)) {
            let shards = map.kind.shards(1, 1);
            let bytes = map.bytes(shards).filter(|bytes| *bytes <= self.device.room());
            let bytes = bytes.ok_or_else(|| format!("map `{}` is too large", map.name))?;
            let mut zeros = |bytes: u64| {
                let at = self.device.upload(&vec![0; bytes as usize]);
                at.ok_or_else(|| format!("map `{}` finds no room", map.name))
            };
            let (values, lost) = (zeros(bytes)?, zeros(8)?);
            words[at..at + 3].copy_from_slice(&[values, shards, lost]);
            self.maps.push(Held { map: map.clone(), at: values, bytes: bytes as usize });
        }
        Ok(words)
    }

    fn load(&mut self, program: &Program, addresses: Addresses) -> Result<Image, String> {
        let options = Options { addresses, ..Options::default() };
        let text = compile::kernel(program, &options, KERNEL).map_err(|fault| fault.to_string())?;
        let module = Module::read(&text).map_err(|fault| fault.to_string())?;
        self.device.load(&module).map_err(|fault| fault.to_string())
    }

    /// Runs the programs of an event, to which these words tell of it, at a time (what helper 502 gives, ns).
    ///
    /// # Errors
    /// A program did in the simulator what it may not: a defect of the verifier or of the compiler.
    pub fn run(&mut self, event: Event, words: &[u64], now: u64) -> Result<Asked, String> {
        let mut asked = Asked::default();
        let mut context = words.to_vec();
        context.resize(event.context_words(), 0);
        let context: Vec<u8> = context.iter().flat_map(|word| word.to_le_bytes()).collect();
        let Self { device, programs, list, result, context: at, .. } = self;
        for (_, name, image) in programs.iter().filter(|(of, ..)| *of == event) {
            let told = |why: &dyn std::fmt::Display| format!("policy `{name}`: {why}");
            device.write(*at, &context).map_err(|why| told(&why))?;
            device.write(*list, &[0; 8]).map_err(|why| told(&why))?;
            device.set_globaltimer(now);
            let parameters = [*at, 0, context.len() as u64, *result];
            let launch = Launch {
                kernel: KERNEL,
                grid: [1; 3],
                block: [1; 3],
                dynamic_shared: 0,
                parameters: &parameters.map(|word| word.to_le_bytes().to_vec()),
            };
            device.launch(image, &launch).map_err(|why| told(&why))?;
            let left =
                device.read(*list, actions::LIST_BYTES as usize).map_err(|why| told(&why))?;
            let (actions, lost) = actions::read(left);
            asked.actions.extend(actions);
            asked.lost += lost;
        }
        Ok(asked)
    }

    /// Shows what a map of device programs holds to the maps of this name: arrays, each value the sum over SMs, word
    /// by word. Of several copies (images, contexts, devices) likewise the sum.
    pub fn show(&mut self, name: &str, copies: &[&Contents]) {
        for held in &self.maps {
            let Map { name: own, kind, value_size, .. } = &held.map;
            if own != name || !Policy::is_shown(*kind) {
                continue;
            }
            let (stride, size) = (held.map.stride() as usize, *value_size as usize);
            let mut values = vec![0; held.bytes];
            for entry in copies.iter().flat_map(|contents| &contents.entries) {
                let key = entry.key.first_chunk().map_or(u32::MAX, |key| u32::from_le_bytes(*key));
                let place = (key as usize).checked_mul(stride);
                let value = place.and_then(|at| values.get_mut(at..at.checked_add(size)?));
                for (to, from) in value
                    .into_iter()
                    .flat_map(|v| v.chunks_exact_mut(8))
                    .zip(entry.bytes.chunks_exact(8))
                {
                    let [to_word, from] = [&*to, from].map(|b| crate::contents::word(b, 0));
                    to.copy_from_slice(&to_word.wrapping_add(from).to_le_bytes());
                }
            }
            // It is the map's own memory, of this size.
            let _ = self.device.write(held.at, &values);
        }
    }

    /// What the maps hold.
    pub fn maps(&self) -> Vec<Contents> {
        let read = |held: &Held| {
            let values = self.device.read(held.at, held.bytes).unwrap_or_default();
            Contents::of(&held.map, held.map.kind.shards(1, 1), values, 0)
        };
        self.maps.iter().map(read).collect()
    }
}
