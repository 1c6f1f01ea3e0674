//! Guests' own traces beside that of their host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::str::FromStr;

use gpuwhy_derive::vgpu::guest::{self, Joined, Journey};
use gpuwhy_derive::vgpu::{Model, Request};
use serde::Serialize;

use super::{MS, follow, what_if::is_meant};
use crate::error::{Error, Result};
use crate::source::TraceSource;

/// The trace of a guest, and whose virtual GPU it has; written as `VGPU=TRACE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestTrace {
    /// The tenant of the host, by its name or by the number of its virtual GPU.
    pub vgpu: String,
    /// The guest's trace.
    pub path: PathBuf,
}

impl FromStr for GuestTrace {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<GuestTrace, String> {
        let parts =
            text.split_once('=').filter(|(who, path)| !who.trim().is_empty() && !path.is_empty());
        let (who, path) =
            parts.ok_or_else(|| format!("`{text}` is not VGPU=TRACE, as in 1=guest.trace"))?;
        Ok(GuestTrace { vgpu: who.trim().to_owned(), path: path.into() })
    }
}

/// Requests of a process in a guest: means of a request, ms, of those in both traces; together they are the whole way.
#[derive(Clone, Debug, Serialize)]
pub struct GuestProcessReport {
    /// Who.
    pub name: String,
    /// Its requests that are in both traces.
    pub requests: usize,
    /// Until what a request depends on in the guest was done; `None` where no event tells.
    pub dependencies_ms: Option<f64>,
    /// From there until the guest's driver handed it over.
    pub guest_queue_ms: f64,
    /// From there until the host had it in the queue of the virtual GPU.
    pub to_host_ms: f64,
    /// From there until its work was done; `None` where no end is known.
    pub host_ms: Option<f64>,
    /// From there until the guest's driver knew.
    pub to_guest_ms: Option<f64>,
}

/// A guest's trace beside the host's.
#[derive(Clone, Debug, Serialize)]
pub struct JoinedReport {
    /// The guest's trace.
    pub trace: String,
    /// Whose virtual GPU it has.
    pub tenant: String,
    /// Requests that are in both.
    pub requests: usize,
    /// Requests that are only in the host's trace, among those in both.
    pub only_host: usize,
    /// Requests that are only in the guest's.
    pub only_guest: usize,
    /// What is added to the guest's time to have the host's, at the first request in both, s.
    pub clock_s: f64,
    /// The guest's time at that request, s.
    pub clock_at_s: f64,
    /// How much the guest's clock gains on the host's, parts in a million.
    pub clock_gains_ppm: f64,
    /// How far a time of the guest may be off on the host's clock, µs; `None` where no ends of requests tell.
    pub uncertain_us: Option<f64>,
    /// By how much some requests contradict that clock, µs.
    pub contradicted_us: f64,
    /// By process in the guest.
    pub processes: Vec<GuestProcessReport>,
}

/// Joins guests' traces with the requests of their host, which then have their stages in the guest.
pub(super) fn join(
    model: &Model,
    requests: &mut Vec<Request>,
    guests: &[GuestTrace],
) -> Result<Vec<JoinedReport>> {
    let mut out: Vec<JoinedReport> = Vec::new();
    let mut seen = BTreeSet::new();
    for one in guests {
        let fails =
            |why: String| Error::Guest { path: one.path.clone(), vgpu: one.vgpu.clone(), why };
        let tenant = named(&one.vgpu, model).map_err(fails)?;
        if !seen.insert(tenant) {
            return Err(fails("another trace was given of this guest".to_owned()));
        }
        let source = TraceSource::open(&one.path)?;
        let (guest_model, guest, _) = follow(&source)?;
        let joined = guest::join((model, requests), tenant, (&guest_model, &guest))
            .map_err(|why| fails(why.to_string()))?;
        out.push(report(one, &model.tenants[tenant].name, &guest_model, &joined));
    }
    Ok(out)
}

/// The place of the one tenant that is meant.
fn named(who: &str, model: &Model) -> std::result::Result<usize, String> {
    let all = model.tenants.iter().enumerate();
    let meant: Vec<usize> = all.filter(|(_, one)| is_meant(who, one)).map(|(at, _)| at).collect();
    if let [one] = meant[..] {
        return Ok(one);
    }
    let names: Vec<&str> = model.tenants.iter().map(|one| &*one.name).collect();
    Err(match (names.is_empty(), meant.len()) {
        (true, _) => "the host's trace has no tenant".to_owned(),
        (_, 0) => format!("the host's trace has no such tenant; it has {}", names.join(", ")),
        (_, n) => format!("{n} tenants of the host's trace are called so"),
    })
}

fn report(of: &GuestTrace, tenant: &str, guest: &Model, joined: &Joined) -> JoinedReport {
    let clock = &joined.clock;
    let mut by_process: BTreeMap<&str, Vec<&Journey>> = BTreeMap::new();
    for one in &joined.journeys {
        by_process.entry(&guest.tenants[one.of].name).or_default().push(one);
    }
    let us = |ns: i64| ns as f64 / 1e3;
    JoinedReport {
        trace: of.path.display().to_string(),
        tenant: tenant.to_owned(),
        requests: joined.journeys.len(),
        only_host: joined.only_host,
        only_guest: joined.only_guest,
        clock_s: clock.host.saturating_sub(clock.guest) as f64 / 1e9,
        clock_at_s: clock.guest as f64 / 1e9,
        clock_gains_ppm: -clock.drift * 1e6,
        uncertain_us: clock.uncertain.map(us),
        contradicted_us: us(clock.contradicted),
        processes: by_process.into_iter().map(|(name, all)| process(name, &all)).collect(),
    }
}

/// The mean of what is known of these, ms.
fn mean(of: impl Iterator<Item = Option<i64>>) -> Option<f64> {
    let known: Vec<i64> = of.flatten().collect();
    let sum: f64 = known.iter().map(|ns| *ns as f64 / MS).sum();
    (!known.is_empty()).then(|| sum / known.len() as f64)
}

fn process(name: &str, all: &[&Journey]) -> GuestProcessReport {
    let of = |leg: fn(&Journey) -> Option<i64>| mean(all.iter().map(|one| leg(one)));
    GuestProcessReport {
        name: name.to_owned(),
        requests: all.len(),
        dependencies_ms: of(|one| Some(one.submitted? - one.queued?)),
        guest_queue_ms: of(|one| Some(one.handed - one.submitted.or(one.queued)?)).unwrap_or(0.0),
        to_host_ms: of(|one| Some(one.heard - one.handed)).unwrap_or(0.0),
        host_ms: of(|one| Some(one.done? - one.heard)),
        to_guest_ms: of(|one| Some(one.told? - one.done?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_named_with_its_trace() {
        let one: GuestTrace = "vGPU 1=/var/a=b.trace".parse().unwrap();
        assert_eq!((&*one.vgpu, one.path), ("vGPU 1", PathBuf::from("/var/a=b.trace")));
        for bad in ["", "a.trace", "=a.trace", "1="] {
            assert!(bad.parse::<GuestTrace>().unwrap_err().contains("VGPU=TRACE"), "{bad}");
        }
    }
}
