//! The simulator's own promises: how lanes part and meet, what it refuses, what it counts.

use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Device, Facts, Launch, LaunchError, Limits, Trouble};

/// A kernel `k` whose body finds `%t` (the thread of its block), `%out` (words of 32 bits) and `%at`
/// (its own word of them).
fn kernel(declarations: &str, body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n{declarations}\n\
         .visible .entry k(.param .u64 k_out) {{\n\
         .reg .pred %p<8>; .reg .b32 %t, %r<16>; .reg .b64 %out, %at, %d<8>; .reg .f32 %f<8>;\n\
         .reg .b16 %h<4>; .reg .f64 %g<4>;\n\
         ld.param.u64 %out, [k_out]; mov.u32 %t, %tid.x;\n\
         mad.wide.u32 %at, %t, 4, %out;\n{body}\nret;\n}}\n"
    )
}

/// What `out` holds after `grid` blocks of `threads`, and what was counted.
fn launch(text: &str, grid: u32, threads: u32) -> Result<(Vec<u32>, Facts), LaunchError> {
    let limits = Limits { instructions: 200_000, calls: 16, ..Config::default().limits };
    let mut device = Device::new(Config { limits, ..Config::default() });
    let image = device.load(&Module::read(text).unwrap()).unwrap();
    let out = device.upload(&[0; 4096]).unwrap();
    let launch = Launch {
        kernel: "k",
        grid: [grid, 1, 1],
        block: [threads, 1, 1],
        dynamic_shared: 0,
        parameters: &[out.to_le_bytes().to_vec()],
    };
    let facts = device.launch(&image, &launch)?;
    let words = device.read(out, 4096).unwrap().chunks(4);
    Ok((words.map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect(), facts))
}

fn run(body: &str, threads: u32) -> (Vec<u32>, Facts) {
    launch(&kernel("", body), 1, threads).unwrap_or_else(|why| panic!("{why}"))
}

/// How a kernel ends that does something wrong: the fault in words.
fn refused(declarations: &str, body: &str, threads: u32) -> String {
    match launch(&kernel(declarations, body), 1, threads) {
        Err(LaunchError::Fault(fault)) => fault.to_string(),
        other => panic!("`{body}` ended: {:?}", other.map(|(_, facts)| facts.total)),
    }
}

#[test]
fn lanes_that_part_meet_again_behind_the_branch() {
    let (out, facts) = run(
        "setp.lt.u32 %p1, %t, 8;\n@%p1 bra less;\nmov.u32 %r1, 200;\nactivemask.b32 %r2;\nbra met;\n\
         less: mov.u32 %r1, 100;\nactivemask.b32 %r2;\n\
         met: activemask.b32 %r3;\nxor.b32 %r2, %r2, %r3;\nadd.u32 %r1, %r1, %r2;\n\
         st.global.u32 [%at], %r1;",
        32,
    );
    assert!(out[..8].iter().all(|&word| word == 100_u32.wrapping_add(!0xff)));
    assert!(out[8..32].iter().all(|&word| word == 200 + 0xff));
    assert_eq!(facts.total.divergent_branches, 1);
    // 3 + 2 issued together (the branch is taken by 8), 2 and 3 apart, 5 together.
    assert_eq!((facts.total.instructions, facts.total.lanes), (15, 9 * 32 + 8 + 3 * 24 + 2 * 8));
}

#[test]
fn a_loop_of_different_length_in_each_lane_is_left_by_all_together() {
    let (out, facts) = run(
        "mov.u32 %r1, 0;\nagain: add.u32 %r1, %r1, 2;\nsetp.le.u32 %p1, %r1, %t;\n@%p1 bra again;\n\
         activemask.b32 %r2;\nst.global.u32 [%at], %r2;",
        32,
    );
    assert!(out[..32].iter().all(|&mask| mask == u32::MAX));
    // Lanes 0–1 leave after one round, the last two after 16: parted 15 times.
    assert_eq!(facts.total.divergent_branches, 15);
}

