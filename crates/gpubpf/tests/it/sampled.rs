//! Programs that run in one of N launches, blocks and warps: what they count is of the sample, and what was left out is told.

use std::num::NonZeroU32;

use crate::support::clang;
use crate::support::probed::{map, words};
use gpuwhy_gpubpf::Object;
use gpuwhy_gpubpf::contents::Sampled;
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Device, Launch, Maps};
use gpuwhy_gpubpf::splice::{How, Plan};

/// A kernel whose threads leave at different places, some of them at once.
const KERNEL: &str = "\
.version 7.8
.target sm_75
.address_size 64
.visible .entry work()
{
	.reg .pred %p<2>;
	.reg .b32 %r<2>;
	mov.u32 %r1, %tid.x;
	setp.gt.u32 %p1, %r1, 40;
	@%p1 ret;
	ret;
}
";

/// What was sampled of launches of 6 × 5 blocks of 70 threads (3 warps each), and how many warps the program counted.
fn sampled(how: How, launches: u32) -> (Sampled, u64) {
    let mut plan = Plan::new(how);
    plan.object(&Object::read(&clang::object("entry_count", "v3")).unwrap());
    let spliced = plan.splice(&Module::read(KERNEL).unwrap()).unwrap();
    let mut device = Device::new(Config { sms: 3, ..Config::default() });
    let image = device.load(&Module::read(&spliced.text).unwrap()).unwrap();
    let maps = Maps::bind(&mut device, &image, &plan.table(), 4096, 1).unwrap();
    for _ in 0..launches {
        let launch = Launch {
            kernel: "work",
            grid: [6, 5, 1],
            block: [35, 2, 1],
            dynamic_shared: 0,
            parameters: &[],
        };
        device.launch(&image, &launch).unwrap_or_else(|error| panic!("{error}"));
    }
    let maps = maps.read(&device);
    let counted = map(&maps, "warps").entries.iter().map(|entry| words(&entry.bytes)[0]).sum();
    (Sampled::of(&maps).unwrap_or_default(), counted)
}

/// By the same arithmetic, number by number.
fn kept(number: u32, n: u32) -> bool {
    u64::from(number.wrapping_mul(0x9E37_79B1)) < (1_u64 << 32).div_ceil(n.into())
}

#[test]
fn what_is_counted_is_of_the_sample_and_what_there_was_is_told() {
    for (launches, blocks, warps) in
        [(1, 1, 1), (4, 1, 1), (1, 5, 1), (1, 1, 3), (2, 3, 2), (7, 1, 5)]
    {
        let n = |n| NonZeroU32::new(n).unwrap();
        let how =
            How { launches: n(launches), blocks: n(blocks), warps: n(warps), ..How::default() };
        let (sampled, counted) = sampled(how, 20);
        // The simulator numbers launches from 1.
        let in_launches = (1..=20).filter(|number| kept(*number, launches)).count() as u64;
        let of_blocks: Vec<u32> = (0..30).filter(|block| kept(*block, blocks)).collect();
        let of_warps = of_blocks.iter().flat_map(|block| (0..3).map(move |warp| block * 32 + warp));
        let of_warps = of_warps.filter(|warp| kept(*warp, warps)).count() as u64;
        assert_eq!(counted, in_launches * of_warps, "{how:?}");
        if !how.samples() {
            assert_eq!((sampled, counted), (Sampled::default(), 20 * 90));
            continue;
        }
        let wanted = Sampled {
            launches: [20, in_launches],
            blocks: [20 * 30, in_launches * of_blocks.len() as u64],
            warps: [20 * 90, counted],
        };
        assert_eq!(sampled, wanted, "{how:?}");
    }
}
