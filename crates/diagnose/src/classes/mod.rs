//! The classes of causes, one line each.
//!
//! A class is a file in this folder. It describes itself in its `CLASS`: which parts of a step or
//! which spans point to it, what else supports or contradicts it, how a user verifies it and what
//! fools it. Nothing outside of its file, this list and the schema's list of classes knows it by name.

mod block_io;
mod collective_straggler;
mod cpu_contention;
mod cpu_steal;
mod cpu_throttling;
mod engine_software;
mod gc_pause;
mod gil_contention;
mod gpu_contention;
mod gpu_fault;
mod gpu_throttling;
mod input_load;
mod input_starvation;
mod interrupts;
mod kernel_imbalance;
mod launch_latency;
mod lock_contention;
mod memory_pressure;
mod network;
mod own_sleep;
mod pcie;
mod recompilation;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod span_scene;
mod spec;
mod unexplained;

use gpuwhy_schema::{Class, PartKind, Track};

pub use spec::{ClassSpec, Counts, Incident, NamedSpans, Share, Takes, Verify};

/// Every class, in the order of [`Class::ALL`].
pub const ALL: &[&ClassSpec] = &[
    &cpu_contention::CLASS,
    &cpu_steal::CLASS,
    &cpu_throttling::CLASS,
    &memory_pressure::CLASS,
    &block_io::CLASS,
    &network::CLASS,
    &interrupts::CLASS,
    &lock_contention::CLASS,
    &gil_contention::CLASS,
    &gpu_throttling::CLASS,
    &gpu_contention::CLASS,
    &pcie::CLASS,
    &gpu_fault::CLASS,
    &collective_straggler::CLASS,
    &gc_pause::CLASS,
    &recompilation::CLASS,
    &kernel_imbalance::CLASS,
    &launch_latency::CLASS,
    &input_starvation::CLASS,
    &own_sleep::CLASS,
    &engine_software::CLASS,
    &input_load::CLASS,
    &unexplained::CLASS,
];

/// The description of a class.
pub fn of(class: Class) -> &'static ClassSpec {
    // A test keeps the list complete.
    ALL.iter().find(|spec| spec.class == class).unwrap_or(&&unexplained::CLASS)
}

/// The class that all excess in parts of this kind points to; none where several classes share it.
pub fn of_part(kind: PartKind) -> Option<Class> {
    let takes_all = |spec: &&&ClassSpec| spec.share_of(kind) == Some(Share::All);
    ALL.iter().find(takes_all).map(|spec| spec.class)
}

/// The class that a span points to by its name, when it lies in a step of its process.
pub fn of_span(name: &str) -> Option<&'static ClassSpec> {
    let named = |spec: &&&ClassSpec| spec.spans.is_some_and(|spans| spans.contain(name));
    ALL.iter().find(named).copied()
}

/// Whether a track holds readings of a GPU's driver that some class looks at.
pub fn reads(track: &Track) -> bool {
    ALL.iter().any(|spec| spec.readings.contains(&&*track.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_of_the_schema_has_one_description() {
        let listed: Vec<Class> = ALL.iter().map(|spec| spec.class).collect();
        assert_eq!(listed, Class::ALL);
    }

    #[test]
    fn each_kind_of_part_points_to_one_class_or_is_shared() {
        for kind in PartKind::ALL {
            let shares: Vec<Share> = ALL.iter().filter_map(|spec| spec.share_of(*kind)).collect();
            let whole = shares.iter().filter(|share| **share == Share::All).count();
            let of_misses = shares.contains(&Share::MoreMisses)
                && shares.contains(&Share::SlowerMisses)
                && shares.len() == 2;
            assert!((whole == 1 && shares.len() == 1) || of_misses, "{kind}: {shares:?}");
        }
    }

    #[test]
    fn the_time_inside_named_spans_is_taken_from_kinds_that_have_one_class() {
        for spans in ALL.iter().filter_map(|spec| spec.spans) {
            assert!(!spans.names.is_empty() && !spans.instead_of.is_empty());
            assert!(spans.instead_of.iter().all(|kind| of_part(*kind).is_some()));
        }
    }

    #[test]
    fn each_class_says_how_it_looks_what_shows_it_how_to_verify_it_and_what_fools_it() {
        for spec in ALL {
            let texts = [spec.looks_like, spec.evidence, spec.verify.otherwise, spec.fooled_by];
            assert!(texts.iter().all(|text| !text.is_empty()), "{}", spec.class);
        }
    }
}
