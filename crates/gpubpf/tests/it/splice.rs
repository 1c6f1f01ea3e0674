//! Programs put into kernels: where they stand, what they know there, and what stays as it was.

use std::num::NonZeroU32;

use crate::support::clang;
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::splice::{How, Plan, Refusal, Spliced};
use gpuwhy_gpubpf::{Object, Program};

const WALK: &str = include_str!("../modules/walk.ptx");

/// `r0 = *(u64 *)(r1 + 8 * word); exit`, attached as `section` says.
fn reader(section: &str, word: u8) -> Program {
    let bytes = [0x79, 0x10, 8 * word, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    Program::from_bytes(&bytes, section).unwrap()
}

/// `r0 = 0; exit`.
fn idle(section: &str) -> Program {
    let bytes = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    Program::from_bytes(&bytes, section).unwrap()
}

fn quiet() -> How {
    How { switch: false, ..How::default() }
}

fn splice(program: Program, text: &str) -> Result<Spliced, Refusal> {
    let mut plan = Plan::new(quiet());
    plan.program(program);
    plan.splice(&Module::read(text).unwrap())
}

/// The module's own text, from the spliced one.
fn without(spliced: &Spliced) -> String {
    let (mut own, mut from) = (String::new(), 0);
    for range in &spliced.inserted {
        own.push_str(&spliced.text[from..range.start]);
        from = range.end;
    }
    own + &spliced.text[from..]
}

/// Instructions and labels of the kernel's text from the first line with a probe to one line after the
/// last, one a line, where a probe is `<<…>>` with its condition: what a reader has to check.
fn shape(section: &str) -> String {
    let spliced = splice(idle(section), WALK).unwrap();
    assert_eq!(without(&spliced), WALK, "{section}");
    Module::read(&spliced.text).unwrap();
    let (mut marked, mut from) = (String::new(), 0);
    // The first insertion is the table.
    for range in &spliced.inserted[1..] {
        marked.push_str(&spliced.text[from..range.start]);
        let inserted = &spliced.text[range.clone()];
        if inserted.contains("%gw_p<3>") {
            marked.push_str("<<");
        }
        let lines = inserted.lines().map(str::trim);
        let told = lines.filter(|line| {
            (line.starts_with('@') && line.contains("bra")) || line.starts_with("mov.pred")
        });
        marked.push_str(&told.collect::<Vec<_>>().join(" "));
        marked.push_str(if inserted.contains("gw_end:\n}") { ">>" } else { "" });
        from = range.end;
    }
    marked.push_str(&spliced.text[from..]);
    let lines: Vec<String> =
        marked.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let first = lines.iter().position(|line| line.contains("<<")).unwrap_or(0);
    let last = lines.iter().rposition(|line| line.contains(">>")).unwrap_or(0);
    let near = |at: usize| lines[at].contains("<<") || lines[at].contains(">>");
    let kept = (first..=last).filter(|&at| near(at)).map(|at| lines[at].clone());
    kept.collect::<Vec<_>>().join("\n")
}

#[test]
fn probes_stand_where_the_section_says() {
    let situations = [
        ("kprobe/walk", "<<>>.loc 1 3 0"),
        // A condition of the return is the probe's too; `exit` in a function that the kernel calls
        // ends the thread as well, and its `ret` does not.
        (
            "kretprobe/_Z4walk*",
            "<<@!%p3 bra gw_end;>>@%p3 ret;\n<<>>ret;\n<<@!%p1 bra gw_end;>>@%p1 exit;",
        ),
        // Generic loads count, shared ones do not; the pragma stays with its load.
        ("gpu/insn/loads/walk", "<<>>.pragma \"used_bytes_mask 0xfff\";\n<<>>ld.u32 %r2, [%rd1];"),
        ("gpu/insn/stores", "<<@!%p2 bra gw_end;>>@%p2 st.global.f32 [%rd2+-4], %f5;"),
        ("gpu/insn/atomics", "<<>>red.global.gpu.add.u32 [table+4], 1;"),
        ("gpu/insn/barriers", "<<>>bar.sync 0;"),
        ("gpu/insn/ld.shared*", "<<@%p2 bra gw_end;>>@!%p2 ld.shared.f32 %f5, [tile+8];"),
        (
            "gpu/insnret/ld.shared*",
            "<<mov.pred gw_p2, %p2;@!%p2 ld.shared.f32 %f5, [tile+8];@gw_p2 bra gw_end;>>",
        ),
        // Nothing comes between a call and its parameters and results.
        ("gpu/insn/call*", "<<>>.param .b32 param0;"),
        ("gpu/insnret/call*", "ld.param.b32 %r3, [retval0];<<>>"),
        // A line that the compiler split has a probe at each part.
        (
            "gpu/line/walk.cu:7",
            "<<>>@!%p2 ld.shared.f32 %f5, [tile+8];\n<<>>red.global.gpu.add.u32 [table+4], 1;",
        ),
        ("gpu/line/src/walk.cu:10/walk", "<<>>ret;"),
        ("gpu/tp/st?p", ".pragma \"gpuwhy_tp step %r2, %f1\";<<>>"),
    ];
    for (section, wanted) in situations {
        let told = shape(section).replace("%gw_", "gw_");
        // A probe after a statement is on lines of its own.
        let told: Vec<&str> = told.lines().collect();
        let wanted: Vec<&str> = wanted.lines().filter(|line| line.contains(['<', '>'])).collect();
        assert_eq!(told, wanted, "{section}");
    }
}

/// The lines that put word `word` of the context together.
fn word(section: &str, word: u8) -> String {
    let spliced = splice(reader(section, word), WALK).unwrap();
    let all: String = spliced.inserted[1..].iter().map(|r| &spliced.text[r.clone()]).collect();
    let register = format!("%gw_c{word}");
    let lines = all.lines().map(str::trim);
    let told = lines.filter(|line| {
        (line.contains(&register) || line.contains("%gw_w0,") || line.contains("%gw_w0;"))
            && !line.starts_with(".reg")
            && !line.starts_with("shr")
    });
    told.collect::<Vec<_>>().join(" ").replace("%gw_", "")
}

#[test]
fn a_program_reads_address_size_and_kind_of_what_it_is_attached_to() {
    for (section, at, wanted) in [
        ("gpu/insn/ld.global*", 1, "mov.b64 c1, %rd2; add.s64 c1, c1, 16;"),
        ("gpu/insn/ld.global*", 2, "mov.b64 c2, 0x10;"),
        ("gpu/insn/ld.global*", 3, "mov.b64 c3, 0x101;"),
        ("gpu/insn/stores", 1, "mov.b64 c1, %rd2; add.s64 c1, c1, -4;"),
        ("gpu/insn/stores", 3, "mov.b64 c3, 0x102;"),
        ("gpu/insn/ld.shared*", 1, "mov.u64 c1, tile; add.s64 c1, c1, 8;"),
        ("gpu/insn/ld.shared*", 3, "mov.b64 c3, 0x201;"),
        ("gpu/insn/atomics", 1, "mov.u64 c1, table; cvta.global.u64 c1, c1; add.s64 c1, c1, 4;"),
        ("gpu/insn/barriers", 1, "mov.b64 c1, 0x0;"),
        // Arguments of a tracepoint: a 32-bit register, the bits of a float, and none.
        ("gpu/tp/step", 1, "mov.b32 w0, %r2; cvt.u64.u32 c1, w0;"),
        ("gpu/tp/step", 2, "mov.b32 w0, %f1; cvt.u64.u32 c2, w0;"),
        ("gpu/tp/step", 3, "mov.b64 c3, 0x0;"),
    ] {
        assert_eq!(word(section, at), wanted, "{section} {at}");
    }
}

#[test]
fn sites_are_numbered_and_named_with_their_source_line() {
    let spliced = splice(reader("gpu/insn/accesses", 0), WALK).unwrap();
    let told: Vec<String> = spliced
        .sites
        .iter()
        .map(|site| format!("{} {}", site.function, site.source.as_deref().unwrap_or("-")))
        .collect();
    let path = "/home/user/src/walk.cu";
    assert_eq!(
        told,
        [
            format!("_Z4walkPKfPfi {path}:6"),
            format!("_Z4walkPKfPfi {path}:7"),
            format!("_Z4walkPKfPfi {path}:7"),
            "_Z5helpri -".to_owned(),
        ]
    );
    for number in 0..4 {
        assert!(spliced.text.contains(&format!("mov.b64 %gw_c0, {number:#x};")), "{number}");
    }
    assert_eq!(spliced.kernels[0].sites, 4);
    assert_eq!(spliced.kernels[0].readable, "walk(float const*, float*, int)");
    let line = WALK.lines().nth(spliced.sites[2].line - 1).unwrap();
    assert!(line.contains("red.global"), "{line}");
}

#[test]
fn a_module_without_such_a_kernel_or_place_comes_back_as_it_was_and_says_so() {
    for (section, said) in [
        ("kprobe/other", "no kernel of the module is one that a program is attached to"),
        ("uprobe/walk", "no kernel of the module is one that a program is attached to"),
        ("gpu/line/walk.cu:77", "its kernels match, and have no such place"),
        ("gpu/line/alk.cu:7", "its kernels match, and have no such place"),
        ("gpu/insnret/bra*", "its kernels match, and have no such place"),
    ] {
        let spliced = splice(idle(section), WALK).unwrap();
        assert_eq!(spliced.text, WALK, "{section}");
        assert!(spliced.sites.is_empty() && spliced.inserted.is_empty());
        assert_eq!(spliced.notes.last().unwrap(), said, "{section}");
    }
    let spliced = splice(idle("gpu/insnret/bra*"), WALK).unwrap();
    assert_eq!(spliced.notes[0], "_Z4walkPKfPfi: 2 instructions have nothing after them");
}

#[test]
fn what_cannot_be_spliced_is_refused_by_name() {
    let old = WALK.replace(".version 8.8", ".version 5.0").replace("sm_90", "sm_60");
    let narrow = WALK.replace(".address_size 64", ".address_size 32");
    let spliced = splice(idle("kprobe/*"), WALK).unwrap().text;
    let membar = [0x85, 0, 0, 0, 0xf6, 1, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let timer = Program::from_bytes(&membar, "kprobe/*").unwrap();
    let ancient = WALK.replace(".version 8.8", ".version 3.0").replace("sm_90", "sm_20");
    let write = [0x7a, 1, 0, 0, 1, 0, 0, 0, 0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let writing = Program::from_bytes(&write, "kprobe/walk").unwrap();
    // It keeps the context on its stack, and compares the stack's address, which therefore must have one.
    let keep = [
        0x7b, 0x1a, 0xf8, 0xff, 0, 0, 0, 0, 0x15, 0x0a, 0, 0, 0, 0, 0, 0, 0x79, 0xa2, 0xf8, 0xff,
        0, 0, 0, 0, 0x79, 0x20, 8, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0,
    ];
    let keeping = Program::from_bytes(&keep, "gpu/insn/loads").unwrap();
    for (program, text, wanted) in [
        (keeping, WALK, "the context is kept in memory, where this program's stack lies"),
        (
            reader("kprobe/walk", 1),
            WALK,
            "program `kprobe/walk`: `kprobe/walk`, instruction 0: 8 bytes at 8 of the context, which has 1 \
             words of 8 bytes in a program of this section",
        ),
        (writing, WALK, "the context is written"),
        (idle("gpu/line/x"), WALK, "`gpu/line/x` is not FILE:NUMBER"),
        (idle("kprobe/*"), &narrow, "its addresses do not have 64 bits (.address_size)"),
        (idle("kprobe/*"), &spliced, "it has a variable `gpuwhy_probe` already"),
        (
            timer,
            &ancient,
            "program `kprobe/*` needs `%globaltimer`: PTX 3.1 and sm_30; the module has PTX 3.0 and sm_20",
        ),
    ] {
        let told = splice(program, text).expect_err(wanted).to_string();
        assert!(told.contains(wanted), "{told}");
    }
    let mut plan = Plan::new(quiet());
    plan.object(&Object::read(&clang::object("entry_count", "v3")).unwrap());
    let told = plan.splice(&Module::read(&old).unwrap()).unwrap_err().to_string();
    assert!(told.contains("needs `red.relaxed.gpu.global.add.u64`: PTX 6.0 and sm_70; the module has PTX 5.0 and sm_60"), "{told}");
    // A program that is refused does not matter to a module that it is not attached to.
    assert!(splice(reader("kprobe/other", 1), WALK).unwrap().sites.is_empty());
}

#[test]
fn names_of_the_module_are_never_those_of_a_probe() {
    // Somebody's kernel uses the names that we would have taken.
    let text =
        WALK.replace("%r2", "%gw_c0").replace("$L__BB0_1", "gw_end").replace("tile", "gw1_0_r");
    let spliced = splice(reader("gpu/insn/accesses", 1), &text).unwrap();
    for range in &spliced.inserted {
        let inserted = &spliced.text[range.clone()];
        assert!(!inserted.contains("gw_c") && !inserted.contains("gw1_0"), "{inserted}");
        assert!(inserted.contains("gw2_") || inserted.contains("gpuwhy_probe"), "{inserted}");
    }
}

#[test]
fn functions_that_other_kernels_call_too_are_left_alone_and_named() {
    let other = ".visible .entry other()\n{\n\tcall.uni _Z5helpri, (p);\n\tcall %rd1, (p), proto;\n\tret;\n}\n";
    let text = format!("{}{other}", WALK.split("\t.file").next().unwrap());
    let spliced = splice(idle("kretprobe/walk"), &text).unwrap();
    let functions: Vec<&str> = spliced.sites.iter().map(|site| &*site.function).collect();
    assert_eq!(functions, ["_Z4walkPKfPfi", "_Z4walkPKfPfi"]);
    let notes = spliced.notes.join("\n");
    assert!(notes.contains("_Z5helpri: not probed by `kretprobe/walk`"), "{notes}");
    assert!(notes.contains("other: calls through a pointer"), "{notes}");
    // For all kernels of the module it is probed.
    let spliced = splice(idle("kretprobe/*"), &text).unwrap();
    assert_eq!(spliced.sites.len(), 4);
}

#[test]
fn a_kernel_whose_text_ends_without_a_return_has_one_there() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    for (body, wanted) in [
        ("", 1),
        ("{ ret; }", 1),
        ("@%p ret;", 2),
        ("bra $L; $L: mov.b32 %r1, 0;", 1),
        ("$L: bra $L;", 0),
        ("trap;", 0),
    ] {
        let text = format!("{head}.entry k() {{ {body} }}");
        let spliced = splice(idle("kretprobe/k"), &text).unwrap();
        assert_eq!(spliced.sites.len(), wanted, "{body}");
        assert_eq!(without(&spliced), text);
    }
    // A loop over the whole kernel: its entry is before the label.
    let text = format!("{head}.entry k() {{ $L: bra $L; }}");
    let spliced = splice(idle("kprobe/k"), &text).unwrap();
    let label = spliced.text.find("$L:").unwrap();
    assert!(spliced.inserted[1].end <= label, "{}", spliced.text);
}

#[test]
fn several_objects_share_one_table() {
    let mut plan = Plan::new(How::default());
    for name in ["entry_count", "return_stamp", "load_count"] {
        plan.object(&Object::read(&clang::object(name, "v3")).unwrap());
    }
    let table = plan.table();
    let maps: Vec<_> = table.maps.iter().map(|(map, word)| (&*map.name, *word)).collect();
    assert_eq!(maps, [("warps", 4), ("events", 7), ("loads", 10)]);
    let switches: Vec<_> = table.switches.iter().map(|(name, word)| (&**name, *word)).collect();
    assert_eq!(switches, [("entry_count", 13), ("return_stamp", 14), ("load_count", 15)]);
    assert_eq!(table.words, 16);
    let spliced = plan.splice(&Module::read(WALK).unwrap()).unwrap();
    assert!(spliced.text.contains(".visible .const .align 8 .b64 gpuwhy_probe[16];"));
    for word in [4, 7, 10, 13, 14, 15] {
        assert!(spliced.text.contains(&format!("[gpuwhy_probe+{}]", 8 * word)), "{word}");
    }
    assert_eq!(spliced.sites.len(), 1 + 3 + 2);
    assert_eq!(without(&spliced), WALK);
}

#[test]
fn one_in_n_blocks_and_warps_is_a_condition_of_the_probe() {
    let n = |n| NonZeroU32::new(n).unwrap();
    let mut plan = Plan::new(How { launches: n(8), blocks: n(10), warps: n(4), ..How::default() });
    plan.program(idle("kprobe/*"));
    let spliced = plan.splice(&Module::read(WALK).unwrap()).unwrap();
    assert_eq!(without(&spliced), WALK);
    let inserted = &spliced.text[spliced.inserted[1].clone()];
    let parts =
        ["%gridid", "536870912;", "%ctaid.z", "%nctaid.x", "%tid.y", "429496730;", "1073741824;"];
    for part in parts.into_iter().chain(["ld.const.u64"]) {
        assert!(inserted.contains(part), "{part}\n{inserted}");
    }
    // Of any 1000 neighbours, and of any stride, one in ten is let through.
    for stride in [1_u32, 2, 7, 64, 132, 1 << 16] {
        let through = (0..1000_u32)
            .filter(|i| i.wrapping_mul(stride).wrapping_mul(0x9E37_79B1) < 429_496_730)
            .count();
        assert!((80..=120).contains(&through), "{stride}: {through}");
    }
}

#[test]
fn ptxas_assembles_every_kind_of_probe_and_keeps_debug_information() {
    let sections = [
        "kprobe/*",
        "kretprobe/*",
        "kprobe/__memcapture",
        "gpu/insnret/ld*",
        "gpu/insn/call*",
        "gpu/insnret/call*",
        "gpu/line/walk.cu:7",
        "gpu/tp/*",
        "gpu/insn/barriers",
    ];
    let three = NonZeroU32::new(3).unwrap();
    for how in [How::default(), How { launches: three, blocks: three, warps: three, ..quiet() }] {
        let mut plan = Plan::new(how);
        for section in sections {
            plan.program(reader(section, 0));
        }
        for object in ["entry_count", "return_stamp", "load_count", "nothing"] {
            plan.object(&Object::read(&clang::object(object, "v3")).unwrap());
        }
        let spliced = plan.splice(&Module::read(WALK).unwrap()).unwrap();
        let Some(report) = crate::support::ptxas::assemble(&spliced.text, "sm_90") else { return };
        assert!(report.contains("Compiling entry function"), "{report}");
    }
}

#[test]
fn the_text_of_a_splice_is_the_golden_one() {
    let mut plan = Plan::new(How::default());
    plan.object(&Object::read(&clang::object("entry_count", "v3")).unwrap());
    let spliced = plan.splice(&Module::read(WALK).unwrap()).unwrap();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/walk_entry_count.ptx");
    if std::env::var_os("GPUWHY_BLESS").is_some() {
        std::fs::write(golden, &spliced.text).unwrap();
    }
    let wanted = std::fs::read_to_string(golden).unwrap();
    assert!(
        spliced.text == wanted,
        "differs from {golden}; GPUWHY_BLESS=1 writes it:\n{}",
        spliced.text
    );
}

#[test]
fn cut_and_garbled_modules_are_spliced_without_loss_or_refused() {
    let sections = ["kprobe/*", "kretprobe/*", "kprobe/__memcapture", "gpu/insnret/*", "gpu/tp/*"];
    let mut plan = Plan::new(How::default());
    for section in sections {
        plan.program(reader(section, 0));
    }
    let mut state = 7_u64;
    let mut spliced = 0;
    for round in 0..4000 {
        let mut bytes = WALK.as_bytes().to_vec();
        for _ in 0..1 + round % 3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = b"{}()[];:@\"/*.%! \n1rt"[(state >> 24) as usize % 20];
        }
        let text = String::from_utf8(bytes).unwrap();
        let Ok(module) = Module::read(&text) else { continue };
        let Ok(new) = plan.splice(&module) else { continue };
        assert_eq!(without(&new), text);
        let again = Module::read(&new.text).unwrap_or_else(|fault| panic!("{fault}\n{}", new.text));
        assert_eq!(again.functions().len(), module.functions().len());
        spliced += usize::from(!new.sites.is_empty());
    }
    assert!(spliced > 500, "{spliced}");
}
