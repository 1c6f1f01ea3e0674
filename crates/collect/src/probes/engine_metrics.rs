//! What engines that serve language models count of themselves: how many requests took longer than was promised.
//!
//! *What it sees*: `/metrics` of vLLM and SGLang, read every [`EVERY`]: histograms of latencies, requests that run and
//! wait, how full the KV cache is. *Why it matters*: it is what an operator's alarms look at; which steps it was, and why
//! they were slow, the rest of the recording says. *What fools it*:
//!
//! - A histogram knows no single request, and no more of how long they took than its bounds say: what is told to have
//!   taken longer took longer than the least bound that is no less than what was promised.
//! - A request counts when its token came, so that what made it late lies before that.
//! - Engines behind one address are added up.
//!
//! Only `http://` is spoken, no proxy is used and no redirection is followed.

mod text;

use std::sync::mpsc::{SyncSender, TryRecvError};
use std::time::Duration;

use gpuwhy_schema::{
    Attr, Counter, Lane, Mark, Measure, Ns, SourceId, SourceState, names, sources,
};

pub use text::Latency;
use text::{Histogram, Reading, Said, read};

use crate::config::Metrics;
use crate::context::Context;
use crate::error::{CollectError, error_chain};
use crate::probe::{Probe, ProbeSpec, Start};
use crate::rounds::Rounds;
use crate::sys;

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |config| config.metrics.is_some(),
    ..ProbeSpec::new(
        "engine_metrics",
        &sources::ENGINE_METRICS,
        "latencies that engines of language models count, and promises that they broke",
        start,
    )
};

/// Between two readings.
const EVERY: Duration = Duration::from_secs(2);
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long it may be, bytes; an engine with two models sends 60 KB.
const LONGEST: u64 = 4 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum MetricsError {
    /// Nobody listens, or what came was no answer.
    #[error("{address} does not say how its requests fare")]
    NoAnswer {
        /// Its address.
        address: String,
        /// Why not.
        #[source]
        source: Box<ureq::Error>,
    },
    /// Somebody else listens.
    #[error("{address} knows none of the metrics of vLLM and SGLang")]
    NotAnEngine {
        /// Its address.
        address: String,
    },
}

/// One reading of one address.
type Answer = (Ns, usize, Result<Said, MetricsError>);

struct EngineMetrics {
    source: SourceId,
    config: Metrics,
    reads: Rounds<Answer>,
    /// What each address said before, and when.
    before: Vec<Option<(Ns, Said)>>,
    /// What is the matter with each.
    problems: Vec<Option<String>>,
    recorded: u64,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let config = start.config.metrics.clone().unwrap_or_default();
    let addresses = config.addresses.clone();
    let agent = agent();
    let round = move |answers: &SyncSender<Answer>| {
        let mut all = addresses.iter().enumerate();
        all.try_for_each(|(n, address)| {
            let said = get(&agent, address);
            answers.send((sys::monotonic(), n, said))
        })
    };
    let reads = Rounds::start("gpuwhy-metrics", "metrics of engines", (EVERY, 64), round)?;
    let many = config.addresses.len();
    Ok(Box::new(EngineMetrics {
        source: start.source,
        config,
        reads,
        before: vec![None; many],
        problems: vec![None; many],
        recorded: 0,
    }))
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .max_redirects(0)
        .proxy(None)
        .user_agent(concat!("gpuwhy/", env!("CARGO_PKG_VERSION")));
    config.build().into()
}

fn get(agent: &ureq::Agent, address: &str) -> Result<Said, MetricsError> {
    let text = agent.get(address).call().and_then(|mut answer| {
        answer.body_mut().with_config().limit(LONGEST).lossy_utf8(true).read_to_string()
    });
    let failed = |source| {
        let (address, source) = (address.to_owned(), Box::new(source));
        MetricsError::NoAnswer { address, source }
    };
    let said = read(&text.map_err(failed)?);
    match said.readings.is_empty() && said.latencies.is_empty() {
        true => Err(MetricsError::NotAnEngine { address: address.to_owned() }),
        false => Ok(said),
    }
}

