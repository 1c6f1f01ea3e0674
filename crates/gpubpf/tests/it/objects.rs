//! Objects from clang: what they declare, what their programs become, and what is refused.

use crate::support::{clang, ptx};
use gpuwhy_gpubpf::{Addresses, Attach, Fragment, MapKind, Object, Options, Program};

fn link(object: &Object, name: &str) -> Program {
    let entry = object.entries().iter().find(|entry| entry.name == name).unwrap();
    object.link(entry).unwrap_or_else(|fault| panic!("{fault}"))
}

fn compile(name: &str, program: &str, cpu: &str) -> (Program, Fragment) {
    let object = Object::read(&clang::object(name, cpu)).unwrap();
    let program = link(&object, program);
    let fragment =
        gpuwhy_gpubpf::fragment(&program, &gpuwhy_gpubpf::kernel_options(&Options::default()));
    (program, fragment.unwrap_or_else(|fault| panic!("{fault}")))
}

#[test]
fn maps_sections_and_programs_are_read_as_declared() {
    let object = Object::read(&clang::object("retsnoop", "v3")).unwrap();
    let entries: Vec<_> =
        object.entries().iter().map(|e| (e.name.as_str(), e.attach.clone())).collect();
    assert!(entries.contains(&("retsnoop", Attach::Return("*".into()))), "{entries:?}");
    assert!(entries.contains(&("on_the_host", Attach::Host)), "{entries:?}");
    let ring = object.maps().iter().find(|m| m.name == "events").unwrap();
    assert_eq!((ring.kind, ring.value_size, ring.max_entries), (MapKind::Ring, 64, 128));
    let totals = object.maps().iter().find(|m| m.name == "totals").unwrap();
    assert_eq!((totals.kind, totals.key_size, totals.value_size), (MapKind::Array, 4, 16));
    assert_eq!(Attach::from_section("kprobe/__memcapture"), Attach::Accesses);
    assert_eq!(Attach::from_section("kprobe/_Z3addPf"), Attach::Entry("_Z3addPf".into()));
}

#[test]
fn a_histogram_by_thread_needs_no_stack_and_no_call() {
    for cpu in ["v1", "v2", "v3"] {
        let (_, fragment) = compile("threadhist", "threadhist", cpu);
        assert_eq!((fragment.local_bytes, fragment.escape), (0, None), "{cpu}");
        assert!(!fragment.body.contains("call"));
        assert!(fragment.body.contains("ld.global.u64"), "{}", fragment.body);
    }
}

#[test]
fn functions_that_fill_a_record_of_the_caller_are_inlined_and_need_no_stack() {
    let (program, fragment) = compile("retsnoop", "retsnoop", "v3");
    // `fill` and `weigh` lie in `.text`.
    assert_eq!(program.sections, ["kretprobe/*", ".text"]);
    assert!(
        program
            .lines
            .iter()
            .any(|line| line.contains("retsnoop.bpf.c:") && line.contains("globaltimer"))
    );
    assert_eq!((fragment.local_bytes, &fragment.escape), (0, &None));
    assert!(!fragment.body.contains("call"));
    assert!(fragment.body.contains("atom.relaxed.gpu.global.add.u64"), "{}", fragment.body);
    assert!(
        fragment.declarations.contains("= {1, 0, 0, 0, 2, 0, 0, 0, 3,"),
        "{}",
        fragment.declarations
    );
}

#[test]
fn what_a_gpu_cannot_do_is_refused_with_its_source_line() {
    let object = Object::read(&clang::object("refused", "v3")).unwrap();
    let refusals = [
        (
            "host_map",
            "map `host_hash` has type 1, which a GPU does not reach",
            "bpf_map_lookup_elem",
        ),
        ("variable", "a variable in `.bss`; kernels do not share variables", ""),
        ("printing", "helper 6 (trace_printk) prints", "print(text"),
        (
            "long_record",
            "a record of 16 bytes for ring `ring`, whose values have 8",
            "bpf_perf_event_output",
        ),
        ("flags", "map `ring` is a ring and has no keys", "bpf_map_update_elem"),
        ("recursive", "this function calls itself", "factorial"),
    ];
    for (name, reason, line) in refusals {
        let entry = object.entries().iter().find(|e| e.name == name).unwrap();
        let fault = object
            .link(entry)
            .and_then(|program| gpuwhy_gpubpf::fragment(&program, &Options::default()))
            .expect_err(name)
            .to_string();
        assert!(fault.contains(reason) && fault.contains(line), "{fault}");
        assert!(fault.contains("instruction "), "{fault}");
        if !line.is_empty() {
            assert!(fault.contains("refused.bpf.c:"), "{fault}");
        }
    }
}

#[test]
fn ptxas_assembles_compiled_objects_without_stack_or_spill() {
    for (name, program) in [("threadhist", "threadhist"), ("retsnoop", "retsnoop")] {
        let (_, fragment) = compile(name, program, "v3");
        let text = format!(
            "{}{}{}",
            gpuwhy_gpubpf::MODULE_HEAD,
            fragment.declarations,
            gpuwhy_gpubpf::entry(&fragment, name)
        );
        for target in ["sm_75", "sm_90", "sm_100"] {
            let Some(report) = crate::support::ptxas::assemble(&text, target) else { return };
            assert!(report.contains("0 bytes stack frame, 0 bytes spill stores"), "{report}");
            println!("{name} {target}: {}", report.lines().last().unwrap_or_default());
        }
    }
}

