//! What an engine says of itself in the text format of Prometheus, as far as it is about how long requests wait.
//!
//! Source: the format's description (Prometheus, "Exposition formats", text version 0.0.4); names of vLLM
//! (`vllm/v1/metrics/loggers.py`) and SGLang (`sglang/srt/metrics/collector.py`).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use gpuwhy_schema::Ns;

/// Bounds of a histogram that are kept; engines have 20 or so.
const BOUNDS: usize = 256;

/// A latency that an engine counts by how long it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Latency {
    /// From a request's arrival to its first token.
    FirstToken,
    /// Of a request, the mean time of each token after the first.
    EachToken,
    /// Between two tokens of a request.
    Gap,
    /// Of a whole request.
    Total,
}

impl Latency {
    /// All of them.
    pub const ALL: [Latency; 4] =
        [Latency::FirstToken, Latency::EachToken, Latency::Gap, Latency::Total];

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Latency::FirstToken => "ttft",
            Latency::EachToken => "tpot",
            Latency::Gap => "gap",
            Latency::Total => "total",
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Latency {
    type Err = String;

    fn from_str(word: &str) -> Result<Latency, String> {
        let found = Latency::ALL.into_iter().find(|one| one.as_str() == word);
        found.ok_or_else(|| "ttft, tpot, gap or total is what an engine counts".into())
    }
}

/// A reading beside the latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reading {
    /// Requests that are served.
    Running,
    /// Requests that wait to be.
    Waiting,
    /// Share of the KV cache that is in use.
    KvCache,
}

/// What a metric's name means, without `_bucket`, `_sum` and `_count`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meaning {
    Of(Latency),
    Is(Reading),
}

/// Names of all versions; where an engine has two for the same, the first one that it sends counts.
const NAMES: &[(&str, Meaning)] = &[
    ("vllm:time_to_first_token_seconds", Meaning::Of(Latency::FirstToken)),
    ("sglang:time_to_first_token_seconds", Meaning::Of(Latency::FirstToken)),
    ("vllm:request_time_per_output_token_seconds", Meaning::Of(Latency::EachToken)),
    ("vllm:inter_token_latency_seconds", Meaning::Of(Latency::Gap)),
    ("vllm:time_per_output_token_seconds", Meaning::Of(Latency::Gap)),
    ("sglang:inter_token_latency_seconds", Meaning::Of(Latency::Gap)),
    ("sglang:time_per_output_token_seconds", Meaning::Of(Latency::Gap)),
    ("vllm:e2e_request_latency_seconds", Meaning::Of(Latency::Total)),
    ("sglang:e2e_request_latency_seconds", Meaning::Of(Latency::Total)),
    ("vllm:num_requests_running", Meaning::Is(Reading::Running)),
    ("sglang:num_running_reqs", Meaning::Is(Reading::Running)),
    ("vllm:num_requests_waiting", Meaning::Is(Reading::Waiting)),
    ("sglang:num_queue_reqs", Meaning::Is(Reading::Waiting)),
    ("vllm:kv_cache_usage_perc", Meaning::Is(Reading::KvCache)),
    ("vllm:gpu_cache_usage_perc", Meaning::Is(Reading::KvCache)),
    ("sglang:token_usage", Meaning::Is(Reading::KvCache)),
];

/// How often something took how long, since the engine began.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// By upper bound, how often it took at most that.
    bounds: BTreeMap<Ns, f64>,
    /// How often in all.
    count: f64,
}

/// How often something took longer than was promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Over {
    /// So often it took longer than the bound,
    pub over: f64,
    /// of so many.
    pub of: f64,
    /// The least bound of the histogram that is no less than what was promised; none if it has none: then nothing is known.
    pub bound: Option<Ns>,
}

impl Histogram {
    /// How often it took longer than `promised` since `before`, which may be of an engine that was begun anew since.
    pub fn over(&self, before: &Histogram, promised: Ns) -> Over {
        let before = if before.count > self.count { &Histogram::default() } else { before };
        let of = self.count - before.count;
        let Some((bound, within)) = self.bounds.range(promised..).next() else {
            return Over { over: 0.0, of, bound: None };
        };
        let was_within = before.bounds.get(bound).copied().unwrap_or(0.0);
        let over = (of - (within - was_within)).clamp(0.0, of.max(0.0));
        Over { over, of, bound: Some(*bound) }
    }
}

/// What an engine said at one moment, over all its models and engines.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    /// By what they are of.
    pub latencies: BTreeMap<Latency, Histogram>,
    /// Sums, of shares the greatest.
    pub readings: BTreeMap<Reading, f64>,
}

