//! What maps hold, for people and as JSON.

use gpuwhy_gpubpf::MapKind;
use gpuwhy_gpubpf::contents::Contents;
use gpuwhy_schema::text::Screen;
use serde_json::{Value, json};

/// How many values and records of a map are shown.
const SHOWN: usize = 20;

/// Each map with its first values and records.
pub(crate) fn maps(screen: &mut Screen, maps: &[Contents]) {
    for contents in maps {
        let Contents { map, entries, records, lost } = contents;
        screen.end().bold(format_args!("map {}", map.name)).end();
        for entry in entries.iter().take(SHOWN) {
            let of = match (entry.shard, map.kind) {
                (None, _) => String::new(),
                (Some(shard), MapKind::PerSmArray) => format!(" on SM {shard}"),
                (Some(shard), _) => format!(" of thread {shard}"),
            };
            screen.line(format_args!("  [{}]{of}  {}", shown(&entry.key), shown(&entry.bytes)));
        }
        for record in records.iter().take(SHOWN) {
            screen.line(format_args!("  on SM {}  {}", record.sm, shown(&record.bytes)));
        }
        let more = (entries.len() + records.len()).saturating_sub(SHOWN);
        if more > 0 {
            screen.dim(format_args!("  {more} more; --json has all")).end();
        }
        if entries.is_empty() && records.is_empty() {
            screen.line("  nothing");
        }
        if *lost > 0 {
            screen.line(format_args!("  {lost} found no room"));
        }
    }
}

/// A value as numbers of 8 or 4 bytes, or byte by byte.
fn shown(bytes: &[u8]) -> String {
    let numbers: Vec<String> = match bytes.len() {
        n if n > 0 && n % 8 == 0 => bytes
            .chunks_exact(8)
            .filter_map(|b| Some(u64::from_le_bytes(b.try_into().ok()?).to_string()))
            .collect(),
        4 => bytes
            .chunks_exact(4)
            .filter_map(|b| Some(u32::from_le_bytes(b.try_into().ok()?).to_string()))
            .collect(),
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    numbers.join(" ")
}

/// The same as JSON, whole.
pub(crate) fn documents(maps: &[Contents]) -> Value {
    maps.iter()
        .map(|Contents { map, entries, records, lost }| {
            let entries: Vec<Value> = entries
                .iter()
                .map(|e| json!({ "key": e.key, "shard": e.shard, "bytes": e.bytes }))
                .collect();
            let records: Vec<Value> =
                records.iter().map(|r| json!({ "sm": r.sm, "bytes": r.bytes })).collect();
            json!({ "name": map.name, "type": map.kind.id(), "entries": entries, "records": records, "lost": lost })
        })
        .collect()
}
