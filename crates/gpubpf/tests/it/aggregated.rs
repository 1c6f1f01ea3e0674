//! Atomic additions that one lane makes for its warp: as many atomics fewer, and the same sums, also where lanes have
//! parted, come at different times, or add to different places.

use crate::support::probed::{Run, map, words};
use gpuwhy_gpubpf::Skeleton;

/// Loads in a loop whose length differs by lane, in a branch that only some lanes take, and under a guard.
const KERNELS: &str = "\
.version 7.8\n.target sm_75\n.address_size 64\n\
.visible .entry uneven(.param .u64 data)\n{\n\
\t.reg .pred %p<4>;\n\t.reg .b32 %r<6>;\n\t.reg .b64 %rd<4>;\n\
\tld.param.u64 %rd1, [data];\n\tmov.u32 %r1, %tid.x;\n\tand.b32 %r2, %r1, 7;\n\tadd.u32 %r2, %r2, 1;\n\
$again:\n\tld.global.u32 %r3, [%rd1];\n\tsub.u32 %r2, %r2, 1;\n\tsetp.ne.u32 %p1, %r2, 0;\n\t@%p1 bra $again;\n\
\tand.b32 %r4, %r1, 1;\n\tsetp.eq.u32 %p2, %r4, 0;\n\t@%p2 bra $even;\n\tld.global.u64 %rd2, [%rd1];\n\
$even:\n\tsetp.lt.u32 %p3, %r1, 5;\n\t@%p3 ld.global.u32 %r3, [%rd1+4];\n\tret;\n}\n";

/// The skeleton's probe: it counts warps and the bytes of loads.
fn counts() -> Vec<u8> {
    crate::support::clang::skeleton(Skeleton::named("counts").unwrap())
}

#[test]
fn sums_are_the_same_and_a_warp_does_one_atomic_for_all_of_its_lanes() {
    let run = Run { text: KERNELS, kernel: "uneven", blocks: 3, threads: 72, words: 16, sms: 2 };
    let (facts, maps) = run.with(&counts());
    let counts = map(&maps, "counts");
    let sum = |key: u8| -> u64 {
        let of = counts.entries.iter().filter(|entry| entry.key == [key, 0, 0, 0]);
        of.map(|entry| words(&entry.bytes)[0]).sum()
    };
    assert_eq!(sum(0), 3 * 3, "warps");
    // Of each thread: 4 bytes in each round of its loop, 8 if it is odd, 4 if it is one of the first five.
    let bytes = |x: u64| 4 * (x % 8 + 1) + 8 * (x % 2) + 4 * u64::from(x < 5);
    assert_eq!(sum(1), 3 * (0..72).map(bytes).sum::<u64>());
    // A warp comes to the loop at most eight times and to each other load once; and once for itself.
    let most = 9 * (8 + 1 + 1 + 1);
    assert!(facts.total.atomics <= most, "{} atomics, at most {most}", facts.total.atomics);
}

#[test]
fn what_differs_by_lane_is_added_by_each_lane() {
    // `work` counts by lane, `contended` by address: the address of the sum differs.
    let run = Run { text: KERNELS, kernel: "uneven", blocks: 1, threads: 32, words: 16, sms: 1 };
    let (_, maps) = run.with(&crate::support::clang::skeleton(Skeleton::named("work").unwrap()));
    for entry in &map(&maps, "lanes").entries {
        let lane = words(&entry.key)[0];
        let accesses = lane % 8 + 1 + lane % 2 + u64::from(lane < 5);
        assert_eq!(words(&entry.bytes)[0], accesses, "lane {lane}");
    }
}
