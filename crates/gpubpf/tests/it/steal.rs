//! Kernels that steal work: what they compute, in what order, and which are refused.

use std::path::{Path, PathBuf};

use crate::support::cases::Case;
use crate::support::stolen::Records;
use crate::support::{asm, clang, ptxas};
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Device, Launch, Maps};
use gpuwhy_gpubpf::splice::{How, Plan, Rule, Spliced};
use gpuwhy_gpubpf::{Object, Program, Skeleton};

/// A program that orders the blocks of all kernels.
fn order(text: &str) -> Program {
    let mut program = Program::from_bytes(&asm::assemble(text).unwrap(), "gpu/order/*").unwrap();
    program.section = "gpu/order/*".into();
    program
}

/// Orders that programs may propose, right or not: by turn (word 0) and number of blocks (word 1).
const ORDERS: [(&str, &str); 5] = [
    ("always the same", "mov %r0, 5\nexit"),
    ("reversed", "ldxdw %r0, [%r1+8]\nldxdw %r2, [%r1]\nsub %r0, %r2\nsub %r0, 1\nexit"),
    ("scattered", "ldxdw %r0, [%r1]\nmul %r0, 0x61c88647\nexit"),
    ("beyond the end", "mov %r0, -1\nldxdw %r2, [%r1]\nrsh %r2, 1\nsub %r0, %r2\nexit"),
    ("each twice", "ldxdw %r0, [%r1]\nrsh %r0, 1\nexit"),
];

fn plan(order: Option<Program>) -> Plan {
    let mut plan = Plan::new(How::default());
    plan.steal(&["*".into()]);
    if let Some(order) = order {
        plan.program(order);
        assert!(plan.probes()[0].verdict.is_ok(), "{:?}", plan.probes()[0].verdict);
    }
    plan
}

fn stolen(plan: &Plan, text: &str) -> Spliced {
    let spliced = plan.splice(&Module::read(text).unwrap()).unwrap();
    // Only inserted: without it, the text is what it was.
    let (mut rest, mut from) = (String::new(), 0);
    for range in &spliced.inserted {
        rest.push_str(&spliced.text[from..range.start]);
        from = range.end;
    }
    rest.push_str(&spliced.text[from..]);
    assert_eq!(rest, text);
    spliced
}

/// Threads of a kernel that has this text, in a module for this device.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 \
         b);\n.extern .func elsewhere;\n.shared .align 8 .b64 word;\n.func other {{ ret; }}\n\
         .func where {{ .reg .b32 %a; mov.u32 %a, %ctaid.x; ret; }}\n\
         .func quits {{ exit; }}\n.func waits {{ bar.sync 1; ret; }}\n\
         .func votes {{ .reg .pred %q; vote.sync.all.pred %q, %q, -1; ret; }}\n\
         .visible .entry k(.param .u64 p, .param .u32 n)\n{{\n\t.reg .pred %p<9>;\n\t.reg .b32 %r<99>;\n\t.reg .b64 \
         %rd<9>;\n{body}\n\tret;\n}}\n"
    )
}

/// The rules that a kernel breaks.
fn broken(body: &str) -> Vec<Rule> {
    let text = kernel(body);
    let spliced = stolen(&plan(None), &text);
    assert_eq!(spliced.stealing.len() + spliced.not_stealing.len(), 1, "{body}");
    let reasons: Vec<Rule> =
        spliced.not_stealing.iter().flat_map(|k| &k.reasons).map(|why| why.rule).collect();
    for why in spliced.not_stealing.iter().flat_map(|k| &k.reasons) {
        let line = text.lines().nth(why.line - 1).unwrap_or_default();
        let first = why.statement.split(' ').next().unwrap();
        assert!(
            line.contains(first),
            "line {} is `{line}`, and is to be `{}`",
            why.line,
            why.statement
        );
    }
    reasons
}