/// Reads what an engine said. Lines that are no metrics of ours, or broken, are left out.
pub(crate) fn read(text: &str) -> Said {
    let mut said = Said::default();
    // Which name each latency and reading came by.
    let mut by: BTreeMap<(Option<Latency>, Option<Reading>), &str> = BTreeMap::new();
    for line in text.lines() {
        let Some((name, labels, value)) = metric(line) else { continue };
        let (base, part) = match name {
            _ if name.ends_with("_bucket") => (&name[..name.len() - 7], Some("bucket")),
            _ if name.ends_with("_count") => (&name[..name.len() - 6], Some("count")),
            _ => (name, None),
        };
        let Some((known, meaning)) = NAMES.iter().find(|(known, _)| *known == base) else {
            continue;
        };
        let key = match meaning {
            Meaning::Of(latency) => (Some(*latency), None),
            Meaning::Is(reading) => (None, Some(*reading)),
        };
        if *by.entry(key).or_insert(known) != *known {
            continue;
        }
        match (meaning, part) {
            (Meaning::Is(reading), None) => {
                let sum = said.readings.entry(*reading).or_default();
                *sum = if *reading == Reading::KvCache { sum.max(value) } else { *sum + value };
            }
            (Meaning::Of(latency), Some("count")) => {
                said.latencies.entry(*latency).or_default().count += value;
            }
            (Meaning::Of(latency), Some(_)) => {
                let Some(bound) = label(labels, "le").and_then(|le| le.parse::<f64>().ok()) else {
                    continue;
                };
                let bounds = &mut said.latencies.entry(*latency).or_default().bounds;
                let ns = bound * 1e9;
                if (0.0..1e18).contains(&ns) && bounds.len() < BOUNDS {
                    *bounds.entry(Ns(ns.round() as i64)).or_default() += value;
                }
            }
            _ => {}
        }
    }
    said
}

/// A count beyond this is none: sums of them must stay exact enough to be subtracted.
const MOST: f64 = 1e15;

/// A line's name, labels and value; none if it has no value that may be a count or a reading.
fn metric(line: &str) -> Option<(&str, &str, f64)> {
    let line = line.trim_start();
    if line.starts_with('#') {
        return None;
    }
    let (name, rest) = line.split_at(line.find(|c: char| c == '{' || c.is_whitespace())?);
    let (labels, rest) = match rest.strip_prefix('{') {
        None => ("", rest),
        Some(rest) => {
            let end = end_of_labels(rest)?;
            (&rest[..end], &rest[end + 1..])
        }
    };
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    (0.0..=MOST).contains(&value).then_some((name, labels, value))
}

/// Where the brace is that ends labels, whose values may contain some.
fn end_of_labels(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    text.bytes().position(|byte| {
        let ends = byte == b'}' && !quoted;
        if byte == b'"' && !escaped {
            quoted = !quoted;
        }
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// The value of a label, as it is written.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = labels;
    loop {
        let (key, behind) = rest.split_once("=\"")?;
        let (mut end, mut escaped) = (None, false);
        for (at, byte) in behind.bytes().enumerate() {
            if byte == b'"' && !escaped {
                end = Some(at);
                break;
            }
            escaped = byte == b'\\' && !escaped;
        }
        let end = end?;
        if key.trim_matches([',', ' ']) == name {
            return Some(&behind[..end]);
        }
        rest = &behind[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As vLLM 0.32 sends it, shortened; the second engine is a replica.
    const VLLM: &str = r#"
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a\"}b"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="tiny"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.25",model_name="tiny"} 6.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 9.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1",model_name="tiny"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.25",model_name="tiny"} 1.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 9.0
vllm:time_to_first_token_seconds_count{engine="1",model_name="tiny"} 1.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="tiny"} 3.0
vllm:inter_token_latency_seconds_count 10
vllm:time_per_output_token_seconds_count 99
"#;

    fn over(said: &Said, before: &Said, ms: i64) -> (f64, f64, Option<i64>) {
        let of =
            |said: &Said| said.latencies.get(&Latency::FirstToken).cloned().unwrap_or_default();
        let over = of(said).over(&of(before), Ns::millis(ms));
        (over.over, over.of, over.bound.map(|ns| ns.0 / 1_000_000))
    }

    #[test]
    fn all_engines_of_an_endpoint_are_added_up() {
        let said = read(VLLM);
        let readings: Vec<f64> = said.readings.values().copied().collect();
        assert_eq!(readings, [4.0, 7.0, 0.75], "running, waiting, the fullest cache");
        assert_eq!(over(&said, &Said::default(), 100), (5.0, 10.0, Some(100)));
        assert_eq!(over(&said, &Said::default(), 150), (3.0, 10.0, Some(250)), "at least so many");
        assert_eq!(over(&said, &Said::default(), 900), (0.0, 10.0, None), "nothing is known");
        assert_eq!(
            said.latencies[&Latency::Gap].count,
            10.0,
            "of two names for the same the first"
        );
    }

    #[test]
    fn what_was_over_before_is_not_counted_again() {
        let before = read(VLLM);
        let later = read(&VLLM.replace("} 9.0", "} 12.0"));
        assert_eq!(over(&later, &before, 100), (3.0, 3.0, Some(100)));
        assert_eq!(over(&before, &before, 100), (0.0, 0.0, Some(100)));
        // The engine was begun anew.
        assert_eq!(over(&before, &later, 100), (5.0, 10.0, Some(100)));
    }

    #[test]
    fn broken_lines_are_left_out() {
        for line in [
            "vllm:num_requests_running{",
            "vllm:num_requests_running{a=\"b",
            "vllm:num_requests_running{a=\"b\"}",
            "vllm:num_requests_running NaN",
            "vllm:num_requests_running -1",
            "vllm:time_to_first_token_seconds_bucket{le=\"x\"} 1",
            "vllm:time_to_first_token_seconds_bucket 1",
            "_bucket 1",
            "{} 1",
            "",
        ] {
            assert_eq!(read(line).readings.len(), 0, "{line}");
        }
        let many: String = (0..1000)
            .map(|n| format!("sglang:time_to_first_token_seconds_bucket{{le=\"{n}\"}} 1\n"))
            .collect();
        assert_eq!(read(&many).latencies[&Latency::FirstToken].bounds.len(), BOUNDS);
    }
}
