//! What the compiler writes, run by whole warps in the simulator: the conformance files, random
//! programs whose lanes part, and compilers with mistakes.
//!
//! `GPUWHY_PROGRAMS` says how many random programs; the default takes a second.

use crate::support::programs::{MEMORY, Random, with_loads};
use crate::support::{machine, vectors, warps};
use gpuwhy_gpubpf::{Options, Program, Stack};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

fn compiled(code: &[u8], stack: Stack) -> Result<String, String> {
    let program = Program::from_bytes(code, "program").map_err(|e| e.to_string())?;
    let options = Options { stack, ..Options::default() };
    gpuwhy_gpubpf::kernel(&program, &options, "program").map_err(|e| e.to_string())
}

/// The memory of thread 0 is the vector's; those of the others differ from it.
fn varied(memory: &[u8], thread: u64) -> Vec<u8> {
    memory.iter().map(|byte| byte.wrapping_add((thread * 37) as u8)).collect()
}

#[test]
fn every_vector_of_the_suite_gives_its_result_in_a_warp() {
    let Some(vectors) = vectors::read("tests") else { return };
    let (mut passed, mut refused) = (0, Vec::new());
    for vector in &vectors {
        let mut ran = 0;
        for stack in [Stack::Promote, Stack::Memory] {
            let Ok(text) = compiled(&vector.code, stack) else { continue };
            for threads in [1, 32] {
                let memories: Vec<_> = (0..threads).map(|t| varied(&vector.memory, t)).collect();
                let (ended, _) = warps::run(&text, "program", &memories)
                    .unwrap_or_else(|why| panic!("{} ({stack:?}): {why}", vector.name));
                assert_eq!(Some(ended[0].result), vector.result, "{} ({stack:?})", vector.name);
                for (thread, (ended, memory)) in ended.iter().zip(&memories).enumerate() {
                    let expected = machine::run(&vector.code, memory, 1_000_000).unwrap();
                    assert_eq!(*ended, expected, "{} ({stack:?}), thread {thread}", vector.name);
                }
                ran += 1;
            }
        }
        match ran {
            4 => passed += 1,
            _ => refused.push(vector.name.as_str()),
        }
    }
    println!("{passed} of {} vectors, 1 and 32 threads, stack promoted and not", vectors.len());
    // An indirect call, and a helper of the host: refused by name (`conformance.rs`).
    assert_eq!(refused, ["call_unwind_fail", "callx"]);
    assert_eq!(passed, 311);
}

/// A program, and memory for each of 32 lanes.
fn situation(seed: u64, at: u64) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut random = Random(seed.wrapping_mul(1_000_003).wrapping_add(at));
    let code = with_loads(&mut random, 6);
    // Some lanes have the same memory, so that they stay together where others leave.
    let kinds = random.pick(&[1, 2, 5, 32]);
    let kinds: Vec<Vec<u8>> =
        (0..kinds).map(|_| (0..MEMORY).map(|_| random.next() as u8).collect()).collect();
    let memories = (0..32).map(|lane| kinds[lane % kinds.len()].clone()).collect();
    (code, memories)
}

#[test]
fn random_programs_end_in_every_lane_as_on_the_reference_machine() {
    let (count, seed) = (number("GPUWHY_PROGRAMS", 150), number("GPUWHY_SEED", 1));
    let (mut parted, mut lanes, mut instructions) = (0, 0, 0);
    for at in 0..count {
        let (code, memories) = situation(seed, at);
        let run = |memory: &Vec<u8>| machine::run(&code, memory, 100_000).unwrap();
        let expected: Vec<machine::Ended> = memories.iter().map(run).collect();
        for stack in [Stack::Promote, Stack::Memory] {
            let text = compiled(&code, stack).unwrap();
            let (ended, facts) = warps::run(&text, "program", &memories)
                .unwrap_or_else(|why| panic!("program {at} of seed {seed} ({stack:?}): {why}"));
            assert_eq!(ended, expected, "program {at} of seed {seed} ({stack:?})");
            parted += u64::from(facts.total.divergent_branches > 0);
            lanes += facts.total.lanes;
            instructions += facts.total.instructions;
        }
    }
    println!(
        "{count} programs of seed {seed} in two forms; lanes parted in {parted} runs; {instructions} \
         instructions of warps with {:.1} lanes",
        lanes as f64 / instructions as f64
    );
    // Without branches that part lanes this test would show nothing.
    assert!(parted > count / 2, "{parted}");
}

