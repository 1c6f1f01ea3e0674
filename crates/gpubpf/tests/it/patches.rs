//! Programs as functions that Sanitizer calls from machine code: they count what the same programs count in PTX.

use std::num::NonZeroU32;

use crate::support::clang;
use crate::support::probed::{map, words};
use crate::support::ptxas;
use gpuwhy_gpubpf::contents::Sampled;
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Contents, Device, Launch, Maps};
use gpuwhy_gpubpf::splice::{GIVEN, How, Plan, Spot, called};
use gpuwhy_gpubpf::{Budget, Effect, Object, SKELETONS};

/// Threads that load in a loop of another length each, store, add atomically, meet at a barrier and leave at three places.
const KERNELS: &str = "\
.version 7.8
.target sm_75
.address_size 64
.visible .entry work(.param .u64 data)
{
	.reg .pred %p<5>;
	.reg .b32 %r<6>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [data];
	mov.u32 %r1, %tid.x;
	and.b32 %r2, %r1, 7;
	add.u32 %r2, %r2, 1;
$again:
	ld.global.u32 %r3, [%rd1];
	sub.u32 %r2, %r2, 1;
	setp.ne.u32 %p1, %r2, 0;
	@%p1 bra $again;
	bar.sync 0;
	mul.wide.u32 %rd2, %r1, 8;
	add.s64 %rd3, %rd1, %rd2;
	setp.lt.u32 %p2, %r1, 5;
	@%p2 exit;
	st.global.u64 [%rd3+8], %rd2;
	setp.gt.u32 %p3, %r1, 60;
	@!%p3 bra $rest;
	red.global.add.u32 [%rd1], 1;
	ret;
$rest:
}
.visible .entry other(.param .u64 data)
{
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [data];
	st.global.u64 [%rd1], %rd1;
	ret;
}
";

const PROGRAMS: &str = r#"
#include "gpuwhy_probe.h"
struct { __uint(type, GPU_ARRAY); __uint(max_entries, 16); __type(key, __u32); __type(value, __u64); } sums SEC(".maps");
static __attribute__((always_inline)) void add(__u32 key, __u64 by)
{
	__u64 *sum = bpf_map_lookup_elem(&sums, &key);
	if (sum) __sync_fetch_and_add(sum, by);
}
SEC("kprobe/work") int begins(void *at) { add(0, 1); return 0; }
SEC("kretprobe/work") int ends(void *at) { add(1, 1); return 0; }
SEC("kprobe/__memcapture") int any(struct gpu_access *at)
{
	add(2, 1); add(3, at->bytes); add(4, GPU_SPACE(at->kind)); add(8 + (at->kind & 7), 1);
	return 0;
}
SEC("gpu/insn/stores/work") int stores(struct gpu_access *at) { add(5, 1); add(6, at->address & 0xfff); return 0; }
SEC("gpu/insn/barriers/work") int barriers(struct gpu_access *at) { add(7, 1 + at->address); return 0; }
"#;

fn object(source: &str) -> Object {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.bpf.c");
    std::fs::write(&path, source).unwrap();
    Object::read(&clang::compiled(&path, "v3")).unwrap()
}

fn plan(how: How, source: &str) -> Plan {
    let mut plan = Plan::new(how);
    plan.object(&object(source));
    plan
}

const BLOCKS: u32 = 3;
const THREADS: u32 = 72;

fn launch(device: &mut Device, image: &gpuwhy_gpubpf::sim::Image, kernel: &str, data: u64) {
    let launch = Launch {
        kernel,
        grid: [BLOCKS, 1, 1],
        block: [THREADS, 1, 1],
        dynamic_shared: 0,
        parameters: &[data.to_le_bytes().to_vec()],
    };
    device.launch(image, &launch).unwrap_or_else(|error| panic!("{error}"));
}

/// The maps after launches of both kernels, whose programs are put into PTX.
fn in_ptx(plan: &Plan) -> Vec<Contents> {
    let spliced = plan.splice(&Module::read(KERNELS).unwrap()).unwrap();
    let mut device = Device::new(Config { sms: 2, ..Config::default() });
    let data = device.upload(&[0; 4096]).unwrap();
    let image = device.load(&Module::read(&spliced.text).unwrap()).unwrap();
    let maps = Maps::bind(&mut device, &image, &plan.table(), 4096, 1).unwrap();
    for kernel in ["work", "other"] {
        launch(&mut device, &image, kernel, data);
    }
    maps.read(&device)
}

