//! What a comparison of two runs says, as documents for programs have it.

use serde::Serialize;

use crate::vgpu::Times;

/// A value in the base and in the run that is compared with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Both<T> {
    /// In the base.
    pub base: T,
    /// In the run.
    pub run: T,
}

impl<T> Both<T> {
    pub(super) fn map<U>(self, of: impl Fn(T) -> U) -> Both<U> {
        Both { base: of(self.base), run: of(self.run) }
    }
}

/// Where time goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", content = "tenant", rename_all = "snake_case")]
pub enum Part {
    /// Engines worked on the request.
    Execution,
    /// A request of the same tenant ran.
    OwnPredecessor,
    /// A request of this tenant ran.
    OtherTenant(String),
    /// The device was idle and was not given to its virtual GPU.
    ReservedIdle,
    /// Something that it depends on was not done.
    Dependency,
    /// The host's threads and the scheduler's tick; dependencies too, where one of the runs does not tell them apart.
    Host,
    /// It had no request.
    Guest,
}

/// By how much a part changed.
#[derive(Clone, Debug, Serialize)]
pub struct PartChange {
    /// Which.
    pub part: Part,
    /// In the base, ms.
    pub base_ms: f64,
    /// In the run, ms.
    pub run_ms: f64,
    /// The difference, ms.
    pub change_ms: f64,
    /// A smaller difference may be chance, ms; `None` where there are too few requests to say.
    pub noise_ms: Option<f64>,
}

/// The requests of a tenant to an engine.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyChange {
    /// The engine's name.
    pub engine: String,
    /// Requests that were done in the windows.
    pub requests: Both<usize>,
    /// The same a second, from the tenant's first request to its last end.
    pub requests_per_s: Both<f64>,
    /// From when the host first heard of a request to its end.
    pub latency: Both<Times>,
    /// How long engines worked on a request.
    pub execution: Both<Times>,
    /// How much of a latency was after the request had been taken off its engine, ms on average. It is in the parts.
    pub taken_off_ms: Both<f64>,
    /// By how much the mean latency changed, ms; `None` where the runs do not tell of the same.
    pub change_ms: Option<f64>,
    /// A smaller change may be chance, ms; `None` where there are fewer than 5 requests.
    pub noise_ms: Option<f64>,
    /// Whether it changed by more and by over 1 %, or one of its parts by more than may be chance and over 10 % of it.
    pub changed: Option<bool>,
    /// The parts of the mean latency, ms a request: their changes sum to its change. Empty where the runs do not tell of
    /// the same.
    pub parts: Vec<PartChange>,
    /// In a sentence.
    pub says: String,
}

/// The time of a tenant from its first request to its last end.
#[derive(Clone, Debug, Serialize)]
pub struct WorkChange {
    /// Requests that were done in the windows, to all engines.
    pub requests: Both<usize>,
    /// From the first request to the last end, s.
    pub active_s: Both<f64>,
    /// The difference, s.
    pub change_s: f64,
    /// How much of that is since there were more or fewer requests: as long as each took in the base, s.
    pub by_requests_s: f64,
    /// How long the run's requests would have taken at the pace of the base, s.
    pub at_base_pace_s: f64,
    /// A smaller difference between that and how long they took may be chance, s.
    pub noise_s: Option<f64>,
    /// Whether it is more, and over 1 %.
    pub changed: Option<bool>,
    /// The parts of how long the run's requests took, and of how long they would have at the pace of the base, ms. Their
    /// changes and `by_requests_s` sum to `change_s`.
    pub parts: Vec<PartChange>,
    /// In a sentence.
    pub says: String,
}

/// A tenant that both runs have.
#[derive(Clone, Debug, Serialize)]
pub struct TenantChange {
    /// Its name in the run.
    pub name: String,
    /// Its name in the base, if that is another.
    pub base_name: Option<String>,
    /// Its device in the run.
    pub device: i64,
    /// By engine.
    pub engines: Vec<LatencyChange>,
    /// The time for its work; `None` where the runs' work cannot be compared.
    pub work: Option<WorkChange>,
}

/// Use of an engine by a tenant.
#[derive(Clone, Debug, Serialize)]
pub struct UseChange {
    /// The number of the device.
    pub device: i64,
    /// The engine's name.
    pub engine: String,
    /// The tenant.
    pub tenant: String,
    /// How long the engine worked for it, % of the window.
    pub used_percent: Both<f64>,
    /// Requests that were done, a second of the window.
    pub requests_per_s: Both<f64>,
    /// How long a request ran on average, ms; `None` without one.
    pub execution_ms: Both<Option<f64>>,
    /// The difference of the use, points.
    pub change: f64,
    /// How much of that is by more or fewer requests, points.
    pub by_requests: f64,
    /// How much is by longer or shorter ones, points.
    pub by_length: f64,
    /// The rest: requests that began or ended outside of the windows, points.
    pub rest: f64,
}

/// A tenant that only one run has.
#[derive(Clone, Debug, Serialize)]
pub struct Unmatched {
    /// Its name.
    pub name: String,
    /// `run` or `base`.
    pub only_in: &'static str,
    /// Requests that were done in the window there.
    pub requests: usize,
}

/// A run beside a base.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The trace of the base.
    pub base: String,
    /// The window of the base, s on the clock of its trace.
    pub base_from_s: f64,
    /// Its end.
    pub base_to_s: f64,
    /// Whether any tenant's latency or pace changed by more than may be chance.
    pub changed: bool,
    /// Tenants that both have.
    pub tenants: Vec<TenantChange>,
    /// Who used the engines, the largest change first.
    pub uses: Vec<UseChange>,
    /// Tenants that one of the two has.
    pub unmatched: Vec<Unmatched>,
    /// What is not compared, and why.
    pub not_compared: Vec<String>,
}