#[test]
fn each_rule_refuses_what_would_go_wrong_and_nothing_like_it() {
    const TID: &str = "mov.u32 %r1, %tid.x;\n";
    const LANE: &str = "mov.u32 %r1, %tid.x;\nsetp.eq.u32 %p1, %r1, 3;\n";
    const WARP: &str = "mov.u32 %r1, %tid.x;\nsetp.gt.u32 %p1, %r1, 31;\n";
    const BLOCK: &str = "mov.u32 %r1, %ctaid.x;\nsetp.eq.u32 %p1, %r1, 3;\n";
    const SHUFFLE: &str = "shfl.sync.down.b32 %r2, %r1, 1, 31, -1;\n";
    let cases: Vec<(String, Vec<Rule>)> = vec![
        // Threads that return before a barrier of the block, and those that do together.
        (format!("{LANE}@%p1 ret;\nbar.sync 0;"), vec![Rule::Barrier]),
        (format!("{WARP}@%p1 ret;\nbar.sync 0;"), vec![Rule::Barrier]),
        (format!("{LANE}@%p1 bra end;\nbar.sync 0;\nend:"), vec![Rule::Barrier]),
        (format!("{LANE}@%p1 exit;\nbarrier.sync.aligned 3;"), vec![Rule::Barrier]),
        (format!("{LANE}@!%p1 bar.sync 0;"), vec![Rule::Barrier]),
        (format!("{BLOCK}@%p1 ret;\nbar.sync 0;"), vec![]),
        (format!("{LANE}bar.sync 0;\n@%p1 ret;"), vec![]),
        (format!("{LANE}@%p1 bra on;\nst.shared.u32 [word], %r1;\non:\nbar.sync 0;"), vec![]),
        // A barrier with a count waits for nobody else.
        (format!("{WARP}@%p1 bra end;\nbar.sync 1, 32;\nend:"), vec![]),
        // What threads took from others' memory may differ; what they took from parameters may not.
        ("ld.shared.u32 %r1, [word];\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 ret;\nbar.sync 0;".into(), vec![Rule::Barrier]),
        ("ld.param.u32 %r1, [n];\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 ret;\nbar.sync 0;".into(), vec![]),
        (
            "ld.param.u32 %r1, [n];\nagain:\nbar.sync 0;\nsub.u32 %r1, %r1, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra again;"
                .into(),
            vec![],
        ),
        (
            format!("{TID}again:\nbar.sync 0;\nsub.u32 %r1, %r1, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra again;"),
            vec![Rule::Barrier],
        ),
        // Written by threads that have parted, and used when they are together again.
        (
            format!("{LANE}mov.u32 %r3, 0;\n@%p1 mov.u32 %r3, 1;\nbar.sync 0;\nsetp.eq.u32 %p2, %r3, 0;\n@%p2 ret;\nbar.sync 0;"),
            vec![Rule::Barrier],
        ),
        (
            format!("{LANE}mov.u32 %r3, 0;\n@%p1 bra on;\nmov.u32 %r3, 1;\non:\nbar.sync 0;\nsetp.eq.u32 %p2, %r3, 0;\n@%p2 ret;\nbar.sync 0;"),
            vec![Rule::Barrier],
        ),
        // Assertions end the launch.
        (format!("{LANE}@%p1 bra bad;\nbar.sync 0;\nret;\nbad:\ntrap;"), vec![]),
        // Lanes that return before an operation of their warp.
        (format!("{LANE}@%p1 ret;\n{SHUFFLE}"), vec![Rule::Warp]),
        (format!("{LANE}@%p1 bra end;\nbar.warp.sync -1;\nend:"), vec![Rule::Warp]),
        (format!("{LANE}@%p1 bra end;\ncall votes;\nend:"), vec![Rule::Warp]),
        (format!("{WARP}@%p1 ret;\n{SHUFFLE}"), vec![]),
        (format!("{LANE}@%p1 bra end;\nactivemask.b32 %r4;\nshfl.sync.down.b32 %r2, %r1, 1, 31, %r4;\nend:"), vec![]),
(
            format!("{LANE}activemask.b32 %r4;\n@%p1 bra end;\nshfl.sync.down.b32 %r2, %r1, 1, 31, %r4;\nend:"),
            vec![Rule::Warp],
        ),
        (
            format!("{LANE}@%p1 bra end;\nactivemask.b32 %r4;\nor.b32 %r4, %r4, 8;\nbar.warp.sync %r4;\nend:"),
            vec![Rule::Warp],
        ),
        (format!("{LANE}@%p1 bra on;\n{SHUFFLE}on:\nbar.sync 0;"), vec![]),
        // Functions.
        ("call other;".into(), vec![]),
        ("call where;".into(), vec![Rule::BlockInFunction]),
        ("call quits;".into(), vec![Rule::ExitInFunction]),
        ("call waits;".into(), vec![Rule::BarrierInFunction]),
        ("call elsewhere;".into(), vec![Rule::UnknownFunction]),
        ("call %rd1, p;\np: .callprototype _ ();".into(), vec![Rule::UnknownFunction]),
        ("call (%r1), vprintf, (%rd1, %rd2);".into(), vec![]),
        ("call cudaLaunchDeviceV2, (%rd1, %rd2);".into(), vec![Rule::Launches]),
        // Barriers by number.
        ("bar.sync %r1;".into(), vec![Rule::BarrierNumber]),
        ((0..16).map(|n| format!("bar.sync {n};\n")).collect(), vec![Rule::BarrierNumber]),
        ((0..15).map(|n| format!("bar.sync {n};\n")).collect(), vec![]),
        // What goes on by itself.
        ("wgmma.fence.sync.aligned;".into(), vec![Rule::TensorCores]),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1}, {%r2}, {%r3}, {%r4};".into(), vec![]),
        ("mbarrier.init.shared.b64 [word], 1;".into(), vec![Rule::MemoryBarrier]),
        ("cp.async.bulk.wait_group 0;".into(), vec![Rule::BulkCopy]),
        ("cp.async.ca.shared.global [word], [%rd1], 8;".into(), vec![]),
        ("setmaxnreg.dec.sync.aligned.u32 24;".into(), vec![Rule::Registers]),
        ("griddepcontrol.wait;".into(), vec![Rule::Dependent]),
        ("alloca.u64 %rd1, 8;".into(), vec![Rule::Stack]),
        // What a kernel knows of its grid.
        ("barrier.cluster.arrive;".into(), vec![Rule::Cluster]),
        ("mov.u32 %r1, %cluster_ctarank;".into(), vec![Rule::Cluster]),
        ("st.shared::cluster.u32 [word], %r1;".into(), vec![Rule::Cluster]),
        ("mov.u32 %r1, %envreg2;".into(), vec![Rule::Cooperative]),
        ("mov.u32 %r1, %total_smem_size;".into(), vec![Rule::SharedSize]),
        ("mov.u32 %r1, %smid;\nmov.u64 %rd1, %gridid;\nmov.u32 %r2, %nctaid.y;".into(), vec![]),
        ("mov.v4.u32 {%r1, %r2, %r3, %r4}, %ctaid;".into(), vec![Rule::Vector]),
        // One block that waits for another, and threads that take a lock.
        (
            "again:\nld.acquire.gpu.global.u32 %r1, [%rd1];\nsetp.ne.u32 %p1, %r1, 7;\n@%p1 bra again;".into(),
            vec![Rule::Waits],
        ),
        (
            "again:\natom.global.add.u32 %r1, [%rd1], 0;\nand.b32 %r2, %r1, 1;\nsetp.ne.u32 %p1, %r2, 1;\n@%p1 bra again;".into(),
            vec![Rule::Waits],
        ),
        (
            "again:\natom.global.cas.b32 %r1, [%rd1], 0, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra again;".into(),
            vec![],
        ),
        ("ld.volatile.global.u32 %r1, [%rd1];\nsetp.ne.u32 %p1, %r1, 7;\n@%p1 ret;".into(), vec![]),
    ];
    for (body, wanted) in cases {
        assert_eq!(broken(&body), wanted, "{body}");
    }
    let clusters = kernel("").replace("n)\n{", "n)\n.reqnctapercluster 2\n{");
    assert_eq!(stolen(&plan(None), &clusters).not_stealing[0].reasons[0].rule, Rule::Cluster);
    let old = kernel("").replace("sm_90", "sm_60");
    assert_eq!(stolen(&plan(None), &old).not_stealing[0].reasons[0].rule, Rule::TooOld);
    let full = kernel("").replace(".param .u32 n", ".param .align 8 .b8 n[4072]");
    assert_eq!(stolen(&plan(None), &full).not_stealing[0].reasons[0].rule, Rule::Parameters);
    let named = kernel("") + ".visible .entry k_with_policy() { ret; }\n";
    assert_eq!(stolen(&plan(None), &named).not_stealing[0].reasons[0].rule, Rule::Named);
}