#[test]
fn lanes_of_both_sides_of_a_branch_exchange_values() {
    // Each side shuffles at an instruction of its own half of the warp, then both at one.
    let (out, _) = run(
        "setp.lt.u32 %p1, %t, 16;\n@%p1 bra low;\nbar.warp.sync 0xffffffff;\nbra met;\n\
         low: bar.warp.sync 0xffffffff;\nmet: shfl.sync.bfly.b32 %r1, %t, 16, 31, 0xffffffff;\n\
         match.any.sync.b32 %r2, %r1, 0xffffffff;\nmad.lo.u32 %r1, %r2, 0, %r1;\n\
         st.global.u32 [%at], %r1;",
        32,
    );
    assert!((0..32).all(|lane| out[lane] == lane as u32 ^ 16));
}

#[test]
fn a_lane_that_holds_a_lock_gives_it_to_the_lanes_that_wait() {
    let (out, _) = run(
        "again: atom.global.cas.b32 %r1, [%out+64], 0, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra again;\n\
         ld.global.u32 %r2, [%out];\nadd.u32 %r2, %r2, 1;\nst.global.u32 [%out], %r2;\n\
         atom.global.exch.b32 %r3, [%out+64], 0;",
        3,
    );
    assert_eq!((out[0], out[16]), (3, 0));
}

#[test]
fn threads_that_wait_for_ever_are_told_with_their_lines() {
    let words = refused(
        "",
        "setp.lt.u32 %p1, %t, 32;\n@%p1 bra other;\nbar.sync 0;\nret;\nother: bar.sync 1;",
        96,
    );
    assert!(
        words.contains("deadlock: 32 threads wait at line 14, 64 threads wait at line 12"),
        "{words}"
    );
    let words = refused("", "setp.lt.u32 %p1, %t, 8;\n@%p1 bar.sync 0;", 32);
    assert!(words.contains("by a part of the warp"), "{words}");
    // Those who have ended are not waited for.
    run("setp.lt.u32 %p1, %t, 32;\n@%p1 exit;\nbar.sync 0;", 96);
    // One that never arrives at a barrier for 64 threads.
    let words = refused("", "setp.lt.u32 %p1, %t, 32;\n@%p1 bra go;\nbar.sync 3, 96;\ngo:", 64);
    assert!(words.contains("32 threads wait at line 12; 32 of 64 threads have ended"), "{words}");
}

#[test]
fn what_goes_wrong_names_statement_line_and_thread() {
    let words = refused("", "setp.eq.u32 %p1, %t, 5;\n@%p1 st.global.u32 [%out+5000], %t;", 32);
    assert!(words.starts_with("`k`, line 11, `@%p1 st.global.u32 [%out+5000], %t;`"), "{words}");
    assert!(words.contains("block (0, 0, 0), thread (5, 0, 0): store of 4 bytes at 0x"), "{words}");
    let shared = ".shared .align 4 .b8 s[64];";
    let local = ".local .align 8 .b8 l[16];";
    for (declared, body, why) in [
        ("", "ld.global.u64 %d1, [%out+4];", "is not aligned to 8 bytes"),
        ("", "ld.global.u32 %r1, [%at+4093];", "is not aligned to 4 bytes"),
        ("", "mov.u64 %d1, 0;\nld.global.u8 %r1, [%d1];", "no global memory"),
        (shared, "ld.shared.u32 %r1, [s+4];", "of shared memory are read before they are written"),
        (shared, "st.shared.u32 [s+64], %t;", "where there is no shared memory"),
        ("", "add.u32 %r1, %r2, 1;\nst.global.u32 [%at], %r1;", "a register which was not written"),
        ("", "setp.eq.u32 %p1, %r2, 1;\n@%p1 exit;", "a register which was not written"),
        ("", "rem.u32 %r1, %t, 0;", "a division by zero"),
        ("", "shfl.sync.idx.b32 %r1, %t, 0, 31, 0xfffffffe;", "whose mask does not name it"),
        (
            "",
            "mov.u32 %r1, 1;\nwgmma.fence.sync.aligned;",
            "does not know `wgmma.fence.sync.aligned`",
        ),
        ("", "ld.param.u64 %d1, [%out];", "there is no parameter memory"),
        (".const .u32 c = 5;", "st.global.u32 [c], %t;", "a store to constant memory"),
        (
            "",
            "mov.b64 %d1, k;\nadd.u64 %d1, %d1, 160;\ncall %d1, ();",
            "at which there is no function",
        ),
        ("", "trap;", "the kernel ended itself"),
        ("", "again: bra again;", "more than 200000 instructions"),
        (".func f() { call f, (); ret; }", "call f, ();", "more than 16 calls within each other"),
        ("", "bar.sync 16;", "a barrier above 15"),
    ] {
        let words = refused(declared, body, 32);
        assert!(words.contains(why), "{body}: {words}");
    }
    let inside = format!("{local}\natom.local.add.u32 %r1, [l], 1;");
    assert!(
        refused("", &inside, 1).contains("does not know")
            || refused("", &inside, 1).contains("atomic on memory")
    );
}

