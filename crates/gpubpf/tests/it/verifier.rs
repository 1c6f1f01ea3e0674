//! Each rule of the verifier with a program that keeps it and one that does not.

use crate::support::{asm, clang};
use gpuwhy_gpubpf::{
    Budget, Certificate, Effect, Map, MapKind, Object, Program, insn::Insn, insn::Wide,
};

/// A program of text, in which `lddw` of a number below 16 is that map: 0 an array of 4 values of
/// 16 bytes, 1 a value of 8 bytes per thread, 2 a ring of records of 16 bytes.
fn program(text: &str) -> Program {
    let code = asm::assemble(text).unwrap();
    let mut program = Program::from_bytes(&code, "kprobe/test").unwrap();
    for insn in &mut program.insns {
        if let Insn::LoadWide { value, .. } = insn
            && let Wide::Number(map @ 0..16) = *value
        {
            *value = Wide::Map(map as u32);
        }
    }
    let map = |name: &str, kind, value_size| Map {
        name: name.into(),
        kind,
        key_size: 4,
        value_size,
        max_entries: 4,
        flags: 0,
    };
    program.maps = vec![
        map("array", MapKind::Array, 16),
        map("threads", MapKind::PerThreadArray, 8),
        map("ring", MapKind::Ring, 16),
    ];
    program
}

fn verify(text: &str, budget: Budget) -> Result<Certificate, String> {
    gpuwhy_gpubpf::verify(&program(text), budget).map_err(|fault| fault.to_string())
}

