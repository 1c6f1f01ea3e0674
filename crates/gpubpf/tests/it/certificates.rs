//! Random programs that the verifier accepts: none of them faults, none executes more than its certificate says, and the
//! certificate is near to what is executed.
//!
//! `GPUWHY_PROGRAMS` says how many programs; the default takes a second.

use std::collections::BTreeSet;

use crate::support::programs::{Random, for_a_place};
use crate::support::{machine, warps};
use gpuwhy_gpubpf::{Budget, Options, Program, verify};

/// Words of a tracepoint's context.
const WORDS: usize = 9;
/// Warps with which each program runs.
const WARPS: usize = 8;

/// What 32 lanes find; lanes of one kind find the same.
fn memories(random: &mut Random) -> Vec<Vec<u8>> {
    let word = |random: &mut Random| {
        let small = random.below(64);
        random.pick(&[0, 1, small, u64::MAX, random.0, random.0 >> 32, random.0 & 0xffff])
    };
    let kinds = random.pick(&[1, 4, 32]);
    let kinds: Vec<Vec<u8>> =
        (0..kinds).map(|_| (0..WORDS).flat_map(|_| word(random).to_le_bytes()).collect()).collect();
    let mut memories: Vec<Vec<u8>> =
        (0..32).map(|lane| kinds[lane % kinds.len()].clone()).collect();
    // The place's number.
    memories.iter_mut().for_each(|memory| memory[..8].copy_from_slice(&7_u64.to_le_bytes()));
    memories
}

fn middle(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

#[test]
fn accepted_programs_do_not_fault_nor_exceed_their_certificate_which_is_near() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
    };
    let (count, seed) = (number("GPUWHY_PROGRAMS", 300), number("GPUWHY_SEED", 1));
    let budget = Budget { warp_instructions: 1 << 20, ..Budget::default() };
    let (mut of_thread, mut of_warp, mut refused) = (Vec::new(), Vec::new(), 0);
    for at in 0..count {
        let mut random = Random(seed.wrapping_mul(1_000_003).wrapping_add(at));
        let code = for_a_place(&mut random);
        let mut program = Program::from_bytes(&code, "program").unwrap();
        program.section = "gpu/tp/place".into();
        let Ok(certificate) = verify(&program, budget) else {
            refused += 1;
            continue;
        };
        let text = gpuwhy_gpubpf::kernel(&program, &Options::default(), "program").unwrap();
        let (mut thread, mut warp) = (0, 0);
        for _ in 0..WARPS {
            let memories = memories(&mut random);
            let (mut paths, mut expected) = (BTreeSet::new(), Vec::new());
            for memory in &memories {
                let mut path = Vec::new();
                let ended = machine::run_along(&code, memory, 100_000, |pc| path.push(pc));
                expected.push(ended.unwrap());
                // Its end is none of a program's instructions.
                path.pop();
                thread = thread.max(path.len());
                paths.insert(path);
            }
            warp = warp.max(paths.iter().map(Vec::len).sum::<usize>());
            let (ended, _) = warps::run(&text, "program", &memories)
                .unwrap_or_else(|why| panic!("program {at} of seed {seed}: {why}"));
            assert_eq!(ended, expected, "program {at} of seed {seed}");
        }
        let bound = (certificate.thread_instructions, certificate.warp_instructions);
        assert!(
            bound.0 >= thread as u64 && bound.1 >= warp as u64,
            "program {at} of seed {seed}: {certificate:?}, and {thread} and {warp} were executed"
        );
        of_thread.push(bound.0 as f64 / thread as f64);
        of_warp.push(bound.1 as f64 / warp as f64);
    }
    let accepted = of_thread.len();
    let (thread, warp) = (middle(of_thread), middle(of_warp));
    println!(
        "{accepted} of {count} programs accepted; bound to actual, median: {thread:.3} of a thread, {warp:.3} of a warp"
    );
    assert!(accepted as u64 * 2 > count, "{refused} are refused");
    assert!(thread <= 1.5, "{thread}");
}