#[test]
fn a_launch_that_does_not_fit_says_why() {
    let text = kernel(".shared .align 4 .b8 s[200000];", "");
    let mut device = Device::new(Config::default());
    let image = device.load(&Module::read(&text).unwrap()).unwrap();
    let parameters = [vec![0; 8]];
    let fits = Launch {
        kernel: "k",
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        parameters: &parameters,
    };
    let mut said = |launch: &Launch| device.launch(&image, launch).unwrap_err().to_string();
    assert!(said(&Launch { kernel: "x", ..fits.clone() }).contains("no kernel `x`"));
    assert!(said(&Launch { block: [32, 33, 1], ..fits.clone() }).contains("1 to 1,024"));
    assert!(said(&Launch { grid: [0, 1, 1], ..fits.clone() }).contains("a grid of"));
    assert!(
        said(&Launch { parameters: &[], ..fits.clone() })
            .contains("0 parameters are given; it has 1")
    );
    assert!(
        said(&Launch { parameters: &[vec![0; 4]], ..fits.clone() })
            .contains("given 4 bytes and has 8")
    );
    assert!(
        said(&Launch { dynamic_shared: 100_000, ..fits.clone() })
            .contains("bytes of shared memory")
    );
    assert!(device.launch(&image, &fits).is_ok());
}

#[test]
fn memory_is_counted_in_sectors_and_banks() {
    let load = |stride: u32| {
        let body = format!(
            "mul.lo.u32 %r1, %t, {stride};\ncvt.u64.u32 %d1, %r1;\nadd.u64 %d1, %d1, %out;\n\
             ld.global.u32 %r2, [%d1];"
        );
        run(&body, 32).1
    };
    assert_eq!([0, 4, 8, 32, 128].map(|stride| load(stride).total.sectors), [1, 4, 8, 32, 32]);
    let shared = |stride: u32, ty: &str, register: &str| {
        let body = format!(
            "mov.u32 %r2, s;\nmad.lo.u32 %r1, %t, {stride}, %r2;\nmov.b64 %d1, 0;\nmov.b32 %r3, 0;\n\
             st.shared.{ty} [%r1], {register};"
        );
        let text = kernel(".shared .align 16 .b8 s[8192];", &body);
        launch(&text, 1, 32).unwrap().1
    };
    // All lanes in one bank: 32 cycles instead of one. The same word for all: one.
    let conflicts =
        [4, 8, 128, 132, 0].map(|stride| shared(stride, "u32", "%r3").total.bank_conflicts);
    assert_eq!(conflicts, [0, 1, 31, 0, 0]);
    assert_eq!(shared(128, "u32", "%r3").cycles - shared(4, "u32", "%r3").cycles, 31);
    // Eight bytes go by half warps.
    assert_eq!([8, 16].map(|stride| shared(stride, "u64", "%d1").total.bank_conflicts), [0, 2]);
}