#[test]
fn what_a_launch_has_to_be_like_is_told_and_shared_memory_stays_where_it_is() {
    let of = |body: &str| stolen(&plan(None), &kernel(body));
    let by_rows =
        "mov.u32 %r1, %tid.x;\nshr.u32 %r2, %r1, 5;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 ret;\n";
    let shuffled = format!("{by_rows}shfl.sync.down.b32 %r3, %r1, 1, 31, -1;");
    assert!(of(&shuffled).stealing[0].rows);
    assert!(!of("mov.u32 %r1, %tid.x;\nsetp.gt.u32 %p1, %r1, 30;\n@%p1 ret;").stealing[0].rows);
    assert!(of("").text.contains(".shared .align 16 .b8 gs_next[16];"));
    // What a launch adds begins at the multiple of 1,024 that it would begin at.
    let launched = kernel("")
        .replace(".shared .align 8", ".extern .shared .align 16 .b8 more[];\n.shared .align 8");
    let text = stolen(&plan(None), &launched).text;
    assert!(text.contains(".shared .align 1024 .b8 gs_next[1024];"), "{text}");
    // The highest barrier that it does not use.
    assert!(of("bar.sync 15;\nbar.sync 13;").text.contains("barrier.sync 14;"));
}

/// Block 0 copies a word to shared memory and does not wait for it; block 1 has its own word there, and waits for all copies.
#[test]
fn copies_that_a_block_has_begun_end_before_the_next_one() {
    const TEXT: &str = "\
.version 7.0
.target sm_80
.address_size 64
.visible .entry copies(.param .u64 from, .param .u64 to)
{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<3>;
	.shared .align 16 .b8 word[16];
	ld.param.u64 %rd1, [from];
	ld.param.u64 %rd2, [to];
	mov.u32 %r1, %ctaid.x;
	setp.eq.u32 %p1, %r1, 1;
	@%p1 bra second;
	cp.async.ca.shared.global [word], [%rd1], 4;
	ret;
second:
	mov.u32 %r2, 5;
	st.shared.u32 [word], %r2;
	cp.async.wait_all;
	ld.shared.u32 %r3, [word];
	st.global.u32 [%rd2], %r3;
	ret;
}
";
    let spliced = stolen(&plan(None), TEXT);
    let mut device = Device::new(Config { sms: 1, ..Config::default() });
    let image = device.load(&Module::read(&spliced.text).unwrap()).unwrap();
    let records = Records::new(&mut device, &spliced.stealing[0]);
    let places = [77_u32, 0].map(|word| device.upload(&word.to_le_bytes()).unwrap());
    let parameters = places.map(|at| at.to_le_bytes().to_vec());
    let launch = Launch {
        kernel: "copies",
        grid: [2, 1, 1],
        block: [1, 1, 1],
        dynamic_shared: 0,
        parameters: &parameters,
    };
    records.launch(&mut device, &image, &spliced.stealing[0], &launch, Some(1)).unwrap();
    assert_eq!(device.read(places[1], 4).unwrap(), 5_u32.to_le_bytes());
}

