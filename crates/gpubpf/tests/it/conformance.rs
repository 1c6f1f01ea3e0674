//! The 313 files of bpf_conformance and its negatives: decoded, run, compiled, assembled.

use crate::support::{machine, ptx, vectors};
use gpuwhy_gpubpf::{Options, Program, Stack, insn};

/// Files that are refused as specified: a GPU probe calls nothing by address, and helper 5 is the
/// kernel's clock.
const REFUSED: [(&str, &str); 2] =
    [("call_unwind_fail", "helper 5 does not exist on a GPU"), ("callx", "an indirect call")];

fn refused(name: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(refused, _)| *refused == name).map(|(_, why)| *why)
}

#[test]
fn every_file_of_the_suite_gives_its_result_on_the_reference_machine() {
    let Some(vectors) = vectors::read("tests") else { return };
    assert_eq!(vectors.len(), 313);
    let mut passed = 0;
    for vector in &vectors {
        assert_eq!(vector.bad_text, None, "{}", vector.name);
        if refused(&vector.name).is_some() {
            continue;
        }
        let ended = machine::run(&vector.code, &vector.memory, 1_000_000)
            .unwrap_or_else(|why| panic!("{}: {why}", vector.name));
        assert_eq!(Some(ended.result), vector.result, "{}", vector.name);
        passed += 1;
    }
    assert_eq!(passed, 311);
}

#[test]
fn every_file_of_the_suite_compiles_or_is_refused_by_name() {
    let Some(vectors) = vectors::read("tests") else { return };
    let mut in_memory = Vec::new();
    for vector in &vectors {
        let compiled = Program::from_bytes(&vector.code, &vector.name)
            .and_then(|program| gpuwhy_gpubpf::fragment(&program, &Options::default()));
        match (refused(&vector.name), compiled) {
            (None, Ok(fragment)) => {
                assert!(!fragment.body.contains("call"), "{}", vector.name);
                if fragment.local_bytes > 0 {
                    in_memory.push(vector.name.as_str());
                }
            }
            (Some(why), Err(fault)) => {
                assert!(fault.to_string().contains(why), "{fault}");
                assert!(fault.to_string().contains(&format!("`{}`, instruction ", vector.name)));
            }
            (_, other) => panic!("{}: {other:?}", vector.name),
        }
    }
    // In this one the stack is addressed by a register.
    assert_eq!(in_memory, ["stack"]);
}

#[test]
fn instructions_with_unused_fields_that_are_set_are_refused() {
    let Some(vectors) = vectors::read("negative") else { return };
    let unused: Vec<_> = vectors.iter().filter(|v| v.name.starts_with("unused-")).collect();
    assert_eq!(unused.len(), 45);
    for vector in unused {
        assert!(vector.fails && vector.bad_text.is_none(), "{}", vector.name);
        let refused = insn::decode_all(&vector.code, &vector.name);
        let fault = refused.expect_err(&vector.name).to_string();
        let named = ["must be 0", "a cast between", "sign-extends 1 bits"];
        assert!(named.iter().any(|words| fault.contains(words)), "{fault}");
    }
}

/// Every vector as one module, in both forms of the stack.
fn module(stack: Stack) -> Option<String> {
    let mut text = gpuwhy_gpubpf::MODULE_HEAD.to_owned();
    for vector in vectors::read("tests")? {
        if refused(&vector.name).is_none() {
            let program = Program::from_bytes(&vector.code, &vector.name).unwrap();
            let options = gpuwhy_gpubpf::kernel_options(&Options {
                stack,
                addresses: gpuwhy_gpubpf::Addresses::Fixed(Vec::new()),
                ..Options::default()
            });
            let fragment = gpuwhy_gpubpf::fragment(&program, &options).unwrap();
            let name = vector.name.replace('-', "_");
            text.push_str(&fragment.declarations);
            text.push_str(&gpuwhy_gpubpf::entry(&fragment, &name));
        }
    }
    Some(text)
}

