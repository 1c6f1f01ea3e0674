//! What the fuzz targets call: texts of /proc, and a ring that is written to while it is read.
//!
//! Not part of the interface.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;

use gpuwhy_schema::{EntityKind, Ns};
use gpuwhy_wire::layout::RECORD_WORDS;
use gpuwhy_wire::ring::RawRing;
use gpuwhy_wire::{Consumer, Options, Producer, Ring};

use crate::attribution::Attribution;
use crate::cgroup_path::{Mounts, main_membership, memberships, owners};
use crate::context::Context;
use crate::event_rows::{Devices, EventRows};
use crate::guest::Guest;
use crate::probes::drm_clients::fdinfo::Client;
use crate::probes::hami::region::Region;
use crate::procfs::{Proc, Stat, mappings, namespace_pids};
use crate::quota;

/// Reads a file of HAMi's that is so many of these bytes as it likes, after a right head if the first one is even.
fn limits(data: &[u8]) {
    let Some(first) = data.first() else { return };
    let right = [19_920_718_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat();
    let byte = |at: usize| match right.get(at).filter(|_| first % 2 == 0) {
        Some(byte) => *byte,
        None => data[at % data.len()],
    };
    let region = Region::read(|to, from| {
        to.iter_mut().enumerate().for_each(|(at, to)| *to = byte(from as usize + at));
        Ok(())
    });
    if let Ok(region) = region {
        assert!(region.limits.len() <= 16 && region.processes.len() <= 1024);
        assert!(region.limits.iter().all(|one| !one.uuid.contains(char::is_control)));
    }
}

/// Reads the same bytes as each of the texts of /proc that we read, of which processes choose a part: their
/// names, and those of their cgroups and mounts.
pub fn proc_texts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(stat) = Stat::parse(&text) {
        assert!(text.contains(&stat.name));
    }
    assert!(namespace_pids(&text).len() <= text.len());
    let all = memberships(&text);
    let mounts = Mounts::parse(&text);
    let _ = main_membership(&all);
    for membership in &all {
        let found = owners(&membership.path);
        let user = "/user.slice/user-1.slice/user@1.service/a.service";
        let forged = owners(&format!("{user}{}", membership.path));
        assert!(
            forged.container.is_none() && forged.vm.is_none(),
            "{forged:?} below a user's service"
        );
        assert!(forged.job.is_some_and(|job| job.key == "user:1/unit:a.service"));
        for owner in [found.container, found.job, found.vm].into_iter().flatten() {
            assert!(!owner.key.is_empty() && owner.key.len() <= membership.path.len() + 20);
        }
        if let Some(folder) = mounts.folder(membership) {
            assert!(!folder.split('/').any(|s| s == "..") || text.contains(".."), "{folder}");
        }
    }
    if let Some(client) = Client::parse(&text) {
        assert!(!client.driver.is_empty() && client.engines.len() < 100);
    }
    limits(data);
    for mapping in mappings(&text) {
        let _ = mapping.contains(mapping.from) && mapping.file_offset(mapping.from) > 0;
    }
}

/// A small ring.
const SLOTS: u32 = 32;
const NAMES: u32 = 16;
const BYTES: u64 = gpuwhy_wire::layout::total_bytes(SLOTS, NAMES) as u64;

