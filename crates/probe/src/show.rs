//! What maps hold, for people and as JSON.

use gpuwhy_gpubpf::MapKind;
use gpuwhy_gpubpf::contents::{Contents, SAMPLED, Sampled};
use gpuwhy_schema::text::Screen;
use serde_json::{Value, json};

/// How many values and records of a map are shown.
const SHOWN: usize = 20;

/// Each map with its first values and records, after what was sampled.
pub(crate) fn maps(screen: &mut Screen, maps: &[Contents]) {
    if let Some(Sampled { launches, blocks, warps }) = Sampled::of(maps) {
        let of = |[all, kept]: [u64; 2]| format!("{kept} of {all}");
        screen.end().line(format_args!(
            "the programs ran in {} launches, {} blocks and {} warps; what they counted is of these alone",
            of(launches),
            of(blocks),
            of(warps)
        ));
    }
    for contents in maps.iter().filter(|contents| contents.map.name != SAMPLED) {
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

/// In how many launches, blocks and warps programs ran, and how many there were; `null` where they ran in all.
pub(crate) fn sampled_document(maps: &[Contents]) -> Value {
    let Some(Sampled { launches, blocks, warps }) = Sampled::of(maps) else { return Value::Null };
    let of = |[all, kept]: [u64; 2]| json!({ "all": all, "sampled": kept });
    json!({ "launches": of(launches), "blocks": of(blocks), "warps": of(warps) })
}

/// The maps as JSON, whole.
pub(crate) fn documents(maps: &[Contents]) -> Value {
    maps.iter()
        .filter(|contents| contents.map.name != SAMPLED)
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