/// The suite as modules and a list of what is expected, for a machine with a GPU (`scripts/gpu-pack.sh`).
#[test]
fn the_suite_is_written_for_machines_with_a_gpu() {
    let Some(folder) = std::env::var_os("GPUWHY_MODULES").map(std::path::PathBuf::from) else {
        return;
    };
    let Some(vectors) = vectors::read("tests") else { return };
    for (stack, name) in [(Stack::Promote, "promoted"), (Stack::Memory, "in_memory")] {
        let text = module(stack).unwrap();
        std::fs::write(folder.join(format!("vectors.{name}.ptx")), text).unwrap();
    }
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut list = String::new();
    for vector in vectors.iter().filter(|vector| refused(&vector.name).is_none()) {
        let memory = if vector.memory.is_empty() { "-".into() } else { hex(&vector.memory) };
        let (name, result) = (vector.name.replace('-', "_"), vector.result.unwrap());
        list.push_str(&format!("{name} {result:x} {memory}\n"));
    }
    std::fs::write(folder.join("vectors.txt"), list).unwrap();
}

#[test]
fn ptxas_assembles_every_file_of_the_suite() {
    let Some(promoted) = module(Stack::Promote) else { return };
    let Some(in_memory) = module(Stack::Memory) else { return };
    for (text, name) in [(promoted, "promoted"), (in_memory, "in memory")] {
        let Some(report) = crate::support::ptxas::assemble(&text, "sm_90") else { return };
        let kernels = report.matches("Compiling entry function").count();
        assert_eq!(kernels, 311, "{name}: {report}");
        let spills = report
            .lines()
            .filter(|line| line.contains("spill"))
            .filter(|line| !line.contains("0 bytes spill stores, 0 bytes spill loads"))
            .count();
        assert_eq!(spills, 0, "{name}");
        if name == "promoted" {
            let framed = report
                .lines()
                .filter(|l| l.contains("stack frame") && !l.contains("0 bytes stack frame"))
                .count();
            assert_eq!(framed, 1, "only `stack` addresses its stack by a register");
        }
    }
}

/// What 32 threads of `vector`, each on memory of its own, return, and their memory.
fn execute(
    vector: &vectors::Vector,
    stack: Stack,
    threads: u64,
) -> Result<Vec<machine::Ended>, String> {
    const BASE: u64 = 0x5_0000_0000;
    let program = Program::from_bytes(&vector.code, &vector.name).map_err(|e| e.to_string())?;
    let options = Options { stack, ..Options::default() };
    let text = gpuwhy_gpubpf::kernel(&program, &options, "vector").map_err(|e| e.to_string())?;
    let length = vector.memory.len() as u64;
    let stride = length.next_multiple_of(8);
    let mut bytes = Vec::new();
    for thread in 0..threads {
        bytes.extend(varied(&vector.memory, thread));
        bytes.resize(((thread + 1) * stride) as usize, 0xee);
    }
    let results = bytes.len();
    bytes.resize(results + threads as usize * 8, 0);
    let mut memory = ptx::Memory { base: BASE, bytes };
    let parameters = [BASE, stride, length, BASE + results as u64];
    for thread in 0..threads {
        ptx::run(&text, &parameters, &ptx::Specials::from([("tid.x", thread)]), &mut memory)?;
    }
    let ended = (0..threads as usize).map(|thread| {
        let at = results + thread * 8;
        let start = thread * stride as usize;
        machine::Ended {
            result: u64::from_le_bytes(memory.bytes[at..at + 8].try_into().unwrap()),
            memory: memory.bytes[start..start + length as usize].to_vec(),
        }
    });
    Ok(ended.collect())
}

/// The memory of thread 0 is the vector's; those of the others differ from it.
fn varied(memory: &[u8], thread: u64) -> Vec<u8> {
    memory.iter().map(|byte| byte.wrapping_add((thread * 37) as u8)).collect()
}

#[test]
fn what_the_compiler_writes_computes_what_every_file_expects() {
    let Some(vectors) = vectors::read("tests") else { return };
    let mut passed = 0;
    for vector in vectors.iter().filter(|v| refused(&v.name).is_none()) {
        for stack in [Stack::Promote, Stack::Memory] {
            for threads in [1, 32] {
                let ended = execute(vector, stack, threads)
                    .unwrap_or_else(|why| panic!("{} ({stack:?}): {why}", vector.name));
                assert_eq!(Some(ended[0].result), vector.result, "{} ({stack:?})", vector.name);
                for (thread, ended) in ended.iter().enumerate() {
                    let memory = varied(&vector.memory, thread as u64);
                    let expected = machine::run(&vector.code, &memory, 1_000_000).unwrap();
                    assert_eq!(*ended, expected, "{} ({stack:?}), thread {thread}", vector.name);
                }
            }
        }
        passed += 1;
    }
    println!(
        "{passed} of {} vectors, with 1 and 32 threads, stack promoted and not",
        vectors.len()
    );
    assert_eq!(passed, 311);
}
