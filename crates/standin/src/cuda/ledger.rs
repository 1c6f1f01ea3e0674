//! The ledger of managed memory, which `GPUWHY_STANDIN_MANAGED_LEDGER` names: a line for each launch, prefetch and
//! advice, for tests to read: `launch KERNEL CYCLES STALL_NS FAULTS WAITS BYTES_IN BYTES_OUT BYTES_REMOTE`, `prefetch
//! BYTES MOVED_IN MOVED_OUT` and `advise NUMBER BYTES`.

use std::io::Write;

use gpuwhy_gpubpf::sim::Touch;

use super::code::Captured;
use super::paging::{Facts, Paging};

/// Adds a line to the ledger.
pub(super) fn note(line: &dyn std::fmt::Display) {
    let Some(path) = std::env::var_os("GPUWHY_STANDIN_MANAGED_LEDGER") else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    // In one piece: a test may read it meanwhile.
    if let Err(why) = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())) {
        eprintln!("gpuwhy-standin: the ledger of managed memory: {why}");
    }
}

/// A kernel has run from `begin` on: how much longer it takes for its pages, ns.
pub(super) fn ran(
    paging: &mut Paging,
    launch: &Captured,
    touched: &[Touch],
    begin: u64,
    cycles: u64,
) -> u64 {
    let Facts { faults, waits, moved_in, moved_out, remote, stall_ns } = paging.run(touched, begin);
    let kernel = &launch.function.name;
    note(&format_args!(
        "launch {kernel} {cycles} {stall_ns} {faults} {waits} {moved_in} {moved_out} {remote}"
    ));
    stall_ns
}
