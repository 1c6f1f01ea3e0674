//! What a trace holds that has no work of a device, for the error that says so.

use std::collections::HashMap;

use gpuwhy_schema::{Span, TrackId};

use crate::error::{Error, Result};
use crate::source::{EVER, TraceSource};

/// Kinds of spans that are listed.
const KINDS: usize = 6;

/// The error that a trace has no work of a device, with what it has instead.
///
/// # Errors
/// The trace cannot be read.
pub fn error(source: &TraceSource) -> Result<Error> {
    let names: HashMap<TrackId, &str> =
        source.entities_and_tracks().track.iter().map(|t| (t.id, &*t.name)).collect();
    let mut spans: HashMap<&str, u64> = HashMap::new();
    for rows in source.trace().read::<Span>(EVER) {
        for span in rows? {
            *spans.entry(names.get(&span.track).copied().unwrap_or("?")).or_default() += 1;
        }
    }
    let path = source.trace().path().into();
    Ok(Error::NoGpuWorkInTrace { path, holds: in_words(spans) })
}

fn in_words(spans: HashMap<&str, u64>) -> String {
    let all: u64 = spans.values().sum();
    if all == 0 {
        return ", nor any spans".into();
    }
    let mut spans: Vec<(&str, u64)> = spans.into_iter().collect();
    spans.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
    let more = if spans.len() > KINDS { ", …" } else { "" };
    let listed: Vec<String> =
        spans.iter().take(KINDS).map(|(name, count)| format!("{name} {count}")).collect();
    format!(", but {all} spans: {}{more}", listed.join(", "))
}
