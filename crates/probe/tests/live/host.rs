//! Maps in memory of the host, which the device reaches and the controller reads without a copy.

use serde_json::Value;

use super::{COPY, Place, image, text};

/// What a map has counted in the image's only context.
fn count(found: &Value, map: &str) -> u64 {
    let maps = found["images"][0]["contexts"][0]["maps"].as_array().unwrap();
    let map = maps.iter().find(|one| one["name"] == map).unwrap();
    let entries = map["entries"].as_array().unwrap().iter();
    entries
        .map(|entry| {
            let bytes: Vec<u8> = serde_json::from_value(entry["bytes"].clone()).unwrap();
            u64::from_le_bytes(bytes.try_into().unwrap())
        })
        .sum()
}

/// A launch has 4 blocks of 64 threads. A program that ends by `_exit`, or is killed, is not there to copy anything.
#[test]
fn what_lies_in_the_hosts_memory_is_there_however_the_program_ends() {
    let mut place = Place::new();
    place.object = place.compiled("host", &[]);
    let path = image("zstd.fatbin");
    for end in ["exit", "unload", "fork", "_exit", "kill"] {
        for load in ["library", "module"] {
            let words = ["./loads", "dlsym", load, text(&path), COPY, "1", "2", end];
            let (found, told) = place.found(&[], &words);
            assert_eq!(count(&found, "host"), 2 * 256, "{end}, {load}: {found:#}");
            match end {
                "_exit" => assert!(told.contains("host's memory"), "{told}"),
                "kill" => {}
                _ => assert_eq!(count(&found, "device"), 2 * 256, "{end}, {load}: {found:#}"),
            }
        }
    }
}
