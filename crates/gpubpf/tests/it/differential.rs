//! Random programs: what the compiler writes, executed, against the reference machine.
//!
//! `GPUWHY_PROGRAMS` says how many; the default takes a second.

use crate::support::programs::{MEMORY, Random, program};
use crate::support::{machine, ptx};
use gpuwhy_gpubpf::{Addresses, Options, Program, Stack};

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

/// Random programs as kernels of one module, as many as NVIDIA's assembler takes at once in bearable time.
#[test]
fn ptxas_assembles_random_programs() {
    const AT_ONCE: u64 = 200;
    let count =
        std::env::var("GPUWHY_ASSEMBLED").ok().and_then(|n| n.parse().ok()).unwrap_or(AT_ONCE);
    let seed = std::env::var("GPUWHY_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1_u64);
    let mut assembled = 0;
    for first in (0..count).step_by(AT_ONCE as usize) {
        let mut text = gpuwhy_gpubpf::MODULE_HEAD.to_owned();
        for number in first..count.min(first + AT_ONCE) {
            let mut random = Random(seed.wrapping_mul(1_000_003).wrapping_add(number));
            let code = program(&mut random);
            let program = Program::from_bytes(&code, "random").unwrap();
            let stack = if number % 4 == 3 { Stack::Memory } else { Stack::Promote };
            let addresses = Addresses::Fixed(Vec::new());
            let options = Options { stack, addresses, ..Options::default() };
            let options = gpuwhy_gpubpf::kernel_options(&options);
            let fragment = gpuwhy_gpubpf::fragment(&program, &options).unwrap();
            text.push_str(&fragment.declarations);
            text.push_str(&gpuwhy_gpubpf::entry(&fragment, &format!("random_{number}")));
        }
        let Some(report) = crate::support::ptxas::assemble(&text, "sm_90") else { return };
        assembled += report.matches("Compiling entry function").count();
    }
    println!("{assembled} of {count} programs assembled");
    assert_eq!(assembled as u64, count);
}