/// The same, whose programs are functions that are called; `off`: one that is switched off.
fn in_machine_code(plan: &Plan, off: Option<&str>) -> Vec<Contents> {
    let kernels = ["work".to_owned(), "other".to_owned()];
    let patch = plan.patch(90).unwrap();
    let patched = plan.patched(&patch, &kernels);
    let text = called(
        &Module::read(KERNELS).unwrap(),
        &Module::read(&patch.text).unwrap(),
        &patched.spots,
    );
    let mut device = Device::new(Config { sms: 2, ..Config::default() });
    let data = device.upload(&[0; 4096]).unwrap();
    let image = device.load(&Module::read(&text.unwrap()).unwrap()).unwrap();
    let table = plan.table();
    let at = device.upload(&vec![0; 8 * table.words]).unwrap();
    let maps = Maps::bind_at(&mut device, at, &table, 4096, 1).unwrap();
    if let Some((_, word)) = table.switches.iter().find(|(name, _)| Some(name.as_str()) == off) {
        device.write(at + 8 * *word as u64, &[0; 8]).unwrap();
    }
    for kernel in &kernels {
        let given = patched.words.iter().find(|(name, _)| name == kernel).map(|(_, words)| {
            let words = std::iter::once(at).chain(words[1..].iter().copied());
            device.upload(&words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()).unwrap()
        });
        let symbol = image.symbol(GIVEN).unwrap();
        device.write(symbol, &given.unwrap_or(0).to_le_bytes()).unwrap();
        launch(&mut device, &image, kernel, data);
    }
    maps.read(&device)
}

fn sums(maps: &[Contents]) -> Vec<u64> {
    let mut sums = vec![0; 16];
    for entry in &map(maps, "sums").entries {
        sums[words(&entry.key)[0] as usize] = words(&entry.bytes)[0];
    }
    sums
}

#[test]
fn a_program_counts_in_machine_code_what_it_counts_in_ptx() {
    let plan = plan(How::default(), PROGRAMS);
    let (ptx, code) = (sums(&in_ptx(&plan)), sums(&in_machine_code(&plan, None)));
    assert_eq!(ptx, code);
    let all = u64::from(BLOCKS * THREADS);
    // Loads 1 to 8 times; all but 5 threads of a block store, 11 add, and each thread of the other kernel stores.
    let loads = u64::from(BLOCKS) * (0..u64::from(THREADS)).map(|x| x % 8 + 1).sum::<u64>();
    let (stores, adds) = (u64::from(BLOCKS) * 67, u64::from(BLOCKS) * 11);
    assert_eq!(
        code[..6],
        [
            all,
            all,
            loads + stores + adds + all,
            4 * (loads + adds) + 8 * (stores + all),
            loads + stores + adds + all,
            stores
        ]
    );
    assert_eq!((code[7], &code[9..13]), (all, &[loads, stores + all, 0, adds][..]));
    assert!(code[6] > 0, "where it stores");
}

#[test]
fn a_program_that_is_off_or_meant_for_another_kernel_does_nothing() {
    let plan = plan(How::default(), PROGRAMS);
    let (on, off) =
        (sums(&in_machine_code(&plan, None)), sums(&in_machine_code(&plan, Some("stores"))));
    assert_eq!((off[5], off[6], on[5] > 0), (0, 0, true));
    assert_eq!(on[..5], off[..5]);
    // A kernel of no program is given no words, and nothing of it is counted.
    let only = PROGRAMS.replace("kprobe/__memcapture", "gpu/insn/accesses/work");
    let only = self::plan(How::default(), &only);
    assert_eq!(sums(&in_ptx(&only)), sums(&in_machine_code(&only, None)));
    let patched = only.patched(&only.patch(90).unwrap(), &["other".into()]);
    assert!(patched.spots.is_empty() && patched.words.is_empty() && patched.kernels.is_empty());
    let named: Vec<String> = only
        .patched(&only.patch(90).unwrap(), &["other".into(), "work".into()])
        .words
        .into_iter()
        .map(|(name, words)| format!("{name} {words:?}"))
        .collect();
    assert_eq!(named, ["work [0, 1, 2, 3, 4, 5]"]);
}