/// A mistake: what the compiler writes, and what it would write instead.
type Mistake = (&'static str, fn(&str) -> Option<String>);

/// The line with `from` replaced by `to`, if it has it.
fn swap(line: &str, from: &str, to: &str) -> Option<String> {
    line.contains(from).then(|| line.replacen(from, to, 1))
}

/// Swaps the two operands behind the result of an instruction that begins with `opcode`.
fn swapped(line: &str, opcode: &str) -> Option<String> {
    let (head, rest) = line.split_once(' ')?;
    if head.trim() != opcode {
        return None;
    }
    let parts: Vec<&str> = rest.trim_end_matches(';').split(',').map(str::trim).collect();
    match parts[..] {
        [d, a, b] => Some(format!("{head} {d}, {b}, {a};")),
        [d, address, a, b] => Some(format!("{head} {d}, {address}, {b}, {a};")),
        _ => None,
    }
}

const MISTAKES: [Mistake; 24] = [
    ("a 64-bit shift to the right that loses the sign", |l| swap(l, "shr.s64", "shr.u64")),
    ("a 32-bit shift to the right that loses the sign", |l| swap(l, "shr.s32", "shr.u32")),
    ("counts of 64-bit shifts that are not masked", |l| {
        if l.contains("and.b32") { swap(l, ", 63;", ", 127;") } else { None }
    }),
    ("counts of 32-bit shifts that are not masked", |l| {
        if l.contains("and.b32") { swap(l, ", 31;", ", 63;") } else { None }
    }),
    ("division by zero that is not caught", |l| {
        if l.contains("selp") && l.contains(", 1, ") && l.contains("p0") {
            Some(String::new())
        } else {
            None
        }
    }),
    ("division by -1 that does not negate", |l| (l.contains("p1 neg")).then(String::new)),
    ("a remainder by zero that is not the dividend", |l| {
        if l.contains("selp") && l.contains("t0, %gw_p0") { swapped_selp(l) } else { None }
    }),
    ("bytes in another order", |l| swap(l, "0x0123", "0x1032")),
    ("16 bits in another order", |l| swap(l, "0x4401", "0x4410")),
    ("an unsigned comparison that is signed", |l| swap(l, "setp.gt.u64", "setp.gt.s64")),
    ("a comparison without equality", |l| swap(l, "setp.ge.s32", "setp.gt.s32")),
    ("a signed 32-bit comparison that is unsigned", |l| swap(l, "setp.lt.s32", "setp.lt.u32")),
    ("a jump the other way", |l| swap(l, "@%gw_p0 bra", "@!%gw_p0 bra")),
    ("sign extension that extends zeros", |l| swap(l, "cvt.s64.s16", "cvt.u64.u16")),
    ("a 32-bit result with its sign above", |l| swap(l, "cvt.u64.u32", "cvt.s64.s32")),
    ("a signed load that is unsigned", |l| swap(l, "ld.s16", "ld.u16")),
    ("bytes of the stack at the wrong place", |l| {
        if l.contains("bfi.b32") { swap(l, ", 8, 8;", ", 16, 8;") } else { None }
    }),
    ("bytes of the stack that are read with a sign", |l| swap(l, "bfe.u32", "bfe.s32")),
    ("halves of a word of the stack the wrong way round", |l| {
        let (head, pair) = l.split_once('{').filter(|(head, _)| head.contains("mov.b64"))?;
        let (pair, rest) = pair.split_once('}')?;
        let (low, high) = pair.split_once(',')?;
        Some(format!("{head}{{{}, {}}}{rest}", high.trim(), low.trim()))
    }),
    ("a cell of the stack that is not cleared", |l| {
        (l.contains("mov.b32 %gw_s") && l.ends_with(", 0;")).then(String::new)
    }),
    ("an atomic addition that is an or", |l| swap(l, ".add.u64", ".or.b64")),
    ("compare and exchange with its operands swapped", |l| {
        let head = l.trim().split(' ').next()?;
        if head.contains(".cas.") { swapped(l, head) } else { None }
    }),
    ("a 32-bit store of 16 bits", |l| swap(l, "st.b32", "st.b16")),
    ("a subtraction the wrong way round", |l| swapped(l, "sub.s64")),
];

fn swapped_selp(line: &str) -> Option<String> {
    let (head, rest) = line.split_once(' ')?;
    let parts: Vec<&str> = rest.trim_end_matches(';').split(',').map(str::trim).collect();
    let [d, a, b, p] = parts[..] else { return None };
    Some(format!("{head} {d}, {b}, {a}, {p};"))
}

fn planted(text: &str, mistake: fn(&str) -> Option<String>) -> Option<String> {
    let mut found = false;
    let lines: Vec<String> = text
        .lines()
        .map(|line| match mistake(line) {
            Some(wrong) => {
                found = true;
                wrong
            }
            None => line.to_owned(),
        })
        .collect();
    found.then(|| lines.join("\n"))
}

/// A compiler with a mistake is found by random programs: by a wrong result, or by what the simulator
/// refuses to do.
#[test]
fn mistakes_of_the_compiler_are_caught() {
    let mut caught = [false; MISTAKES.len()];
    let mut tried = [0; MISTAKES.len()];
    for at in 0..400 {
        let (code, memories) = situation(11, at);
        let stack = if at % 4 == 3 { Stack::Memory } else { Stack::Promote };
        let text = compiled(&code, stack).unwrap();
        let mut expected = None;
        for (mistake, (_, change)) in MISTAKES.iter().enumerate() {
            if caught[mistake] {
                continue;
            }
            let Some(wrong) = planted(&text, *change) else { continue };
            tried[mistake] += 1;
            let expected = expected.get_or_insert_with(|| {
                let run = |memory: &Vec<u8>| machine::run(&code, memory, 100_000).unwrap();
                let expected = memories.iter().map(run).collect::<Vec<_>>();
                // Without the mistake nothing is wrong.
                assert_eq!(warps::run(&text, "program", &memories).unwrap().0, expected);
                expected
            });
            caught[mistake] = match warps::run(&wrong, "program", &memories) {
                Ok((ended, _)) => ended != *expected,
                Err(_) => true,
            };
        }
    }
    let missed: Vec<&str> =
        (0..MISTAKES.len()).filter(|&m| !caught[m]).map(|m| MISTAKES[m].0).collect();
    println!("{} of {} mistakes caught", MISTAKES.len() - missed.len(), MISTAKES.len());
    assert!(tried.iter().all(|&count| count > 0), "never planted: {tried:?}");
    assert!(missed.is_empty(), "missed: {missed:?}");
}
