//! The longest times in which a device's busiest stream had nothing to do, and what the host did then.
//!
//! The host is the thread that launched what came next: nobody else ended the gap. What it did is what the
//! trace has of it: calls of CUDA, of MPI and of the operating system, named ranges, and whether it was off
//! its CPU.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use gpuwhy_derive::busy;
use gpuwhy_derive::idle::{Cause, Gap};
use gpuwhy_schema::{EntityId, Ns, Span, State, ThreadState, TrackId, names};
use serde::Serialize;

use super::NS_MS;
use crate::error::Result;
use crate::source::TraceSource;

/// Calls that are named for each gap.
const NAMED: usize = 3;

/// A call, and how long a thread was in it.
#[derive(Clone, Debug, Serialize)]
pub struct Called {
    /// Whose call: `cuda`, `mpi`, `os`, `library`.
    pub of: &'static str,
    /// Its name.
    pub name: String,
    /// For how long during the gap, ms; calls within calls count in both.
    pub ms: f64,
}

/// A time in which a stream had nothing to do.
#[derive(Clone, Debug, Serialize)]
pub struct StreamGap {
    /// The stream's GPU and name.
    pub stream: String,
    /// When it began, s from the first work of a device.
    pub from_s: f64,
    /// How long it took, ms.
    pub ms: f64,
    /// `host_wait` (nothing was launched), `kernel_wait`, or `other` (work was queued and waited).
    pub cause: &'static str,
    /// For how much of it no stream of that device did anything, ms.
    pub device_idle_ms: f64,
    /// The thread that launched what came next, if the trace holds the launch.
    pub thread: Option<String>,
    /// The calls that this thread was in longest.
    pub calls: Vec<Called>,
    /// For how long it was in no call, ms; `None` if the trace holds no call of it.
    pub no_call_ms: Option<f64>,
    /// For how long it was off its CPU, ms; `None` if the trace does not say.
    pub off_cpu_ms: Option<f64>,
    /// The innermost named range that covers most of the gap.
    pub range: Option<String>,
    /// The track of the stream.
    #[serde(skip)]
    pub track: TrackId,
}

impl StreamGap {
    /// Why the stream had nothing to do, in words.
    pub fn why(&self) -> &'static str {
        match self.cause {
            "host_wait" => "nothing was launched",
            "kernel_wait" => "between two kernels",
            _ => "work was queued and waited",
        }
    }

    /// What the thread did meanwhile that launched what came next, in words.
    pub fn did(&self) -> String {
        let call = |call: &Called| format!("{} {:.3} ms ({})", call.name, call.ms, call.of);
        let mut did: Vec<String> = self.calls.iter().map(call).collect();
        did.extend(self.no_call_ms.map(|ms| format!("in no call {ms:.3} ms")));
        did.extend(self.off_cpu_ms.map(|ms| format!("off its CPU {ms:.3} ms")));
        did.extend(self.range.iter().map(|range| format!("in range {range}")));
        match (&self.thread, did.is_empty()) {
            (None, _) => "the launch of what came next is not in the trace".to_owned(),
            (Some(_), true) => "no calls in the trace".to_owned(),
            (Some(_), false) => did.join(", "),
        }
    }
}

/// A gap that is among the longest.
pub struct Candidate {
    /// The stream.
    pub track: TrackId,
    /// From when to when, and why.
    pub gap: Gap,
    /// The thread that launched what came next.
    pub thread: Option<EntityId>,
    /// When its device did something, in any order; at least all that overlaps the gap.
    pub device: Vec<(Ns, Ns)>,
}