/// A program that orders blocks may not end the thread that asks it.
#[test]
fn an_order_may_not_end_threads() {
    let mut how = How::default();
    how.budget.effect = gpuwhy_gpubpf::Effect::Controlling;
    let mut plan = Plan::new(how);
    plan.program(order("call 507\nmov %r0, 0\nexit"));
    let fault = plan.probes()[0].verdict.clone().unwrap_err().to_string();
    assert!(fault.contains("controlling"), "{fault}");
}

#[test]
fn where_its_parameter_lies_is_told_for_launches_that_give_all_in_one_buffer() {
    for (parameters, many, at) in [
        ("", 0, 0),
        (".param .u32 a", 1, 8),
        (".param .u64 .ptr .global .align 16 a, .param .u8 b", 2, 16),
        (".param .u8 a, .param .align 16 .b8 b[20], .param .f64 c", 3, 48),
        (".param .b16 a[3]", 1, 8),
    ] {
        let text = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k({parameters})\n{{\n\tret;\n}}\n"
        );
        let spliced = stolen(&plan(None), &text);
        let stealing = &spliced.stealing[0];
        assert_eq!((stealing.parameters, stealing.at), (many, at), "{parameters}");
        let mut device = Device::new(Config::default());
        let image = device.load(&Module::read(&spliced.text).unwrap()).unwrap();
        assert_eq!(image.parameters("k_with_policy").unwrap().last(), Some(&24));
    }
    // Without brackets, a name that is a part of the word before it, and comments that name it.
    for head in [".entry k", ".entry e()", ".entry /* (e */ // e\n e ()"] {
        let text =
            format!(".version 8.0\n.target sm_90\n.address_size 64\n{head}\n{{\n\tret;\n}}\n");
        let spliced = stolen(&plan(None), &text);
        assert_eq!(spliced.stealing[0].parameters, 0);
        let name = spliced.stealing[0].name();
        let module = Module::read(&spliced.text).unwrap();
        assert!(
            module.functions().iter().any(|function| function.name == name),
            "{}",
            spliced.text
        );
    }
}

