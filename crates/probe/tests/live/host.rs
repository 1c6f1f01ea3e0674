//! Maps in memory of the host, which the device reaches and the controller reads without a copy.

use super::{COPY, Place, image, number, text};

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
            assert_eq!(number(&found, "host", 599), 2 * 256, "{end}, {load}: {found:#}");
            match end {
                "_exit" => assert!(told.contains("host's memory"), "{told}"),
                "kill" => {}
                _ => assert_eq!(number(&found, "device", 1), 2 * 256, "{end}, {load}: {found:#}"),
            }
        }
    }
}
