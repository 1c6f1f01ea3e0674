//! What an interpreter says of itself, and its tables of lines, from the memory of a process that wants us no good. The
//! first byte says what the rest is.

#![no_main]

// These files alone: their crate needs libbpf, which is of no use here.
#[path = "../../crates/collect/src/python/layout.rs"]
#[allow(dead_code)]
mod layout;
#[path = "../../crates/collect/src/python/lines.rs"]
#[allow(dead_code)]
mod lines;

mod bpf {
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Python {
        pub interpreters: u32,
        pub threads: u32,
        pub next_thread: u32,
        pub thread_id: u32,
        pub frame: u32,
        pub in_between: u32,
        pub previous: u32,
        pub code: u32,
        pub instruction: u32,
        pub owner: u32,
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 3 {
        0 => {
            let mut word = |at: u64| {
                let at = usize::try_from(at).ok()?;
                Some(u64::from_le_bytes(rest.get(at..at.checked_add(8)?)?.try_into().ok()?))
            };
            let found = layout::of(10 + u32::from(kind / 3) % 8, &mut word);
            assert!(!found.free_threaded || found.layout.is_none());
        }
        of => {
            let Some((numbers, table)) = rest.split_at_checked(16) else { return };
            let number = |i: usize| u64::from_le_bytes(numbers[i..i + 8].try_into().unwrap());
            let (first, at) = (i64::from(number(0) as u32), number(8));
            let _ = match of {
                1 => lines::of_locations(table, first, at),
                _ => lines::of_deltas(table, first, at),
            };
        }
    }
});