/// Each thread notes in its block's word the turn of its block; three sides, and blocks of which some threads return early.
const NOTES: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry notes(.param .u64 counts, .param .u64 order, .param .u64 turn)
{
	.reg .pred %p<3>;
	.reg .b32 %r<12>;
	.reg .b64 %rd<8>;
	.shared .align 4 .b8 mine[4];
	ld.param.u64 %rd1, [counts];
	ld.param.u64 %rd2, [order];
	ld.param.u64 %rd3, [turn];
	mov.u32 %r1, %ctaid.z;
	mov.u32 %r2, %nctaid.y;
	mov.u32 %r3, %ctaid.y;
	mad.lo.u32 %r1, %r1, %r2, %r3;
	mov.u32 %r2, %nctaid.x;
	mov.u32 %r3, %ctaid.x;
	mad.lo.u32 %r1, %r1, %r2, %r3;
	mul.wide.u32 %rd4, %r1, 4;
	add.s64 %rd5, %rd1, %rd4;
	red.global.add.u32 [%rd5], 1;
	mov.u32 %r4, %tid.x;
	mov.u32 %r5, %tid.y;
	or.b32 %r6, %r4, %r5;
	setp.ne.u32 %p1, %r6, 0;
	@%p1 bra together;
	atom.global.add.u32 %r7, [%rd3], 1;
	add.s64 %rd6, %rd2, %rd4;
	st.global.u32 [%rd6], %r7;
	st.shared.u32 [mine], %r1;
together:
	bar.sync 0;
	ld.shared.u32 %r8, [mine];
	setp.ne.u32 %p2, %r8, %r1;
	@%p2 trap;
	setp.gt.u32 %p1, %r4, 4;
	@%p1 ret;
}
";

