//! Random programs: what the compiler writes, executed, against the reference machine.
//!
//! `GPUWHY_PROGRAMS` says how many; the default takes a second.

mod support;

use gpuwhy_gpubpf::{Options, Program, Stack};
use support::programs::{MEMORY, Random, program};
use support::{machine, ptx};

fn execute(code: &[u8], memory: &[u8], stack: Stack) -> Result<machine::Ended, String> {
    const BASE: u64 = 0x5_0000_0000;
    let program = Program::from_bytes(code, "random").map_err(|e| e.to_string())?;
    let options = Options { stack, ..Options::default() };
    let text = gpuwhy_gpubpf::kernel(&program, &options, "random").map_err(|e| e.to_string())?;
    let mut bytes = memory.to_vec();
    bytes.resize(memory.len() + 8, 0);
    let mut device = ptx::Memory { base: BASE, bytes };
    let length = memory.len() as u64;
    let parameters = [BASE, length, length, BASE + length];
    ptx::run(&text, &parameters, &ptx::Specials::from([("tid.x", 0)]), &mut device)
        .map_err(|why| format!("{why}\n{text}"))?;
    let result = u64::from_le_bytes(device.bytes[memory.len()..].try_into().unwrap());
    device.bytes.truncate(memory.len());
    Ok(machine::Ended { result, memory: device.bytes })
}

#[test]
fn random_programs_end_as_on_the_reference_machine() {
    let count = std::env::var("GPUWHY_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let seed = std::env::var("GPUWHY_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1_u64);
    for number in 0..count {
        let mut random = Random(seed.wrapping_mul(1_000_003).wrapping_add(number));
        let code = program(&mut random);
        let memory: Vec<u8> = (0..MEMORY).map(|_| random.next() as u8).collect();
        let expected = machine::run(&code, &memory, 100_000).unwrap();
        for stack in [Stack::Promote, Stack::Memory] {
            let ended = execute(&code, &memory, stack)
                .unwrap_or_else(|why| panic!("program {number} ({stack:?}): {why}"));
            assert_eq!(ended, expected, "program {number} of seed {seed} ({stack:?})");
        }
    }
    println!("{count} programs");
}
