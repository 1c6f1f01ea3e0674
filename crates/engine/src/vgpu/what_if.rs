//! Replays of the observed requests under another policy of GVT-g's scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use gpuwhy_derive::vgpu::replay::{Policy, Replay, Times};
use gpuwhy_derive::vgpu::{Model, Request, Tenant, TenantKey};
use serde::Serialize;

/// Another policy: what is to be replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    /// What the scheduler may do.
    pub policy: Policy,
    /// The weights of tenants, by name or by the number of their virtual GPU; others keep theirs.
    pub weights: Vec<(String, u32)>,
}

/// A change of policy, as users write it: `kernel` (none), `work-conserving`, `no-debts` or `weights=A:2,B:1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// None.
    Kernel,
    /// A virtual GPU whose slice is used up may have what nobody else wants.
    WorkConserving,
    /// Nothing is owed or saved.
    NoDebts,
    /// Other weights.
    Weights(Weights),
}

impl FromStr for Change {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Change, String> {
        Ok(match (word, word.strip_prefix("weights=")) {
            ("kernel", _) => Change::Kernel,
            ("work-conserving", _) => Change::WorkConserving,
            ("no-debts", _) => Change::NoDebts,
            (_, Some(text)) => Change::Weights(text.parse()?),
            _ => {
                let known = "kernel, work-conserving, no-debts or weights=A:2,B:1";
                return Err(format!("`{word}` is no policy: {known}"));
            }
        })
    }
}

/// Weights of tenants, by name or by the number of their virtual GPU; written as `A:2,B:1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights(pub Vec<(String, u32)>);

impl FromStr for Weights {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Weights, String> {
        let of = |part: &str| {
            let (who, weight) = part.rsplit_once(':')?;
            let weight: u32 = weight.trim().parse().ok().filter(|n| (1..=1_000_000).contains(n))?;
            let who = who.trim();
            (!who.is_empty()).then(|| (who.to_owned(), weight))
        };
        let say = |part: &str| format!("`{part}` is not TENANT:WEIGHT with a weight from 1 on");
        let pairs = text.split(',').map(|part| of(part).ok_or_else(|| say(part)));
        pairs.collect::<std::result::Result<_, _>>().map(Weights)
    }
}

impl WhatIf {
    /// All of these changes together; `None` of none.
    pub fn of(changes: &[Change]) -> Option<WhatIf> {
        let mut out = WhatIf { policy: Policy::KERNEL, weights: Vec::new() };
        for change in changes {
            match change {
                Change::Kernel => {}
                Change::WorkConserving => out.policy.work_conserving = true,
                Change::NoDebts => out.policy.debts = false,
                Change::Weights(weights) => out.weights.extend(weights.0.iter().cloned()),
            }
        }
        (!changes.is_empty()).then_some(out)
    }

    fn words(&self) -> String {
        let mut out = Vec::new();
        if self.policy.work_conserving {
            out.push("work-conserving".to_owned());
        }
        if !self.policy.debts {
            out.push("no-debts".to_owned());
        }
        if !self.weights.is_empty() {
            let pairs: Vec<String> =
                self.weights.iter().map(|(who, weight)| format!("{who}:{weight}")).collect();
            out.push(format!("weights={}", pairs.join(",")));
        }
        if out.is_empty() { "kernel".to_owned() } else { out.join(" ") }
    }
}

/// How a tenant fared, or would have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Fared {
    /// From its first request to its last end, s.
    pub active_s: f64,
    /// Of a request from the queue of its virtual GPU to an engine: the mean, ms.
    pub wait_ms: f64,
    /// From there to its end: what 99 % do not exceed, ms.
    pub latency_p99_ms: f64,
}

impl Fared {
    fn of(times: impl Iterator<Item = Times>) -> Fared {
        let all: Vec<Times> = times.collect();
        let from = all.iter().map(|one| one.queued).min().unwrap_or(0);
        let to = all.iter().map(|one| one.to).max().unwrap_or(0);
        let waited: i64 = all.iter().map(|one| one.from - one.queued).sum();
        let mut latencies: Vec<i64> = all.iter().map(|one| one.to - one.queued).collect();
        latencies.sort_unstable();
        let last = latencies.len().saturating_sub(1) as f64;
        let p99 = latencies.get((last * 0.99).ceil() as usize).copied().unwrap_or(0);
        Fared {
            active_s: (to - from) as f64 / 1e9,
            wait_ms: waited as f64 / all.len().max(1) as f64 / 1e6,
            latency_p99_ms: p99 as f64 / 1e6,
        }
    }
}

/// A tenant under the other policy.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIfTenant {
    /// Its name.
    pub name: String,
    /// The weight that it is taken to have had.
    pub weight: f64,
    /// As observed.
    pub observed: Fared,
    /// A replay of the kernel's policy: how good the model is.
    pub replayed: Fared,
    /// A replay of the other policy.
    pub foretold: Fared,
}

/// A device under another policy.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIfReport {
    /// The device.
    pub device: i64,
    /// The policy.
    pub policy: String,
    /// What virtual GPUs that send nothing are taken to have reserved, % of the device.
    pub unused_percent: f64,
    /// The most that the active time of a tenant differs between the replay of the kernel's policy and the trace, %.
    pub model_error_percent: f64,
    /// Requests that could not be replayed.
    pub left_out: usize,
    /// By tenant; empty if the requests would not have ended in a reasonable time.
    pub tenants: Vec<WhatIfTenant>,
}