/// How often each block ran, and when, of launches of so many blocks of 20 × 2 threads.
fn noted(
    grid: [u32; 3],
    order: Option<Program>,
    blocks: Option<u32>,
    launches: u32,
) -> (Vec<u32>, Vec<u32>) {
    let plan = plan(order);
    let spliced = stolen(&plan, NOTES);
    let stealing = &spliced.stealing[0];
    let mut device = Device::new(Config { sms: 3, warps_per_sm: 6, ..Config::default() });
    let image = device.load(&Module::read(&spliced.text).unwrap()).unwrap();
    Maps::bind(&mut device, &image, &plan.table(), 4096, 1).unwrap();
    let records = Records::new(&mut device, stealing);
    let total = grid.iter().product::<u32>() as usize;
    let places = [total, total, 1].map(|words| device.upload(&vec![0; 4 * words]).unwrap());
    let parameters = places.map(|at| at.to_le_bytes().to_vec());
    for _ in 0..launches {
        device.write(places[2], &[0; 4]).unwrap();
        let launch = Launch {
            kernel: "notes",
            grid,
            block: [20, 2, 1],
            dynamic_shared: 0,
            parameters: &parameters,
        };
        let ran = records.launch(&mut device, &image, stealing, &launch, blocks);
        ran.unwrap_or_else(|error| panic!("{error}"));
    }
    let numbers = |at| -> Vec<u32> {
        let bytes = device.read(at, 4 * total).unwrap().chunks(4);
        bytes.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    (numbers(places[0]), numbers(places[1]))
}

/// A launch of three sides, and one whose bits fill several words.
const GRIDS: [[u32; 3]; 2] = [[3, 5, 2], [100, 1, 1]];

#[test]
fn every_block_runs_once_whatever_the_order_says_and_a_record_serves_again() {
    for grid in GRIDS {
        let total = grid.iter().product::<u32>();
        for (blocks, launches) in [(None, 1), (Some(1), 3), (Some(7), 2), (Some(30), 2)] {
            let wanted = vec![40 * launches; total as usize];
            for (name, text) in ORDERS {
                let (counts, _) = noted(grid, Some(order(text)), blocks, launches);
                assert_eq!(counts, wanted, "{name}, {blocks:?} blocks of {grid:?}");
            }
            assert_eq!(noted(grid, None, blocks, launches).0, wanted);
        }
    }
}

#[test]
fn blocks_run_in_the_order_that_the_program_says() {
    for grid in GRIDS {
        let total = grid.iter().product::<u32>() as usize;
        let one = |text: Option<&str>| -> Vec<usize> {
            let turns = noted(grid, text.map(order), Some(1), 1).1;
            let mut blocks: Vec<usize> = (0..total).collect();
            blocks.sort_by_key(|block| turns[*block]);
            blocks
        };
        assert_eq!(one(None), (0..total).collect::<Vec<_>>());
        assert_eq!(one(Some(ORDERS[1].1)), (0..total).rev().collect::<Vec<_>>());
        // Taken already: the next that is free, and round the end.
        let same: Vec<usize> = (5..total).chain(0..5).collect();
        assert_eq!(one(Some(ORDERS[0].1)), same);
        let scattered: Vec<usize> = one(Some(ORDERS[2].1));
        let step = 0x61c8_8647_usize;
        assert_eq!(scattered[..3], [0, step % total, 2 * step % total]);
    }
}

/// The second warp of block 0 has much to do, and its first thread nothing.
const LATE_WARP: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry late(.param .u64 sms)
{
	.reg .pred %p<3>;
	.reg .b32 %r<6>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [sms];
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %tid.x;
	setp.eq.u32 %p1, %r1, 0;
	setp.gt.and.u32 %p2, %r2, 31, %p1;
	@!%p2 bra note;
	mov.u32 %r3, 2000;
again:
	sub.u32 %r3, %r3, 1;
	setp.ne.u32 %p1, %r3, 0;
	@%p1 bra again;
note:
	mul.wide.u32 %rd2, %r1, 4;
	add.s64 %rd3, %rd1, %rd2;
	mov.u32 %r4, %smid;
	st.global.u32 [%rd3], %r4;
	ret;
}
";

/// A block takes another one when all its threads are done, so that who has much to do does not get more.
#[test]
fn a_block_with_a_late_warp_leaves_the_others_to_the_rest() {
    let spliced = stolen(&plan(None), LATE_WARP);
    let stealing = &spliced.stealing[0];
    let mut device = Device::new(Config { sms: 2, ..Config::default() });
    let image = device.load(&Module::read(&spliced.text).unwrap()).unwrap();
    let records = Records::new(&mut device, stealing);
    let sms = device.upload(&[9; 40]).unwrap();
    let launch = Launch {
        kernel: "late",
        grid: [10, 1, 1],
        block: [64, 1, 1],
        dynamic_shared: 0,
        parameters: &[sms.to_le_bytes().to_vec()],
    };
    records.launch(&mut device, &image, stealing, &launch, Some(2)).unwrap();
    let ran: Vec<u8> = device.read(sms, 40).unwrap().iter().step_by(4).copied().collect();
    let late = ran[0];
    assert!(ran[1..].iter().all(|sm| *sm == 1 - late), "{ran:?}");
}

/// The kernels that the simulator runs, with outputs that are known.
fn cases() -> Vec<Case> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let more = cache.map(|cache| cache.join("gpuwhy/kernels")).filter(|folder| folder.is_dir());
    [here].iter().chain(&more).flat_map(|folder| Case::all(folder)).collect()
}

