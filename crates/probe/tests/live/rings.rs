//! Rings of records that are emptied while kernels run.

use serde_json::Value;

use super::Place;

/// A probe that records each block, with rings of so many records.
fn place(entries: u32) -> Place {
    let mut place = Place::new();
    place.object = place.compiled("blocks", &[&format!("-DENTRIES={entries}")]);
    place
}

/// Launches and blocks in the order of their records, SM by SM; what was lost; and the note about it.
fn records(place: &Place, launches: &str) -> (Vec<(u64, u64, u64)>, u64, Value) {
    let (found, _) = place.found(&[], &["./queues", "steps", launches]);
    let context = &found["images"][0]["contexts"][0];
    let map = &context["maps"][0];
    let word = |record: &Value, at: usize| {
        let bytes: Vec<u8> = serde_json::from_value(record["bytes"].clone()).unwrap();
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    };
    let records = map["records"].as_array().unwrap().iter();
    let records = records.map(|r| (r["sm"].as_u64().unwrap(), word(r, 8), word(r, 0))).collect();
    (records, map["lost"].as_u64().unwrap(), context["note"].clone())
}

/// 200 launches of 4 blocks in a second or more, with room for 64 records on an SM.
#[test]
fn more_records_arrive_than_a_ring_holds_each_once_and_in_order() {
    let place = place(64);
    let (records, lost, note) = records(&place, "200");
    assert_eq!((records.len(), lost, &note), (800, 0, &Value::Null));
    let most = (0..132).map(|sm| records.iter().filter(|r| r.0 == sm).count()).max().unwrap();
    assert!(most > 2 * 64, "a ring took {most} records");
    assert!(records.is_sorted_by(|a, b| a.0 < b.0 || a.1 < b.1 || (a.1 == b.1 && a.2 < b.2)));
    let mut all: Vec<(u64, u64)> = records.iter().map(|r| (r.1, r.2)).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 800, "each block of each launch once");
}

/// Rings that are too small for what comes between two readings count what they drop, and go on afterwards.
#[test]
fn what_found_no_room_is_counted_and_the_rest_arrives() {
    let place = place(3);
    let (records, lost, note) = records(&place, "200");
    assert_eq!((records.len() as u64 + lost, &note), (800, &Value::Null));
    assert!(lost > 0 && records.len() > 4 * 3 * 2, "{} records, {lost} lost", records.len());
    let last = records.iter().map(|r| r.1).max().unwrap();
    let first = records.iter().map(|r| r.1).min().unwrap();
    assert!(last - first > 100, "from launch {first} to {last}");
}