fn accepted(text: &str) -> Certificate {
    verify(text, Budget::default()).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

fn rejected(text: &str, reason: &str) {
    let why = verify(text, Budget::default()).expect_err(text);
    assert!(why.contains(reason) && why.starts_with("`kprobe/test`, instruction "), "{why}");
}

/// A look-up of key 1 in map `map`, its result in `r0`.
fn look_up(map: u32) -> String {
    format!("stw [%r10-4], 1\nlddw %r1, {map}\nmov %r2, %r10\nadd %r2, -4\ncall 1\n")
}

#[test]
fn registers_and_stack_are_written_before_they_are_read() {
    accepted("mov %r3, 1\nadd %r3, 1\nstxdw [%r10-8], %r3\nldxw %r4, [%r10-8]\nexit");
    rejected("add %r3, 1\nexit", "r3 is used before it is written");
    rejected("stw [%r10-8], 1\nldxdw %r4, [%r10-8]\nexit", "byte -4 of the stack is read before");
    rejected("call 502\nmov %r3, %r2\nexit", "r2 is used before it is written");
}

#[test]
fn the_stack_has_512_bytes() {
    accepted("stdw [%r10-512], 1\nexit");
    rejected("stdw [%r10-516], 1\nexit", "8 bytes at -516 of the stack");
    rejected("stdw [%r10-4], 1\nexit", "8 bytes at -4 of the stack");
    rejected("call 511\nmov %r3, %r10\nadd %r3, %r0\nexit", "moved by what is no constant");
}

#[test]
fn a_look_up_that_may_fail_is_tested() {
    let after = "stdw [%r0], 1\nout:\nexit";
    accepted(&format!("{}jeq %r0, 0, out\n{after}", look_up(1)));
    rejected(&format!("{}{after}", look_up(1)), "may be null; test it");
    // A copy of the address is known to be tested too.
    accepted(&format!("{}mov %r6, %r0\njeq %r0, 0, out\nstdw [%r6], 1\nout:\nexit", look_up(1)));
    // An array holds each key below its size.
    accepted(&format!("{}{after}", look_up(0)));
    rejected(
        &format!("{}stdw [%r0], 1\nexit", look_up(0).replace("-4], 1", "-4], 4")),
        "may be null",
    );
}

#[test]
fn accesses_stay_within_the_value_of_a_map() {
    let indexed = |mask: u32| {
        format!(
            "call 511\nand %r0, {mask}\nmov %r6, %r0\n{}add %r0, %r6\nldxb %r3, [%r0+1]\nexit",
            look_up(0)
        )
    };
    accepted(&indexed(7));
    rejected(&indexed(15), "1 bytes at 1..=16 of a value of map `array`, which has 16");
    accepted(&format!("{}stdw [%r0+8], 1\nexit", look_up(0)));
    rejected(&format!("{}stdw [%r0+12], 1\nexit", look_up(0)), "8 bytes at 12..=12");
    rejected(&format!("{}stdw [%r0-8], 1\nexit", look_up(0)), "8 bytes at -8..=-8");
    rejected("lddw %r1, 0\nldxdw %r2, [%r1]\nexit", "a map is dereferenced");
    rejected("mov %r3, 64\nldxdw %r2, [%r3]\nexit", "is a number and no address");
}

/// At a kernel's entry it is the number of the site, and nothing else.
#[test]
fn of_the_context_is_read_what_its_section_has_and_nothing_is_written() {
    accepted("ldxdw %r2, [%r1]\nexit");
    accepted("ldxw %r2, [%r1+4]\nexit");
    rejected("ldxdw %r2, [%r1+8]\nexit", "8 bytes at 8 of the context, which has 1 words");
    rejected("ldxdw %r2, [%r1-8]\nexit", "8 bytes at -8 of the context");
    rejected("ldxdw %r2, [%r1+4]\nexit", "8 bytes at 4 of the context");
    rejected("stdw [%r1], 1\nexit", "the context is written");
}

#[test]
fn a_branch_on_the_index_bounds_it() {
    let guarded = |limit: u32| {
        format!(
            "call 511\nmov %r6, %r0\n{}jgt %r6, {limit}, out\nadd %r0, %r6\nstb [%r0], 1\nout:\nexit",
            look_up(0)
        )
    };
    accepted(&guarded(15));
    rejected(&guarded(16), "1 bytes at 0..=16");
}

#[test]
fn loops_end() {
    let bounded = "mov %r6, 0\nagain:\nadd %r6, 1\njne %r6, 64, again\nexit";
    assert_eq!(accepted(bounded).thread_instructions, 129);
    rejected("mov %r6, 0\nagain:\nja again\nexit", "a loop without a constant bound");
    rejected(
        "call 502\nagain:\ncall 502\njne %r0, 7, again\nexit",
        "a loop without a constant bound",
    );
}

#[test]
fn values_that_threads_share_are_changed_by_atomics() {
    let change = "ldxdw %r3, [%r0]\nadd %r3, 1\nstxdw [%r0], %r3\nexit";
    rejected(&format!("{}{change}", look_up(0)), "use __sync_fetch_and_add");
    accepted(&format!("{}jeq %r0, 0, exit\n{change}", look_up(1)));
    let added = accepted(&format!("{}mov %r3, 1\nlock add [%r0], %r3\nexit", look_up(0)));
    // One number to one address: one lane adds for its warp. A number of each lane is added by each.
    assert_eq!((added.warp_atomics, added.paths), (1, 1));
    let lanes = "call 511\nmov %r6, %r0\n";
    let own = accepted(&format!("{lanes}{}lock add [%r0], %r6\nexit", look_up(0)));
    assert_eq!((own.warp_atomics, own.paths), (32, 1));
    // So is what lanes add of which some have left the others before, and what they get back.
    let parted = "call 511\njlt %r0, 3, less\nless:\n";
    let some = accepted(&format!("{parted}{}mov %r3, 1\nlock add [%r0], %r3\nexit", look_up(0)));
    assert_eq!(some.warp_atomics, 32);
    let before = accepted(&format!("{}mov %r3, 1\nlock fetch add [%r0], %r3\nexit", look_up(0)));
    assert_eq!(before.warp_atomics, 32);
    // Through the stack it is still the same value.
    rejected(
        &format!(
            "{}ldxdw %r3, [%r0]\nstxdw [%r10-16], %r3\nldxdw %r4, [%r10-16]\nadd %r4, 1\nstxdw [%r0], %r4\nexit",
            look_up(0)
        ),
        "use __sync_fetch_and_add",
    );
    rejected(
        &format!("{}mov %r3, 1\nlock cmpxchg [%r0], %r3\nexit", look_up(0)),
        "compare-and-exchange",
    );
    rejected(&format!("{}mov %r3, 1\nlock add [%r0+4], %r3\nexit", look_up(0)), "not aligned to 8");
}

#[test]
fn a_record_is_written_whole() {
    let send = |size: u32| {
        format!(
            "stdw [%r10-16], 1\nstw [%r10-8], 2\nlddw %r2, 2\nmov %r3, 0\nmov %r4, %r10\nadd %r4, -16\nmov %r5, {size}\ncall 25\nexit"
        )
    };
    accepted(&send(12));
    rejected(&send(16), "byte -4 of the stack is read before it is written");
}

#[test]
fn lanes_that_part_cost_both_ways() {
    let branch =
        |helper: u32| format!("call {helper}\njeq %r0, 3, one\nmov %r3, 1\nmov %r4, 1\none:\nexit");
    // The SM is the same for a whole warp, the lane is not.
    let (whole, parted) = (accepted(&branch(509)), accepted(&branch(511)));
    assert_eq!((whole.paths, parted.paths), (1, 2));
    assert_eq!(accepted(&branch(513)).paths, 1, "nor is the launch's number another one within it");
    assert_eq!(parted.warp_instructions, 2 * whole.warp_instructions);
    let budget = Budget { warp_instructions: 5, ..Budget::default() };
    assert!(verify(&branch(509), budget).is_ok());
    let why = verify(&branch(511), budget).unwrap_err();
    assert!(why.contains("8 instructions for a warp (4 on 2 paths); the budget is 5"), "{why}");
}

#[test]
fn only_what_is_allowed_ends_threads_or_moves_data() {
    let controlling = Budget { effect: Effect::Controlling, ..Budget::default() };
    rejected("call 507\nexit", "the program is controlling; only observing is allowed");
    assert_eq!(verify("call 507\nexit", controlling).unwrap().effect, Effect::Controlling);
    let why = verify("call 511\njeq %r0, 0, out\ncall 507\nout:\nexit", controlling).unwrap_err();
    assert!(why.contains("threads of one warp may part before this exit"), "{why}");
    assert!(verify("call 509\njeq %r0, 0, out\ncall 507\nout:\nexit", controlling).is_ok());
    rejected("mov %r1, 0\ncall 512\nexit", "the program is prefetching");
    rejected("call 5\nexit", "helper 5 does not exist on a GPU");
}

#[test]
fn programs_of_clang_are_accepted_or_refused_with_their_line() {
    let object = Object::read(&clang::object("threadhist", "v3")).unwrap();
    let program = object.link(&object.entries()[0]).unwrap();
    let certificate = gpuwhy_gpubpf::verify(&program, Budget::default()).unwrap();
    assert_eq!((certificate.effect, certificate.warp_atomics), (Effect::Observing, 32));
    let object = Object::read(&clang::object("retsnoop", "v3")).unwrap();
    let entry = object.entries().iter().find(|e| e.name == "retsnoop").unwrap();
    let certificate = gpuwhy_gpubpf::verify(&object.link(entry).unwrap(), Budget::default());
    println!("{certificate:?}");
    assert_eq!(certificate.unwrap().effect, Effect::Observing);
}