/// What a track says about a thread.
enum Lane {
    Calls(&'static str),
    Ranges,
}

/// Whether the ranges of a track own the work that is launched within them.
pub fn is_ranges(name: &str) -> bool {
    let of_domain = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    of_domain(names::NVTX) || name == names::ANNOTATIONS || name == names::OPERATORS
}

fn lane(name: &str) -> Option<Lane> {
    Some(match name {
        names::CUDA_CALLS => Lane::Calls("cuda"),
        names::MPI_CALLS => Lane::Calls("mpi"),
        names::OS_CALLS => Lane::Calls("os"),
        names::LIBRARY_CALLS | names::NCCL_CALLS => Lane::Calls("library"),
        name if is_ranges(name) => Lane::Ranges,
        _ => return None,
    })
}

/// What was seen of a thread during a gap.
#[derive(Default)]
struct Seen {
    calls: BTreeMap<(&'static str, String), i64>,
    in_calls: Vec<(Ns, Ns)>,
    /// Named ranges: their name, their whole length, and how much of the gap they cover.
    ranges: Vec<(String, i64, i64)>,
    off_cpu: Option<i64>,
}

/// Says what the host did in each of these gaps.
///
/// # Errors
/// The trace cannot be read.
pub fn explain(
    source: &TraceSource,
    candidates: Vec<Candidate>,
    origin: i64,
    label: impl Fn(TrackId) -> Option<String>,
) -> Result<Vec<StreamGap>> {
    let ms = |ns: i64| ns as f64 / NS_MS;
    let mut all = Vec::with_capacity(candidates.len());
    for Candidate { track, gap, thread, device } in candidates {
        let window = (Ns(gap.start), Ns(gap.end));
        let length = gap.end - gap.start;
        let seen = match thread {
            Some(thread) => seen(source, thread, gap.start..gap.end)?,
            None => Seen::default(),
        };
        let mut calls: Vec<Called> = seen
            .calls
            .into_iter()
            .map(|((of, name), ns)| Called { of, name, ms: ms(ns) })
            .collect();
        calls.sort_by(|a, b| b.ms.total_cmp(&a.ms).then_with(|| a.name.cmp(&b.name)));
        calls.truncate(NAMED);
        let in_calls = busy(&seen.in_calls, window).0;
        all.push(StreamGap {
            stream: label(track).unwrap_or_else(|| format!("track {track}")),
            from_s: (gap.start - origin) as f64 / 1e9,
            ms: ms(length),
            cause: match gap.cause {
                Cause::HostWait => "host_wait",
                Cause::KernelWait => "kernel_wait",
                Cause::Other => "other",
            },
            device_idle_ms: ms(length - busy(&device, window).0),
            thread: thread.map(|thread| thread_name(source, thread)),
            no_call_ms: (!calls.is_empty()).then(|| ms(length - in_calls)),
            calls,
            off_cpu_ms: seen.off_cpu.map(ms),
            range: innermost(seen.ranges, length),
            track,
        });
    }
    Ok(all)
}

/// The shortest range that covers at least half of a gap.
fn innermost(ranges: Vec<(String, i64, i64)>, gap: i64) -> Option<String> {
    let covering = ranges.into_iter().filter(|(_, _, covered)| 2 * covered >= gap);
    covering.min_by_key(|(_, length, _)| *length).map(|(name, ..)| name)
}

fn thread_name(source: &TraceSource, thread: EntityId) -> String {
    let found = source.entities_and_tracks().entity.iter().find(|e| e.id == thread);
    found.map_or_else(
        || format!("thread {}", thread.0),
        |e| match e.number {
            Some(tid) if !e.name.contains(&tid.to_string()) => format!("{} (tid {tid})", e.name),
            _ => e.name.to_string(),
        },
    )
}

fn seen(source: &TraceSource, thread: EntityId, gap: Range<i64>) -> Result<Seen> {
    let mut lanes: HashMap<TrackId, Lane> = HashMap::new();
    let mut states: Option<TrackId> = None;
    for track in source.entities_and_tracks().track.iter().filter(|t| t.entity == thread) {
        lanes.extend(lane(&track.name).map(|lane| (track.id, lane)));
        if &*track.name == names::THREAD_STATE {
            states = Some(track.id);
        }
    }
    let (from, to) = (Ns(gap.start), Ns(gap.end));
    let mut seen = Seen::default();
    for rows in source.trace().read::<Span>(from..to) {
        for span in rows? {
            let Some(lane) = lanes.get(&span.track) else { continue };
            let end = span.dur.map_or(Ns::MAX, |dur| span.ts.saturating_add(dur));
            let covered = busy(&[(span.ts, end)], (from, to));
            if covered == Ns(0) {
                continue;
            }
            match lane {
                Lane::Calls(of) => {
                    let name: String = span.name.chars().take(60).collect();
                    *seen.calls.entry((of, name)).or_default() += covered.0;
                    seen.in_calls.push((span.ts, end));
                }
                Lane::Ranges => {
                    let length = end.0.saturating_sub(span.ts.0);
                    let name: String = span.name.chars().take(60).collect();
                    seen.ranges.push((name, length, covered.0));
                }
            }
        }
    }
    if let Some(states) = states {
        let (mut running, mut any) = (0, false);
        for rows in source.trace().read::<State>(from..to) {
            for state in rows?.into_iter().filter(|s| s.track == states) {
                let end = state.dur.map_or(Ns::MAX, |dur| state.ts.saturating_add(dur));
                any = true;
                if state.value == ThreadState::Running.code() {
                    running += busy(&[(state.ts, end)], (from, to)).0;
                }
            }
        }
        // Where a source does not say why a thread left its CPU, there is no state.
        seen.off_cpu = any.then(|| gap.end - gap.start - running);
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_gap_is_the_innermost_that_covers_half_of_it() {
        let of = |name: &str, length, covered| (name.to_owned(), length, covered);
        let ranges = vec![of("epoch", 9000, 100), of("step", 300, 60), of("zero_grad", 20, 20)];
        assert_eq!(innermost(ranges, 100).as_deref(), Some("step"));
        assert_eq!(innermost(vec![of("zero_grad", 20, 20)], 100), None);
    }
}