#[test]
fn kernels_of_the_corpus_compute_the_same_where_they_steal_in_any_order() {
    let plans: Vec<(&str, Plan)> = std::iter::once(("in order", plan(None)))
        .chain(ORDERS.map(|(name, text)| (name, plan(Some(order(text))))))
        .collect();
    let (mut wrong, mut stole, mut refused) = (Vec::new(), 0, Vec::new());
    for case in cases() {
        let text = std::fs::read_to_string(&case.module).unwrap();
        for (number, (name, plan)) in plans.iter().enumerate() {
            let spliced = stolen(plan, &text);
            if let Some(not) = spliced.not_stealing.iter().find(|not| not.kernel == case.kernel) {
                if number == 0 {
                    refused.push(format!("{}: {}", case.name, not.reasons[0]));
                }
                continue;
            }
            let Some(stealing) = spliced.stealing.iter().find(|s| s.kernel == case.kernel) else {
                wrong.push(format!("{}: neither steals nor is refused", case.name));
                continue;
            };
            let rows = case.block[0] % 32 == 0 || case.block[1] * case.block[2] == 1;
            assert!(rows || !stealing.rows, "{}: its launch would not be stolen", case.name);
            stole += usize::from(number == 0);
            for most in [None, Some(1), Some(3)] {
                let config = Config { sms: 2, ..Config::default() };
                let ran = case.run_by(
                    &spliced.text,
                    config,
                    Some(&plan.table()),
                    |device, image, launch| {
                        let records = Records::new(device, stealing);
                        // Whatever it wrote is written again.
                        records.launch(device, image, stealing, launch, most)
                    },
                );
                if let Err(why) = ran {
                    wrong.push(format!("{}, {name}, {most:?} blocks: {why}", case.name));
                }
            }
        }
    }
    println!("{stole} kernels steal; refused:\n{}", refused.join("\n"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(stole >= 24, "{stole} kernels steal; refused:\n{}", refused.join("\n"));
}

/// Texts that are PTX no more than by their statements: what comes out is one kernel more for each that steals, and nothing panics.
#[test]
fn texts_with_lines_left_out_and_exchanged_are_judged_too() {
    let (mut state, mut stole, mut refused) = (11_u64, 0, 0);
    let mut chance = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let plans = [plan(None), plan(Some(order(ORDERS[1].1)))];
    for name in ["basic", "gemm", "reduce", "calls"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/kernels/{name}.ptx"));
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for _ in 0..60 {
            let mut lines = lines.clone();
            for _ in 0..1 + chance(40) {
                let (from, to) = (10 + chance(lines.len() - 10), 10 + chance(lines.len() - 10));
                match chance(3) {
                    0 => _ = lines.remove(from),
                    1 => lines.swap(from, to),
                    _ => lines.insert(to, lines[from]),
                }
            }
            let text = lines.join("\n");
            let Ok(module) = Module::read(&text) else { continue };
            for plan in &plans {
                let Ok(spliced) = plan.splice(&module) else { continue };
                let again = Module::read(&spliced.text).unwrap_or_else(|fault| panic!("{fault}"));
                assert_eq!(
                    again.functions().len(),
                    module.functions().len() + spliced.stealing.len()
                );
                (stole, refused) =
                    (stole + spliced.stealing.len(), refused + spliced.not_stealing.len());
            }
        }
    }
    println!("{stole} kernels steal, {refused} are refused");
    assert!(stole > 200 && refused > 20, "{stole} {refused}");
}

/// Blocks of modules for sm_100 ask the hardware, unless a program orders them.
#[test]
fn on_newer_devices_blocks_ask_the_hardware_and_that_is_assembled() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/reduce.ptx");
    let text = std::fs::read_to_string(path).unwrap();
    let version = text.lines().find(|line| line.starts_with(".version")).unwrap();
    let target = text.lines().find(|line| line.starts_with(".target")).unwrap();
    let newer = text.replace(version, ".version 8.6").replace(target, ".target sm_100");
    let older = text.replace(version, ".version 8.5").replace(target, ".target sm_100");
    for (text, order, by_hardware) in [
        (&newer, None, true),
        (&newer, Some(order(ORDERS[1].1)), false),
        (&text, None, false),
        (&older, None, false),
    ] {
        let spliced = stolen(&plan(order), text);
        assert!(spliced.stealing.len() > 10);
        assert!(spliced.stealing.iter().all(|stealing| stealing.by_hardware == by_hardware));
        assert_eq!(spliced.text.contains("clusterlaunchcontrol.try_cancel"), by_hardware);
        assert_eq!(spliced.text.contains("atom.global.add.u32 %gs_w3, [%gs_d0]"), !by_hardware);
        if text == &newer {
            let Some(kernels) = ptxas::kernels(&spliced.text, "sm_100") else { return };
            for stealing in &spliced.stealing {
                let (own, other) = (&kernels[&stealing.kernel], &kernels[&stealing.name()]);
                println!(
                    "{}: {} registers, {} where it steals",
                    stealing.kernel, own.registers, other.registers
                );
            }
        }
    }
}

/// Registers before and after, where NVIDIA's assembler is here.
#[test]
fn kernels_that_steal_are_assembled() {
    let longest = clang::skeleton(Skeleton::named("longest").unwrap());
    let mut measured = plan(None);
    measured.object(&Object::read(&longest).unwrap());
    for name in ["basic", "gemm", "reduce"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/kernels/{name}.ptx"));
        let text = std::fs::read_to_string(path).unwrap();
        for (how, plan) in [("in order", &plan(None)), ("longest first", &measured)] {
            let spliced = stolen(plan, &text);
            let Some(kernels) = ptxas::kernels(&spliced.text, "sm_90") else { return };
            for stealing in &spliced.stealing {
                let (own, other) = (&kernels[&stealing.kernel], &kernels[&stealing.name()]);
                println!(
                    "{}, {how}: {} registers, {} where it steals",
                    stealing.kernel, own.registers, other.registers
                );
                assert_eq!(other.spill_stores, own.spill_stores, "{}", stealing.kernel);
            }
        }
    }
}