const BASE: u64 = 0x5_0000_0000;

/// What a thread of a one-dimensional grid of two blocks of four threads sees.
fn thread(number: u64) -> ptx::Specials {
    let mut specials = ptx::Specials::new();
    for (name, x) in
        [("tid.x", number % 4), ("ctaid.x", number / 4), ("ntid.x", 4), ("nctaid.x", 2)]
    {
        specials.insert(name, x);
    }
    for name in ["tid.y", "tid.z", "ctaid.y", "ctaid.z"] {
        specials.insert(name, 0);
    }
    for name in ["ntid.y", "ntid.z", "nctaid.y", "nctaid.z"] {
        specials.insert(name, 1);
    }
    specials.extend([("laneid", number % 4), ("smid", number / 4), ("globaltimer", 1000 + number)]);
    specials.insert("data0", BASE + 0x8000);
    specials
}

/// Runs `program` for eight threads of `memory`, whose last 64 bytes take the results.
fn launch(program: &Program, words: Vec<u64>, memory: &mut ptx::Memory) {
    let options = Options { addresses: Addresses::Fixed(words), ..Options::default() };
    let text = gpuwhy_gpubpf::kernel(program, &options, "probe").unwrap();
    let results = BASE + memory.bytes.len() as u64 - 64;
    for number in 0..8 {
        ptx::run(&text, &[BASE, 0, 0, results], &thread(number), memory).unwrap();
    }
}

fn word(memory: &ptx::Memory, at: u64) -> u64 {
    u64::from_le_bytes(memory.bytes[at as usize..at as usize + 8].try_into().unwrap())
}

#[test]
fn each_thread_counts_for_itself_and_those_without_room_are_counted() {
    let (program, _) = compile("threadhist", "threadhist", "v3");
    let mut memory = ptx::Memory { base: BASE, bytes: vec![0; 0x1000] };
    // Values for six threads, at 0; what is lost, at 0x800.
    let words = vec![0, 0, 0, 0, BASE, 6, BASE + 0x800];
    launch(&program, words.clone(), &mut memory);
    launch(&program, words, &mut memory);
    let counts: Vec<u64> = (0..14).map(|n| word(&memory, n * 8)).collect();
    assert_eq!(counts, [0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 0, 0]);
    assert_eq!(word(&memory, 0x800), 4);
}

#[test]
fn records_and_sums_arrive_and_a_full_ring_counts_what_it_drops() {
    let (mut program, _) = compile("retsnoop", "retsnoop", "v3");
    let index = |name: &str| program.maps.iter().position(|m| m.name == name).unwrap();
    let (events, totals) = (index("events"), index("totals"));
    program.maps[events].max_entries = 3;
    let ring = program.maps[events].ring_bytes().unwrap();
    let mut memory = ptx::Memory { base: BASE, bytes: vec![0; 0x9000] };
    memory.bytes[0x8000..0x8000 + program.data[0].bytes.len()]
        .copy_from_slice(&program.data[0].bytes);
    let mut words = vec![0; 4 + 3 * program.maps.len()];
    words[4 + 3 * events..][..3].copy_from_slice(&[BASE, 2, BASE + 0x4000]);
    words[4 + 3 * totals..][..3].copy_from_slice(&[BASE + 0x5000, 0, 0]);
    launch(&program, words, &mut memory);
    // Block 1 ran on SM 1: its ring took three of four records.
    assert_eq!((word(&memory, ring), word(&memory, ring + 8), word(&memory, 0x4000)), (3, 3, 2));
    for place in 0..3 {
        let slot = ring + 64 + place * program.maps[events].ring_slot();
        assert_eq!(
            word(&memory, slot),
            (place + 1) << 32 | 64,
            "the number and the size are there"
        );
        let record: Vec<u64> = (1..9).map(|n| word(&memory, slot + n * 8)).collect();
        let number = 4 + place;
        assert_eq!(record, [1, 0, 0, place, 0, 0, 1000 + number, 1 | place << 32]);
    }
    // Two lanes of each number: how many, and weight times lane.
    let sums: Vec<u64> = (0..8).map(|n| word(&memory, 0x5000 + n * 8)).collect();
    assert_eq!(sums, [2, 0, 2, 4, 2, 12, 2, 30]);
}

#[test]
fn a_cut_or_garbled_object_is_an_error_and_no_panic() {
    let whole = clang::object("retsnoop", "v3");
    let mut refused = 0;
    for end in (0..whole.len()).step_by(37) {
        refused += usize::from(try_all(&whole[..end]).is_err());
    }
    assert!(refused > whole.len() / 37 * 9 / 10, "{refused}");
    // One byte changed at a time.
    let mut state = 1_u64;
    for _ in 0..3000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut bytes = whole.clone();
        let at = (state >> 33) as usize % bytes.len();
        bytes[at] ^= (state >> 24) as u8 | 1;
        let _ = try_all(&bytes);
    }
    assert!(Object::read(b"").is_err());
}

fn try_all(bytes: &[u8]) -> Result<(), String> {
    let object = Object::read(bytes).map_err(|e| e.to_string())?;
    for entry in object.entries() {
        let linked = object.link(entry);
        if let Ok(program) = linked {
            let _ = gpuwhy_gpubpf::verify(&program, gpuwhy_gpubpf::Budget::default());
            let _ = gpuwhy_gpubpf::fragment(&program, &Options::default());
        }
    }
    Ok(())
}
