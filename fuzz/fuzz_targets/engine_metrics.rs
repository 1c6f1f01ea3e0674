//! What an engine says at `/metrics`: bytes that any program may send that listens there.

#![no_main]

use gpuwhy_schema::Ns;

// This file alone: its crate needs libbpf, which is of no use here.
#[path = "../../crates/collect/src/probes/engine_metrics/text.rs"]
#[allow(dead_code)]
mod text;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let all = String::from_utf8_lossy(data);
    let (before, _) = all.split_at(all.floor_char_boundary(all.len() / 2));
    let (before, said) = (text::read(before), text::read(&all));
    assert!(said.readings.values().all(|value| *value >= 0.0));
    for (latency, histogram) in &said.latencies {
        let none = text::Histogram::default();
        let was = before.latencies.get(latency).unwrap_or(&none);
        for promised in [0, 1_000_000, 500_000_000, i64::MAX] {
            let over = histogram.over(was, Ns(promised));
            assert!(over.over >= 0.0 && over.over <= over.of.max(0.0), "{over:?}");
            assert!(over.bound.is_none_or(|bound| bound.0 >= promised), "{over:?}");
        }
    }
});