#[test]
fn what_is_sampled_is_the_same_sample() {
    let n = |n| NonZeroU32::new(n).unwrap();
    let how = How { blocks: n(2), warps: n(2), ..How::default() };
    // Of one kernel: the other one's programs are of all kernels.
    let plan = plan(how, &PROGRAMS.replace("kprobe/__memcapture", "gpu/insn/accesses/work"));
    let (ptx, code) = (in_ptx(&plan), in_machine_code(&plan, None));
    assert_eq!((sums(&ptx), Sampled::of(&ptx)), (sums(&code), Sampled::of(&code)));
    assert!(sums(&code)[0] < u64::from(BLOCKS * THREADS) && sums(&code)[0] > 0);
}

#[test]
fn what_machine_code_has_no_place_for_is_left_out_by_name() {
    let mut why = Vec::new();
    let budget = Budget { effect: Effect::Controlling, ..Budget::default() };
    for (section, body) in [
        ("gpu/insnret/loads/work", "return 0;"),
        ("gpu/insn/ld.global.*/work", "return 0;"),
        ("gpu/line/k.cu:7/work", "return 0;"),
        ("gpu/tp/phase/work", "return 0;"),
        ("kprobe/work", "gpu_exit(); return 0;"),
        ("kprobe/work", "static const volatile int n = 5; return n;"),
        (
            "kprobe/work",
            "__u32 k = 0; __u64 *v = bpf_map_lookup_elem(&of_block, &k); if (v) __sync_fetch_and_add(v, 1); return 0;",
        ),
    ] {
        let source = format!(
            "#include \"gpuwhy_probe.h\"\nstruct {{ __uint(type, GPU_BLOCK_ARRAY); __uint(max_entries, 2); \
             __type(key, __u32); __type(value, __u64); }} of_block SEC(\".maps\");\n\
             SEC(\"{section}\") int p(void *at) {{ {body} }}\n"
        );
        let plan = plan(How { budget, ..How::default() }, &source);
        let patch = plan.patch(90).unwrap();
        let patched = plan.patched(&patch, &["work".into()]);
        assert!(patched.spots.is_empty() && patched.words.is_empty(), "{section}");
        assert_eq!(patched.kernels[0].sites, 0);
        why.extend(patched.notes);
    }
    let words = |part: &str| why.iter().filter(|note| note.contains(part)).count();
    assert_eq!(why.len(), 7, "{why:?}");
    for part in [
        "behind an instruction",
        "other opcodes",
        "ends threads",
        "read-only data",
        "sums of a block",
    ] {
        assert_eq!(words(part), 1, "{part}: {why:?}");
    }
    assert_eq!(words("places of PTX"), 2, "{why:?}");
}

#[test]
fn nvidias_assembler_takes_the_functions_for_every_device() {
    let mut all = vec![plan(How::default(), PROGRAMS)];
    let n = NonZeroU32::new(3).unwrap();
    all.push(plan(How { launches: n, blocks: n, warps: n, ..How::default() }, PROGRAMS));
    for skeleton in SKELETONS {
        all.push(plan(How::default(), skeleton.program));
    }
    let mut functions = 0;
    for (plan, sm) in
        all.iter().flat_map(|plan| [75, 80, 86, 89, 90, 100, 103, 120].map(|sm| (plan, sm)))
    {
        let patch = plan.patch(sm).unwrap();
        functions += patch.spots.len();
        Module::read(&patch.text).unwrap();
        if !patch.spots.is_empty()
            && ptxas::assemble_patch(&patch.text, &format!("sm_{sm}")).is_none()
        {
            return;
        }
    }
    assert!(functions > 100, "{functions}");
    for spot in Spot::ALL {
        assert!(all[0].patch(90).unwrap().text.contains(spot.function()), "{spot:?}");
    }
}