/// Writes bytes over a ring and records into it, while its records become rows: a hostile guest. Nothing of
/// it is left when it has ended.
pub fn live_ring(data: &[u8]) {
    let mut cx = Context::new();
    cx.attribution = Attribution::of(cx.host, Proc::at("/nowhere".as_ref()));
    let source = cx.catalog.source("wire", "fuzz", "0", "");
    let before = cx.catalog.len();
    let devices =
        if data.first().is_some_and(|b| b % 2 == 0) { Devices::Real } else { Devices::Simulated };
    let mut rows = EventRows::new(source, devices);
    let mut now = Ns::secs(100);
    rows.tick(now, &mut cx);
    let guest = Guest::unverified(&mut cx.catalog, cx.host, "fuzz/1", 1);
    rows.add(1, guest, &mut cx);
    let options = Options { slots: SLOTS, names: NAMES, ..Options::default() };
    let ring = Ring::memfd(options).expect("memory for a small ring");
    let path = ring.path().to_owned();
    let (file, producer) = (File::options().write(true).open(&path), Producer::open(&path));
    let (Ok(file), Ok(producer)) = (file, producer) else { return };
    for name in ["GPU-1", "GPU-2", "step", "CUDA graph", "HtoD pinned", "a/b/3"] {
        producer.name(name);
    }
    let raw = producer.raw();
    let mut consumer = Consumer::of(ring);
    // Sixteen bytes each: what to do, where, and with what.
    for command in data.chunks_exact(16) {
        let word =
            |at: usize| u64::from_le_bytes(command[at..at + 8].try_into().unwrap_or_default());
        let (place, value) = (word(0) >> 8, word(8));
        match command[0] % 4 {
            0 => {
                let _ = file.write_all_at(&value.to_le_bytes(), place % BYTES / 8 * 8);
            }
            1 | 2 => raw.iter().for_each(|ring| write(ring, place, value)),
            _ => {
                now = now.saturating_add(Ns((value % 2_000_000_000) as i64));
                rows.tick(now, &mut cx);
                let most = rows.allowance(1).min(1 + place as usize % 64);
                let drained = consumer.drain_at(now.0 as u64, most, |record| {
                    rows.record(1, &record, &mut cx);
                });
                rows.missed(&drained);
                // Nothing else makes entities.
                let most = before + 2 + quota::ENTITIES + quota::DEVICES;
                let living = cx.catalog.living_after(gpuwhy_schema::EntityId(0)).count();
                assert!(living <= most, "{living} entities live");
            }
        }
    }
    rows.end(1, &mut cx);
    rows.finish(&mut cx);
    let taken = cx.take_rows();
    let of_guest = |kind| matches!(kind, EntityKind::Stream | EntityKind::Rank | EntityKind::Gpu);
    let left = cx.catalog.living_after(gpuwhy_schema::EntityId(0)).filter(|e| of_guest(e.kind));
    assert_eq!(left.count(), 0, "what a guest made ends with it");
    for span in &taken.span {
        assert!(taken.track.iter().any(|track| track.id == span.track), "{span:?}");
    }
    cx.catalog.forget(now.saturating_add(Ns(1)));
    assert!(cx.catalog.len() <= before, "{} entities are remembered", cx.catalog.len() - before);
}

/// A record of any kind, with these numbers in it, small enough to meet each other.
fn write(ring: &RawRing, place: u64, value: u64) {
    // Made once: the fuzzer asks for them a million times a second.
    static RECORDS: OnceLock<Vec<[u64; RECORD_WORDS]>> = OnceLock::new();
    let records = RECORDS.get_or_init(|| {
        let all = gpuwhy_wire::fuzzing::valid_records();
        all.iter().map(|(_, record)| gpuwhy_wire::encode(record)).collect()
    });
    let mut words = records[place as usize % records.len()];
    let [device, name, other, tid, times, ..] = value.to_le_bytes().map(u64::from);
    words[0] = (words[0] & !(0xffff << 48)) | ((device % 4) << 48);
    words[1] = (name % 16) | ((other % 64) << 32);
    words[2] = 1 | (tid % 8) << 32;
    words[3] = (times % 64) << 28;
    words[4] = (place >> 8) % 1000;
    words[5] = (value >> 40) % 16;
    ring.push(&mut words);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the fuzzer does, for a moment: bytes of a simple generator.
    #[test]
    fn any_bytes_are_survived() {
        let mut seed = 1u64;
        let mut bytes = |n: usize| -> Vec<u8> {
            let next = |_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (seed >> 33) as u8
            };
            (0..n).map(next).collect()
        };
        for _ in 0..100 {
            live_ring(&bytes(4096));
            proc_texts(&bytes(200));
        }
        proc_texts(b"0::/kubepods/pod3b7c1f2e-0d4a-4c8b-9e21-5f6a7b8c9d0e/x\nNSpid:\t1\t2\n");
    }
}
