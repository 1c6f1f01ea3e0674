//! Loaded BPF objects, their programs and their maps.

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, OpenObject};

use super::layout::Plain;
use super::mapped::{MappedArray, REBUILD};
use crate::error::CollectError;

/// The compiled object of the probe with this stem.
macro_rules! bpf_object {
    ($stem:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $stem, ".bpf.o"))
    };
}
pub(crate) use bpf_object;

/// A loaded BPF object with its attached programs. Dropping it detaches them.
#[derive(Debug)]
pub(crate) struct LoadedObject {
    /// The object.
    pub object: Object,
    /// What keeps its programs attached.
    pub links: Vec<Link>,
    pub(super) probe: &'static str,
}

impl LoadedObject {
    /// Attaches every tracepoint program that was loaded, as its section says.
    ///
    /// # Errors
    /// The first one that cannot be attached, with its tracepoint.
    pub fn attach(&mut self) -> Result<(), CollectError> {
        for program in self.object.progs_mut() {
            // Uprobes are attached by the probe that knows the functions.
            if !program.autoload() || !program.section().to_string_lossy().starts_with("tp") {
                continue;
            }
            let link = program.attach().map_err(|source| CollectError::Attach {
                probe: self.probe,
                target: program.section().to_string_lossy().into_owned(),
                source,
            })?;
            self.links.push(link);
        }
        Ok(())
    }

    /// Detaches every tracepoint program, or attaches them again.
    ///
    /// # Errors
    /// As [`LoadedObject::attach`].
    pub fn pause(&mut self, paused: bool) -> Result<(), CollectError> {
        match (paused, self.links.is_empty()) {
            (true, _) => self.links.clear(),
            (false, true) => self.attach()?,
            (false, false) => {}
        }
        Ok(())
    }

    /// A handle on one of its maps.
    ///
    /// # Errors
    /// No such map, or no descriptor left.
    pub fn map(&self, name: &'static str) -> Result<MapHandle, CollectError> {
        let map = self.object.maps().find(|map| map.name() == name).ok_or_else(|| {
            CollectError::Unsupported {
                missing: format!("there is no BPF map `{name}`"),
                fix: REBUILD.into(),
            }
        })?;
        MapHandle::try_from(&map).map_err(|source| CollectError::Map { map: name, source })
    }

    /// One of its arrays that can be mapped, in our memory.
    ///
    /// # Errors
    /// As [`LoadedObject::map`], or values of another size.
    pub fn mapped<T: Plain>(&self, name: &'static str) -> Result<MappedArray<T>, CollectError> {
        MappedArray::new(name, &self.map(name)?)
    }
}

/// Sets the size of a map of an object that is not loaded yet.
///
/// # Errors
/// libbpf's.
pub(crate) fn set_map_entries(
    object: &mut OpenObject,
    name: &str,
    entries: u32,
) -> Result<(), libbpf_rs::Error> {
    object
        .maps_mut()
        .filter(|map| map.name() == name)
        .try_for_each(|mut map| map.set_max_entries(entries))
}

/// Sets the constants of an object that is not loaded yet: its only `const volatile` struct.
///
/// # Errors
/// A struct of another size.
pub(crate) fn set_constants(object: &mut OpenObject, bytes: &[u8]) -> Result<(), libbpf_rs::Error> {
    let is_constants = |name: &str| name.ends_with(".rodata");
    object
        .maps_mut()
        .filter(|map| is_constants(&map.name().to_string_lossy()))
        .try_for_each(|mut map| map.set_initial_value(bytes))
}

/// Leaves a program of an object out that is not loaded yet.
pub(crate) fn leave_out(object: &mut OpenObject, program: &str) {
    object.progs_mut().filter(|p| p.name() == program).for_each(|mut p| p.set_autoload(false));
}

/// Writes `value` under `key`.
///
/// # Errors
/// The kernel's.
pub(crate) fn put(
    map: &MapHandle,
    name: &'static str,
    key: &[u8],
    value: &[u8],
) -> Result<(), CollectError> {
    map.update(key, value, MapFlags::ANY).map_err(|source| CollectError::Map { map: name, source })
}