/// What a broken promise is called.
fn broken(latency: Latency, promised: Ns) -> String {
    format!("{latency} over {} ms", promised.0 as f64 / 1e6)
}

impl EngineMetrics {
    fn take(&mut self, (at, n, said): Answer, cx: &mut Context) {
        let said = match said {
            Ok(said) => said,
            // It may be starting; what it says then began with it.
            Err(error) => return self.note(n, Some(error_chain(&error)), cx),
        };
        self.readings(at, n, &said, cx);
        let mut not_counted = Vec::new();
        if let Some((since, before)) = &self.before[n] {
            for (latency, promised) in &self.config.promised {
                let Some(now) = said.latencies.get(latency) else {
                    not_counted.push(format!("{latency} is not counted"));
                    continue;
                };
                let none = Histogram::default();
                let over = now.over(before.latencies.get(latency).unwrap_or(&none), *promised);
                let Some(bound) = over.bound else {
                    not_counted.push(format!("{latency} is not counted beyond {promised}"));
                    continue;
                };
                if over.over < 1.0 {
                    continue;
                }
                let track = Lane::marks(names::ENGINE_METRICS);
                let track = cx.catalog.track(cx.host, None, track, self.source);
                let id = cx.ids.next_id();
                let name = broken(*latency, *promised).as_str().into();
                cx.rows.mark.push(Mark { id, ts: at, track, name, value: Some(over.over) });
                let attrs = [
                    (names::OF, over.of.to_string()),
                    (names::BOUND_NS, bound.0.to_string()),
                    (names::SINCE_NS, since.0.to_string()),
                    (names::ADDRESS, self.config.addresses[n].clone()),
                ];
                cx.rows.attr.extend(attrs.into_iter().map(|(key, value)| Attr {
                    id,
                    key: key.into(),
                    value: value.as_str().into(),
                }));
                self.recorded += 1;
            }
        }
        self.before[n] = Some((at, said));
        let address = &self.config.addresses[n];
        let problem =
            (!not_counted.is_empty()).then(|| format!("{address}: {}", not_counted.join(", ")));
        self.note(n, problem, cx);
    }

    fn readings(&mut self, at: Ns, n: usize, said: &Said, cx: &mut Context) {
        for (reading, value) in &said.readings {
            let (name, unit) = match reading {
                Reading::Running => (names::REQUESTS_RUNNING, "{request}"),
                Reading::Waiting => (names::REQUESTS_WAITING, "{request}"),
                Reading::KvCache => (names::KV_CACHE_USED, "1"),
            };
            // Addresses behind the first have tracks of their own.
            let name = match n {
                0 => name.to_owned(),
                _ => format!("{name} at {}", self.config.addresses[n]),
            };
            let lane = Lane::counter(&name, unit, Measure::Gauge);
            let track = cx.catalog.track(cx.host, None, lane, self.source);
            cx.rows.counter.push(Counter { ts: at, track, value: *value });
            self.recorded += 1;
        }
    }

    /// Writes what keeps the source from seeing all, if that is new.
    fn note(&mut self, n: usize, problem: Option<String>, cx: &mut Context) {
        if self.problems[n] == problem {
            return;
        }
        self.problems[n] = problem;
        let all: Vec<&str> = self.problems.iter().flatten().map(String::as_str).collect();
        cx.catalog.update_source(self.source, |s| {
            s.state = if all.is_empty() { SourceState::Ok } else { SourceState::Degraded };
            s.note = (!all.is_empty()).then(|| all.join("; ").as_str().into());
        });
    }
}

impl Probe for EngineMetrics {
    fn tick(&mut self, _now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        loop {
            match self.reads.readings.try_recv() {
                Ok(answer) => self.take(answer, cx),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }

    fn recorded(&self) -> u64 {
        self.recorded
    }
}

#[cfg(test)]
mod tests;
