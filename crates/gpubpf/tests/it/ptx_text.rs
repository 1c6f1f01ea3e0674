//! PTX as statements: nothing is lost, and what cannot be read is named with its place.

use gpuwhy_gpubpf::ptx::{Kind, Module};
use gpuwhy_gpubpf::{Options, Program};

const MODULE: &str = include_str!("../../../../fuzz/corpus/ptx_text/module");

#[test]
fn every_byte_comes_back() {
    for text in [MODULE, "", "  // nothing\n", ".version 7.8 .target sm_75 .address_size 64"] {
        let module = Module::read(text).unwrap();
        assert_eq!(module.rebuild(), text);
        let mut end = 0;
        for statement in module.statements() {
            assert_eq!(statement.begin, end, "statements lie side by side");
            assert!(statement.begin <= statement.start && statement.start < statement.end);
            end = statement.end;
        }
    }
    let zeros = format!("{MODULE}\0\0");
    assert_eq!(Module::read(&zeros).unwrap().rebuild(), zeros);
}

#[test]
fn functions_and_their_bodies_are_found() {
    let module = Module::read(MODULE).unwrap();
    let functions: Vec<(&str, bool, bool)> =
        module.functions().iter().map(|f| (&*f.name, f.kernel, f.body.is_some())).collect();
    assert_eq!(functions, [("vprintf", false, false), ("scale", true, true)]);
    let (open, close) = module.functions()[1].body.unwrap();
    let kinds = [open, close].map(|at| module.statements()[at].kind);
    assert_eq!(kinds, [Kind::Open, Kind::Close]);
    assert!(module.code(&module.statements()[close + 1]).starts_with(".section"));
}

#[test]
fn instructions_are_taken_apart() {
    let module = Module::read(MODULE).unwrap();
    let found: Vec<_> =
        module.statements().iter().filter_map(|statement| module.instruction(statement)).collect();
    let names: Vec<&str> = found.iter().map(|insn| insn.name()).collect();
    assert_eq!(names, ["setp", "bra", "ld", "ret", "call", "mad", "ret"]);
    assert_eq!(found[0].operands, ["%p1|%p2", "%r1", "-4"]);
    let guard = found[1].guard.unwrap();
    assert_eq!((guard.negated, guard.predicate), (true, "%p1"));
    assert_eq!(found[2].opcode, "ld.global.L1::evict_last.v4.f32");
    assert_eq!(found[2].operands, ["{%f1, %f2, %f3, %f4}", "[%rd1+16]"]);
    let guard = found[3].guard.unwrap();
    assert_eq!((guard.negated, guard.predicate), (false, "%p2"));
    assert_eq!(found[4].operands, ["(retval0)", "vprintf", "(\n\tparam0\n\t)"]);
    assert_eq!(found[5].operands[2], "0f3F800000");
    let labels: Vec<&str> = module
        .statements()
        .iter()
        .filter(|statement| statement.kind == Kind::Label)
        .map(|statement| module.code(statement))
        .collect();
    assert_eq!(labels, ["$again:", "$L__BB0_2:"]);
}

#[test]
fn what_the_compiler_writes_is_read() {
    let exit = [0x95, 0, 0, 0, 0, 0, 0, 0];
    let program = Program::from_bytes(&exit, "test").unwrap();
    let text = gpuwhy_gpubpf::kernel(&program, &Options::default(), "k").unwrap();
    let module = Module::read(&text).unwrap();
    assert_eq!((module.rebuild(), module.functions().len()), (text.clone(), 1));
}

#[test]
fn what_is_no_ptx_is_refused_with_its_place() {
    let kernel = |body: &str| format!(".version 7.8\n.entry k()\n{{\n{body}\n}}\n");
    let refusals = [
        (kernel("\tret"), "line 5, column 1: a bracket closes what is not open"),
        (kernel("\tmov.u32 %r1, ; ret;"), "line 4, column 16: an operand is missing"),
        (kernel("@ ;"), "line 4, column 3: a guard without a predicate"),
        (kernel("@%p 7;"), "line 4, column 5: an opcode is expected"),
        (kernel("\t.pragma \"x"), "line 4, column 10: a string without an end"),
        (kernel("/* x"), "line 4, column 1: a comment without an end"),
        (kernel("\tadd é;"), "line 4, column 6: a character that PTX does not have"),
        (kernel("\tld [%r1;"), "line 4, column 9: a bracket is not closed"),
        (".entry k() { ret;".into(), "line 1, column 12: the text ends within this function"),
        (".entry () { ret; }".into(), "line 1, column 1: a function without a name"),
        (".entry k() ret;".into(), "line 1, column 12: a body in braces is expected"),
        ("ret;".into(), "line 1, column 1: a statement is expected"),
        ("}".into(), "line 1, column 1: a statement is expected"),
        (kernel(".func f() { }"), "line 4, column 1: a function within a function"),
        (kernel(&"{".repeat(1000)), "line 4, column 256: blocks are nested too deep"),
        (kernel(&format!("add {};", "[".repeat(1000))), "line 4, column 261: brackets are nested"),
    ];
    for (text, told) in refusals {
        let fault = Module::read(&text).map(|_| ()).expect_err(&text).to_string();
        assert!(fault.contains(told), "{fault}\nfor {told}\n{text}");
    }
}

#[test]
fn cut_and_garbled_text_never_panics_and_what_is_read_comes_back() {
    let mut read = 0;
    for end in (0..MODULE.len()).filter(|&end| MODULE.is_char_boundary(end)) {
        if let Ok(module) = Module::read(&MODULE[..end]) {
            assert_eq!(module.rebuild(), MODULE[..end]);
            read += 1;
        }
    }
    assert!(read > 10, "{read}");
    let mut state = 1_u64;
    for _ in 0..5000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut bytes = MODULE.as_bytes().to_vec();
        let at = (state >> 33) as usize % bytes.len();
        bytes[at] = b"{}()[];:@\"/*.%\0"[(state >> 24) as usize % 15];
        let text = String::from_utf8(bytes).unwrap();
        if let Ok(module) = Module::read(&text) {
            assert_eq!(module.rebuild(), text);
        }
    }
}
