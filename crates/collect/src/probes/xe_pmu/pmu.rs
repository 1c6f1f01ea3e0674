//! What the driver xe says of its counters: files below `/sys` (`xe_pmu.c` of Linux 6.15 and later).

use std::fs;
use std::path::Path;

/// Classes of engines by their numbers (`DRM_XE_ENGINE_CLASS_…` of `xe_drm.h`), as `/proc/PID/fdinfo` names them.
pub(super) const CLASSES: [&str; 5] = ["rcs", "bcs", "vcs", "vecs", "ccs"];
/// Graphics tiles, and engines of a class, that are tried.
const TILES: u64 = 2;
const INSTANCES: u64 = 9;
/// Virtual functions that are tried: no GPU has more.
const FUNCTIONS: u32 = 63;

/// A counter of one engine for one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// The number of the kind of its device's counters.
    pub kind: u32,
    /// What it counts.
    pub config: u64,
    /// Where it is read.
    pub cpu: u32,
    pub function: u32,
    /// An index into [`CLASSES`].
    pub class: usize,
}

/// The counters of a device that has virtual functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pmu {
    /// `0000:03:00.0`.
    pub device: String,
    kind: u32,
    cpu: u32,
    /// `engine-active-ticks` and `engine-total-ticks`.
    events: [u64; 2],
    /// The bits of `gt`, `engine_class`, `engine_instance` and `function`.
    fields: [(u32, u32); 4],
    /// How many virtual functions it has.
    functions: u32,
}

/// The devices below a folder like `/sys` that have virtual functions, in the order of their names.
pub(super) fn all(root: &Path) -> Vec<Pmu> {
    let folder = root.join("bus/event_source/devices");
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names.iter().filter_map(|name| Pmu::of(root, name)).collect()
}

impl Pmu {
    fn of(root: &Path, name: &str) -> Option<Pmu> {
        // `:` is no character of such a name.
        let device = name.strip_prefix("xe_")?.replacen('_', ":", 2);
        let folder = root.join("bus/event_source/devices").join(name);
        let text = |path: &Path| fs::read_to_string(path).ok();
        let said = |what: &str| text(&folder.join(what)).map(|text| text.trim().to_owned());
        let event = |name: &str| {
            let text = said(&format!("events/{name}"))?;
            u64::from_str_radix(text.strip_prefix("event=0x")?, 16).ok()
        };
        let field = |name: &str| {
            let text = said(&format!("format/{name}"))?;
            let (first, last) = text.strip_prefix("config:")?.split_once('-')?;
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last && last < 64).then_some((first, last))
        };
        let functions = text(&root.join("bus/pci/devices").join(&device).join("sriov_numvfs"))?;
        let functions: u32 = functions.trim().parse().ok().filter(|many| *many > 0)?;
        // CPUs that count for all: a list, of which the first will do.
        let cpu = said("cpumask").and_then(|list| list.split([',', '-']).next()?.parse().ok());
        Some(Pmu {
            kind: said("type")?.parse().ok()?,
            cpu: cpu.unwrap_or(0),
            events: [event("engine-active-ticks")?, event("engine-total-ticks")?],
            fields: [
                field("gt")?,
                field("engine_class")?,
                field("engine_instance")?,
                field("function")?,
            ],
            functions: functions.min(FUNCTIONS),
            device,
        })
    }

    /// Both counters of each engine that there may be, function by function.
    pub fn events(&self) -> impl Iterator<Item = [Event; 2]> + '_ {
        let functions = 0..=self.functions;
        functions.flat_map(move |function| {
            (0..TILES).flat_map(move |tile| {
                (0..CLASSES.len()).flat_map(move |class| {
                    let of = move |instance| [tile, class as u64, instance, u64::from(function)];
                    let both = move |instance| self.both(of(instance), function, class);
                    (0..INSTANCES).filter_map(both)
                })
            })
        })
    }

    fn both(&self, values: [u64; 4], function: u32, class: usize) -> Option<[Event; 2]> {
        let mut where_ = 0;
        for ((first, last), value) in self.fields.iter().zip(values) {
            let room = u64::MAX >> (63 - (last - first));
            where_ |= Some(value).filter(|value| *value <= room)? << first;
        }
        let event = |number: u64| {
            let (kind, cpu) = (self.kind, self.cpu);
            Event { kind, config: number | where_, cpu, function, class }
        };
        Some(self.events.map(event))
    }
}
