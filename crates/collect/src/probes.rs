//! The probes, one line each.
//!
//! A probe is a file in `probes/`, with a `.bpf.c` of the same stem if it has a kernel side. It
//! describes itself in its `PROBE`; nothing outside of its files and this list knows it by name.

pub(crate) mod amd_functions;
pub(crate) mod block_io;
pub(crate) mod cgroup;
pub(crate) mod drm_clients;
pub(crate) mod engine_metrics;
pub(crate) mod file_locks;
pub(crate) mod gpu_switches;
pub(crate) mod hami;
pub(crate) mod inject;
pub(crate) mod interrupts;
pub(crate) mod kernel_events;
pub(crate) mod memory;
pub(crate) mod nccl_calls;
pub(crate) mod nccl_ras;
pub(crate) mod network;
pub(crate) mod nvml;
pub(crate) mod psi;
pub(crate) mod python;
pub(crate) mod python_gc;
pub(crate) mod run_queue;
pub(crate) mod self_cost;
pub(crate) mod settings;
pub(crate) mod stacks;
pub(crate) mod steal;
pub(crate) mod steps;
pub(crate) mod tcp;
pub(crate) mod wire;
pub(crate) mod xe_pmu;

use crate::config::Config;
use crate::probe::{ProbeSpec, Shedding};
use crate::shed::Shed;

/// Every probe, in the order of starting: a probe that reads what another one found out comes after
/// it.
pub(crate) const ALL: &[&ProbeSpec] = &[
    &interrupts::PROBE,
    &run_queue::PROBE,
    &steps::PROBE,
    &wire::PROBE,
    &inject::PROBE,
    &self_cost::PROBE,
    &block_io::PROBE,
    &network::PROBE,
    &tcp::PROBE,
    &memory::PROBE,
    &file_locks::PROBE,
    &stacks::PROBE,
    &psi::PROBE,
    &steal::PROBE,
    &cgroup::PROBE,
    &settings::PROBE,
    &nvml::PROBE,
    &drm_clients::PROBE,
    &gpu_switches::PROBE,
    &amd_functions::PROBE,
    &hami::PROBE,
    &xe_pmu::PROBE,
    &nccl_calls::PROBE,
    &nccl_ras::PROBE,
    &engine_metrics::PROBE,
    &python::PROBE,
    &python_gc::PROBE,
    &kernel_events::PROBE,
];

impl Config {
    /// The names of all probes, as in [`Config::off`], in the order of starting.
    pub fn probe_names() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|spec| spec.name)
    }

    /// The default, with no probes but these.
    pub fn only(names: &[&str]) -> Config {
        let off = Config::probe_names().filter(|name| !names.contains(name));
        let off = off.map(str::to_owned).collect();
        Config { off, ..Config::default() }
    }
}

impl Shed {
    /// What is missing while it is left out, in words.
    pub fn missing(self) -> &'static str {
        let all = ALL.iter().flat_map(|spec| spec.sheds);
        let ours = |shedding: &&Shedding| shedding.shed == self;
        all.into_iter().find(ours).map_or("", |shedding| shedding.missing)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use gpuwhy_schema::sources;

    use super::*;
    use crate::bpf;

    #[test]
    fn each_probe_has_its_own_name_and_its_own_kind_of_source() {
        let names: HashSet<&str> = ALL.iter().map(|spec| spec.name).collect();
        let kinds: HashSet<&str> = ALL.iter().map(|spec| spec.source.kind).collect();
        assert_eq!((names.len(), kinds.len()), (ALL.len(), ALL.len()));
        for spec in ALL {
            let declared = sources::ALL.iter().any(|source| source.kind == spec.source.kind);
            assert!(declared, "`{}` is not declared in the schema", spec.source.kind);
        }
        assert_eq!(sources::ALL.len(), ALL.len(), "a kind that no probe has");
    }

    #[test]
    fn a_bpf_file_belongs_to_the_probe_of_its_stem() {
        let with_bpf = ALL.iter().filter(|spec| spec.source.kind.starts_with("bpf:"));
        for spec in with_bpf {
            assert_eq!(spec.source.kind, format!("bpf:{}", spec.name));
            assert!(bpf::probe_number(spec.name).is_some(), "no {}.bpf.c", spec.name);
        }
    }

    #[test]
    fn some_probe_says_what_is_missing_for_each_thing_that_can_be_shed() {
        for shed in Shed::ORDER {
            assert!(!shed.missing().is_empty(), "{shed:?}");
        }
    }
}
