//! Promises to users that an engine's own counts say were broken, as events.

use std::collections::{HashMap, HashSet};

use gpuwhy_collect::Latency;
use gpuwhy_schema::{Id, Name, Ns, Rows, TrackId, names};

use crate::duration::what_and_time;
use crate::live::Broken;

/// What was promised, as somebody writes it: `ttft=500ms`.
///
/// # Errors
/// It is not written so.
pub fn promised(text: &str) -> Result<(Latency, Ns), String> {
    let (what, most) = what_and_time(text)?;
    Ok((what, Ns(most.as_nanos() as i64)))
}

/// Finds them in rows as they arrive.
#[derive(Default)]
pub(super) struct Promises {
    tracks: HashSet<TrackId>,
}

/// When the first of these requests began at the latest: each took longer than the bound.
pub(super) fn began(broken: &Broken) -> Ns {
    Ns(broken.since_ns).saturating_sub(Ns((broken.bound_ms * 1e6) as i64))
}

impl Promises {
    /// Those that these rows tell of. Nothing is said yet of why.
    pub fn broken(&mut self, rows: &Rows) -> Vec<Broken> {
        let new = rows.track.iter().filter(|track| &*track.name == names::ENGINE_METRICS);
        self.tracks.extend(new.map(|track| track.id));
        if self.tracks.is_empty() {
            return Vec::new();
        }
        let marks = rows.mark.iter().filter(|mark| self.tracks.contains(&mark.track));
        let marks: Vec<_> = marks.collect();
        let ids: HashSet<Id> = marks.iter().map(|mark| mark.id).collect();
        let mut attrs: HashMap<(Id, &str), &Name> = HashMap::new();
        for attr in rows.attr.iter().filter(|attr| ids.contains(&attr.id)) {
            attrs.insert((attr.id, &attr.key), &attr.value);
        }
        let told = |mark: &&gpuwhy_schema::Mark| {
            let text = |key| attrs.get(&(mark.id, key)).map(|value| &***value);
            let number = |key| text(key).and_then(|text| text.parse::<f64>().ok());
            Some(Broken {
                at_ns: mark.ts.0,
                since_ns: text(names::SINCE_NS)?.parse().ok()?,
                what: mark.name.to_string(),
                over: mark.value?,
                of: number(names::OF)?,
                bound_ms: number(names::BOUND_NS)? / 1e6,
                address: text(names::ADDRESS)?.to_owned(),
                because: Vec::new(),
            })
        };
        marks.iter().filter_map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_written_as_what_and_time() {
        assert_eq!(promised("ttft=500ms"), Ok((Latency::FirstToken, Ns::millis(500))));
        assert_eq!(promised("total=10s"), Ok((Latency::Total, Ns::secs(10))));
        for wrong in ["", "ttft", "ttft=", "late=1s", "ttft=fast"] {
            assert!(promised(wrong).is_err(), "{wrong}");
        }
    }
}