#[test]
fn blocks_spread_over_sms_and_the_same_launch_gives_the_same_facts() {
    let body = "mov.u32 %r1, %smid;\nmov.u32 %r2, %ctaid.x;\nmad.wide.u32 %d1, %r2, 4, %out;\n\
                st.global.u32 [%d1], %r1;\nmov.u64 %d2, %clock64;\nmov.u64 %d3, %globaltimer;\nmov.u32 %r3, %nsmid;";
    let text = kernel("", body);
    let (out, facts) = launch(&text, 8, 64).unwrap();
    assert_eq!(out[..8], [0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(facts, launch(&text, 8, 64).unwrap().1);
    assert_eq!((facts.warps.len(), facts.total.instructions), (16, 16 * 11));
    assert!(
        facts.warps.iter().all(|warp| warp.end <= facts.cycles && warp.counts.instructions == 11)
    );
}

#[test]
fn barriers_say_how_long_warps_waited() {
    // Warp 1 works for a while before it comes.
    let (_, facts) = run(
        "setp.lt.u32 %p1, %t, 32;\n@%p1 bra wait;\nmov.u32 %r1, 0;\nagain: add.u32 %r1, %r1, 1;\n\
         setp.lt.u32 %p2, %r1, 50;\n@%p2 bra again;\nwait: bar.sync 0;",
        64,
    );
    let waited: Vec<u64> = facts.warps.iter().map(|warp| warp.counts.barrier_wait).collect();
    let wait = waited.iter().max().unwrap();
    assert!((100..250).contains(wait), "{waited:?}");
    assert_eq!(facts.total.barrier_wait, waited.iter().sum::<u64>());
}

/// Conversions, from the reference's section on `cvt` and IEEE 754.
#[test]
fn conversions_round_saturate_and_flush() {
    let convert = |opcode: &str, to: &str, from: &str, value: &str| {
        let mov = if from.starts_with("%f") {
            "mov.f32"
        } else if from.starts_with("%g") {
            "mov.f64"
        } else {
            "mov.b32"
        };
        let store = match &to[..2] {
            "%f" => format!("st.global.f32 [%at], {to};"),
            "%h" => format!("st.global.u16 [%at], {to};"),
            _ => format!("st.global.u32 [%at], {to};"),
        };
        run(&format!("{mov} {from}, {value};\n{opcode} {to}, {from};\n{store}"), 1).0[0]
    };
    let bits = |value: f32| value.to_bits();
    assert_eq!(convert("cvt.rni.s32.f32", "%r1", "%f1", "2.5"), 2);
    assert_eq!(convert("cvt.rmi.s32.f32", "%r1", "%f1", "-2.5"), -3_i32 as u32);
    assert_eq!(convert("cvt.rpi.u32.f32", "%r1", "%f1", "2.1"), 3);
    assert_eq!(convert("cvt.rzi.u32.f32", "%r1", "%f1", "-7.0"), 0);
    assert_eq!(convert("cvt.rzi.s32.f32", "%r1", "%f1", "1e20"), i32::MAX as u32);
    assert_eq!(convert("cvt.rzi.s32.f32", "%r1", "%f1", "0f7FC00000"), 0);
    assert_eq!(convert("cvt.sat.u8.s32", "%r1", "%r2", "-5"), 0);
    assert_eq!(convert("cvt.sat.s8.s32", "%r1", "%r2", "300"), 127);
    assert_eq!(convert("cvt.s32.s8", "%r1", "%r2", "0xff80"), -128_i32 as u32);
    assert_eq!(convert("cvt.rn.f32.u32", "%f1", "%r2", "0xffffffff"), bits(4_294_967_296.0));
    assert_eq!(convert("cvt.rz.f32.u32", "%f1", "%r2", "0xffffffff"), bits(4_294_967_040.0));
    assert_eq!(
        convert("cvt.rn.f32.f64", "%f1", "%g1", "0d3FF0000010000001"),
        bits(1.0_f32.next_up())
    );
    assert_eq!(convert("cvt.rn.f16.f32", "%h1", "%f1", "65520.0"), 0x7c00);
    assert_eq!(convert("cvt.rz.f16.f32", "%h1", "%f1", "65520.0"), 0x7bff);
    assert_eq!(convert("cvt.rn.relu.bf16.f32", "%h1", "%f1", "-1.0"), 0);
    assert_eq!(convert("cvt.ftz.sat.f32.f32", "%f1", "%f2", "0f00000001"), 0);
    assert_eq!(convert("cvt.sat.f32.f32", "%f1", "%f2", "3.0"), bits(1.0));
    assert_eq!(convert("cvt.rna.tf32.f32", "%r1", "%f2", "0f3F801000"), 0x3f80_2000);
    assert_eq!(convert("cvt.rni.f32.f32", "%f1", "%f2", "-0.4"), bits(-0.0));
    let (out, _) = run(
        "mov.f32 %f1, 1.0;\nmov.f32 %f2, -2.0;\ncvt.rn.f16x2.f32 %r1, %f1, %f2;\nst.global.u32 [%at], %r1;\n\
         cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;\nst.global.u16 [%at+4], %h1;\n\
         mul.rn.ftz.f32 %f3, %f1, 0f00000001;\nst.global.f32 [%at+8], %f3;\n\
         min.f32 %f4, 0f80000000, 0f00000000;\nst.global.f32 [%at+12], %f4;\n\
         max.NaN.f32 %f5, %f1, 0f7FC00000;\nst.global.f32 [%at+16], %f5;\n\
         max.f32 %f5, %f1, 0f7FC00000;\nst.global.f32 [%at+20], %f5;\n\
         setp.ltu.f32 %p1|%p2, %f1, 0f7FC00000;\nselp.u32 %r2, 1, 0, %p1;\nselp.u32 %r3, 1, 0, %p2;\n\
         st.global.v2.u32 [%at+24], {%r2, %r3};",
        1,
    );
    assert_eq!(out[..3], [0x3c00_c000, 0x38c0, 0]);
    assert_eq!(out[3..8], [0x8000_0000, 0x7fff_ffff, bits(1.0), 1, 0]);
}

#[test]
fn any_text_is_simulated_within_its_limits() {
    let whole =
        kernel(".shared .align 4 .b8 s[64];", "bar.sync 0;\nld.global.v2.u32 {%r1, %r2}, [%out];");
    let mut state = 9_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    let mut reached = 0;
    for _ in 0..2000 {
        let mut bytes = whole.clone().into_bytes();
        for _ in 0..1 + next() % 3 {
            let length = bytes.len();
            let at = next() % length;
            let words =
                [" ", "1", "%r1", ";", "-", "v4", "u64", "@", "{", "99999999999", "local", "b8"];
            let word = words[next() % words.len()];
            bytes.splice(at..(at + next() % 4).min(length), word.bytes());
        }
        let text = String::from_utf8(bytes).unwrap();
        let Ok(module) = Module::read(&text) else { continue };
        let limits =
            Limits { instructions: 1000, memory: 16 << 20, local: 1024, calls: 4, warp_facts: 4 };
        let mut device =
            Device::new(Config { sms: 1, warps_per_sm: 2, limits, ..Config::default() });
        let Ok(image) = device.load(&module) else { continue };
        let out = device.upload(&[0; 256]).unwrap();
        let parameters: Vec<Vec<u8>> = image
            .parameters("k")
            .unwrap_or_default()
            .iter()
            .map(|&bytes| {
                [&out.to_le_bytes()[..], &[0; 64]]
                    .concat()
                    .into_iter()
                    .cycle()
                    .take(bytes as usize)
                    .collect()
            })
            .collect();
        let launch = Launch {
            kernel: "k",
            grid: [2, 1, 1],
            block: [40, 1, 1],
            dynamic_shared: 0,
            parameters: &parameters,
        };
        let result = device.launch(&image, &launch);
        reached += u32::from(matches!(&result, Ok(_) | Err(LaunchError::Fault(_))));
        if let Err(LaunchError::Fault(fault)) = result {
            assert!(!matches!(fault.trouble, Trouble::Undefined("a frame that has ended is used")));
        }
    }
    assert!(reached > 200, "{reached}");
}

#[test]
fn signed_loads_fill_wider_registers_with_their_sign() {
    let body = "st.global.u32 [%at], 0x80fe;\nld.global.s8 %r1, [%at];\nst.global.u32 [%at+4], %r1;\n\
                ld.global.s16 %d1, [%at];\nst.global.u64 [%at+8], %d1;\nld.global.u16 %r1, [%at];\n\
                st.global.u32 [%at+16], %r1;";
    let (out, _) = run(body, 1);
    assert_eq!(out[..5], [0x80fe, 0xffff_fffe, 0xffff_80fe, 0xffff_ffff, 0x80fe]);
}

/// A guard may leave lanes out of an operation of the warp, also where lanes wait for each other.
#[test]
fn lanes_that_a_guard_leaves_out_keep_what_they_have() {
    let (out, _) = run(
        "mov.u32 %r1, 7;\nand.b32 %r2, %t, 1;\nsetp.eq.u32 %p1, %r2, 0;\nsetp.lt.u32 %p2, %t, 16;\n\
         @%p2 bra first;\nadd.u32 %r3, %t, 0;\nadd.u32 %r3, %r3, 0;\nbra met;\nfirst: mov.u32 %r3, %t;\n\
         met: @%p1 shfl.sync.up.b32 %r1, %r3, 2, 0, 0x55555555;\nst.global.u32 [%at], %r1;",
        32,
    );
    let expected = |lane: u32| match (lane % 2, lane) {
        (1, _) => 7,
        (_, 0) => 0,
        _ => lane - 2,
    };
    assert!((0..32).all(|lane| out[lane as usize] == expected(lane)), "{:?}", &out[..32]);
}
