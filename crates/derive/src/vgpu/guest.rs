//! A guest's own trace beside that of its host: what became of requests before the host heard of them and after it was
//! done with them.
//!
//! # How
//! The guest's driver hands a request to what it takes for an engine; there the host catches it and queues it for the
//! virtual GPU. So the requests of an engine come in the same order in both traces, and the times between them are
//! nearly the same. `align` finds which belong to each other, and `clock` the time of the host at any time of the guest.
//!
//! # What fools it
//! A guest whose driver hands several requests over as one: the host's request is that of the last one's, so those before
//! it are not joined and are counted. Requests at equal distances all the time, which fit at any shift, are refused.

mod align;
mod clock;

use std::collections::BTreeMap;

pub use align::Unaligned;
pub use clock::Clock;

use super::model::Model;
use super::request::{Request, Stage, in_order};

/// A request on its way through guest and host, ns on the host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Journey {
    /// The place of its tenant in the guest's [`Model::tenants`].
    pub of: usize,
    /// It came into the queue of the guest's driver.
    pub queued: Option<i64>,
    /// What it depends on in the guest was done.
    pub submitted: Option<i64>,
    /// The guest's driver handed it over.
    pub handed: i64,
    /// The host queued it for the virtual GPU.
    pub heard: i64,
    /// Its work was done.
    pub done: Option<i64>,
    /// The guest's driver knew that.
    pub told: Option<i64>,
}

/// What a guest's trace and that of its host have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    /// How the guest's clock stands to the host's.
    pub clock: Clock,
    /// The requests that are in both.
    pub journeys: Vec<Journey>,
    /// Requests of the host's trace that are not in the guest's, though others before and after them are.
    pub only_host: usize,
    /// Requests of the guest's trace that are not in the host's, though others before and after them are.
    pub only_guest: usize,
}

/// A request as it is seen on both sides.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The place of the request.
    place: usize,
    /// When it crossed from the guest to the host.
    crossed: i64,
    /// When its end was known.
    ended: Option<i64>,
}

/// The requests to one engine, as the guest and the host see them.
#[derive(Debug, Default)]
struct Sides {
    host: Vec<Seen>,
    guest: Vec<Seen>,
}

fn times(side: &[Seen]) -> Vec<i64> {
    side.iter().map(|one| one.crossed).collect()
}

/// Joins the requests of a guest with those of the host's tenant whose virtual GPU it has, whose stages in the guest are
/// then known.
///
/// # Errors
/// Nothing says which requests of the two traces are the same.
pub fn join(
    (host_model, host): (&Model, &mut Vec<Request>),
    tenant: usize,
    (guest_model, guest): (&Model, &[Request]),
) -> Result<Joined, Unaligned> {
    let mut engines: BTreeMap<&str, Sides> = BTreeMap::new();
    for (place, one) in host.iter().enumerate().filter(|(_, one)| one.tenant == tenant) {
        let Some(crossed) = one.when(Stage::VgpuQueued) else { continue };
        let engine = engines.entry(&host_model.engines[one.engine].name).or_default();
        engine.host.push(Seen { place, crossed, ended: one.ended() });
    }
    for (place, one) in guest.iter().enumerate() {
        let Some(crossed) = handed(one) else { continue };
        let engine = engines.entry(&guest_model.engines[one.engine].name).or_default();
        engine.guest.push(Seen { place, crossed, ended: one.ended() });
    }
    let mut engines: Vec<Sides> = engines.into_values().collect();
    for side in engines.iter_mut().flat_map(|one| [&mut one.host, &mut one.guest]) {
        side.sort_by_key(|one| one.crossed);
    }
    // The engine with most requests says most about the clocks.
    engines.sort_by_key(|one| std::cmp::Reverse(one.host.len().min(one.guest.len())));
    let Some((most, rest)) = engines.split_first() else { return Err(Unaligned::Few(0)) };
    let (of_guest, of_host) = (times(&most.guest), times(&most.host));
    let pairs = align::aligned(&of_guest, &of_host)?;
    let clock = clock::fitted(&bounds(most, &pairs));
    let mut all = vec![(most, pairs)];
    for one in rest {
        all.push((one, align::at_once(&times(&one.guest), &times(&one.host), &clock)));
    }
    let mut out = Joined { clock, journeys: Vec::new(), only_host: 0, only_guest: 0 };
    for (engine, pairs) in all {
        let (Some(&first), Some(&last)) = (pairs.first(), pairs.last()) else { continue };
        out.only_guest += last.0 - first.0 + 1 - pairs.len();
        out.only_host += last.1 - first.1 + 1 - pairs.len();
        for (at, with) in pairs {
            let own = &guest[engine.guest[at].place];
            out.journeys.push(journey(own, &mut host[engine.host[with].place], &out.clock));
        }
    }
    in_order(host);
    Ok(out)
}

/// When a guest's driver handed a request to its engine, as far as its events say.
fn handed(request: &Request) -> Option<i64> {
    [Stage::Running, Stage::Ready, Stage::HostQueued].iter().find_map(|stage| request.when(*stage))
}

/// Both sides of the clocks' distance: the host hears of a request after the guest has handed it over, and the guest of
/// its end after the host.
fn bounds(engine: &Sides, pairs: &[(usize, usize)]) -> Vec<clock::Bound> {
    let of = |&(at, with): &(usize, usize)| {
        let (own, other) = (engine.guest[at], engine.host[with]);
        let ends = own.ended.zip(other.ended);
        [
            Some(clock::Bound { guest: own.crossed, host: other.crossed, later: true }),
            ends.map(|(guest, host)| clock::Bound { guest, host, later: false }),
        ]
    };
    pairs.iter().flat_map(of).flatten().collect()
}

/// The way of a request through both, whose stages in the guest the host's request then has.
fn journey(guest: &Request, host: &mut Request, clock: &Clock) -> Journey {
    let heard = host.when(Stage::VgpuQueued).unwrap_or_default();
    // The clock is not known to the ns, and what led to a request was before the host heard of it.
    let before = |at: i64| clock.host(at).min(heard);
    let (queued, submitted) =
        (guest.when(Stage::HostQueued).map(before), guest.when(Stage::Ready).map(before));
    host.at[Stage::GuestQueued as usize] = queued;
    host.at[Stage::GuestSubmitted as usize] = submitted;
    Journey {
        of: guest.tenant,
        queued,
        submitted,
        handed: before(handed(guest).unwrap_or_default()),
        heard,
        done: host.ended(),
        told: guest.ended().map(|at| clock.host(at)),
    }
}

#[cfg(test)]
mod tests;