/// Whether a tenant is meant: by its name, or by the number of its virtual GPU.
pub(super) fn is_meant(who: &str, tenant: &Tenant) -> bool {
    match tenant.key {
        TenantKey::Vgpu(number) => who == tenant.name || who.parse() == Ok(number),
        _ => who == tenant.name,
    }
}

/// Whose weight is meant.
fn given(model: &Model, device: i64, named: &[(String, u32)], into: &mut BTreeMap<usize, f64>) {
    for (at, tenant) in model.tenants.iter().enumerate().filter(|(_, one)| one.device == device) {
        if let Some((_, weight)) = named.iter().rfind(|(who, _)| is_meant(who, tenant)) {
            into.insert(at, f64::from(*weight));
        }
    }
}

/// The requests of all virtual GPUs under other policies; `known` are the weights that tenants had.
pub(super) fn report(
    model: &Model,
    requests: &[Request],
    asked: &[WhatIf],
    known: &[(String, u32)],
) -> Vec<WhatIfReport> {
    let devices: BTreeSet<i64> = model.tenants.iter().map(|one| one.device).collect();
    let mut out = Vec::new();
    for device in devices.into_iter().filter(|_| !asked.is_empty()) {
        let replay = Replay::new(requests, device);
        if replay.tenants().is_empty() {
            continue;
        }
        let mut had = BTreeMap::new();
        given(model, device, known, &mut had);
        let unused = replay.unused_weight(&had);
        let kernel = Replayed { model, replay: &replay, had, unused };
        let replayed = replay.run(Policy::KERNEL, &kernel.had, unused);
        out.extend(asked.iter().map(|one| kernel.under(device, one, replayed.as_deref())));
    }
    out
}

/// The requests of a device with what the kernel's policy made of them.
struct Replayed<'a> {
    model: &'a Model,
    replay: &'a Replay,
    /// The weights that tenants are known to have had.
    had: BTreeMap<usize, f64>,
    /// What is reserved for virtual GPUs that send nothing.
    unused: f64,
}

impl Replayed<'_> {
    fn weight(&self, tenant: usize) -> f64 {
        self.had.get(&tenant).copied().unwrap_or(1.0)
    }

    /// The same under another policy; `kernel` is the replay of the kernel's own.
    fn under(&self, device: i64, asked: &WhatIf, kernel: Option<&[Times]>) -> WhatIfReport {
        let replay = self.replay;
        let mut weights = self.had.clone();
        given(self.model, device, &asked.weights, &mut weights);
        let foretold = replay.run(asked.policy, &weights, self.unused);
        let observed: Vec<Times> = replay.observed.iter().map(|(_, times)| *times).collect();
        let one = |tenant: usize, kernel: &[Times], foretold: &[Times]| {
            let own = |all: &[Times]| {
                let own = replay.observed.iter().zip(all).filter(|((who, _), _)| *who == tenant);
                Fared::of(own.map(|(_, times)| *times))
            };
            WhatIfTenant {
                name: self.model.tenants[tenant].name.clone(),
                weight: self.weight(tenant),
                observed: own(&observed),
                replayed: own(kernel),
                foretold: own(foretold),
            }
        };
        let tenants: Vec<WhatIfTenant> = match (kernel, &foretold) {
            (Some(kernel), Some(foretold)) => {
                replay.tenants().iter().map(|at| one(*at, kernel, foretold)).collect()
            }
            _ => Vec::new(),
        };
        let used: f64 = replay.tenants().iter().map(|at| self.weight(*at)).sum();
        let error = |one: &WhatIfTenant| {
            (one.replayed.active_s / one.observed.active_s.max(1e-9) - 1.0).abs() * 100.0
        };
        WhatIfReport {
            device,
            policy: asked.words(),
            unused_percent: 100.0 * self.unused / (self.unused + used),
            model_error_percent: tenants.iter().map(error).fold(0.0, f64::max),
            left_out: replay.left_out,
            tenants,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> std::result::Result<WhatIf, String> {
        let changes = words.iter().map(|word| word.parse());
        Ok(WhatIf::of(&changes.collect::<std::result::Result<Vec<_>, _>>()?).unwrap())
    }

    #[test]
    fn policies_are_read_and_what_is_none_is_named() {
        let one = parsed(&["work-conserving", "no-debts", "weights=vGPU 1:2,b:1"]).unwrap();
        assert_eq!(one.policy, Policy { work_conserving: true, debts: false });
        assert_eq!(one.weights, [("vGPU 1".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(one.words(), "work-conserving no-debts weights=vGPU 1:2,b:1");
        assert_eq!(parsed(&["kernel"]).unwrap().words(), "kernel");
        assert!(parsed(&["fair"]).unwrap_err().contains("`fair`"));
        for bad in ["a", "a:", "a:0", ":3", "a:1,b", "a:-1", "a:1e9"] {
            assert!(bad.parse::<Weights>().is_err(), "{bad}");
        }
    }
}
