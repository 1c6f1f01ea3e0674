//! A record that any process may have written into the ring. The first eight bytes are its
//! position, the ninth says whether its checksum is to be made right.

#![no_main]

use gpuwhy_wire::layout::{RECORD_BYTES, RECORD_WORDS};
use gpuwhy_wire::{decode, encode, seal};

fn bytes(words: &[u64; RECORD_WORDS]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((position, rest)) = data.split_first_chunk::<8>() else { return };
    let position = u64::from_le_bytes(*position);
    let Some((sealed, record)) = rest.split_first() else { return };
    let mut record = record.to_vec();
    if sealed % 2 == 1 && record.len() == RECORD_BYTES {
        let mut words = [0u64; RECORD_WORDS];
        for (word, eight) in words.iter_mut().zip(record.chunks_exact(8)) {
            *word = u64::from_le_bytes(eight.try_into().unwrap());
        }
        seal(&mut words, position);
        record = bytes(&words);
    }
    if let Ok(read) = decode(&record, position) {
        // What it was understood to be, it is.
        let mut words = encode(&read);
        seal(&mut words, position);
        assert_eq!(decode(&bytes(&words), position), Ok(read));
    }
});
