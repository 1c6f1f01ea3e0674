//! Policies: what they may call, what they may ask for, and what those that `gpuwhy probe new` writes ask for when
//! they hear of a program.

use crate::support::{asm, clang};
use gpuwhy_gpubpf::policy::{Asked, Machine, Policy};
use gpuwhy_gpubpf::sim::{Contents, Entry};
use gpuwhy_gpubpf::splice::{How, Plan};
use gpuwhy_gpubpf::{Action, Advice, Budget, Effect, Event, Object, Program, Skeleton};

const MIB: u64 = 1 << 20;
/// Where the managed memory of these tests begins.
const BASE: u64 = 0x7000_0000_0000;

fn verdict(section: &str, text: &str) -> Result<Effect, String> {
    let code = asm::assemble(text).unwrap();
    let mut program = Program::from_bytes(&code, section).unwrap();
    program.section = section.into();
    let verdict = gpuwhy_gpubpf::verify(&program, Budget::POLICY);
    verdict.map(|certificate| certificate.effect).map_err(|fault| fault.to_string())
}

const ASK: &str = "mov %r1, 4096\nmov %r2, 8\nmov %r3, 3\n";

#[test]
fn what_a_policy_may_ask_for_is_refused_in_kernels_and_proved_as_a_class() {
    for (helper, effect) in [
        (514, Effect::Prefetching),
        (515, Effect::Prefetching),
        (516, Effect::Controlling),
        (517, Effect::Controlling),
    ] {
        let text = format!("{ASK}call {helper}\nexit");
        for event in ["alloc", "launch", "tick"] {
            assert_eq!(verdict(&format!("gpu/policy/{event}"), &text), Ok(effect), "{helper}");
        }
        for section in ["kprobe/*", "gpu/insn/loads", "gpu/order/*"] {
            let why = verdict(section, &text).unwrap_err();
            assert!(why.contains("a helper of policies"), "{section}, {helper}: {why}");
        }
    }
    assert_eq!(verdict("gpu/policy/tick", "call 502\nexit"), Ok(Effect::Observing));
}

#[test]
fn what_only_a_kernel_can_tell_or_do_is_refused_in_policies() {
    for helper in [14, 506, 507, 509, 510, 511, 513] {
        let why = verdict("gpu/policy/tick", &format!("call {helper}\nexit")).unwrap_err();
        assert!(why.contains("a policy runs on the host"), "{helper}: {why}");
        assert!(verdict("kprobe/*", &format!("call {helper}\nexit")).is_ok(), "{helper}");
    }
    for helper in [503, 504, 505, 508, 512, 25] {
        let why = verdict("gpu/policy/launch", &format!("{ASK}call {helper}\nexit")).unwrap_err();
        assert!(why.contains("a policy runs on the host"), "{helper}: {why}");
    }
}

#[test]
fn of_what_it_hears_a_policy_reads_the_words_that_there_are() {
    for (event, last) in [("alloc", 5), ("launch", 25), ("tick", 3)] {
        let read = |word: usize| {
            verdict(&format!("gpu/policy/{event}"), &format!("ldxdw %r2, [%r1+{}]\nexit", 8 * word))
        };
        assert_eq!(read(last), Ok(Effect::Observing), "{event}");
        assert!(read(last + 1).unwrap_err().contains("of the context"), "{event}");
    }
}

#[test]
fn an_address_of_its_own_is_nothing_to_ask_for() {
    let text = "stdw [%r10-8], 1\nmov %r1, %r10\nmov %r2, 8\ncall 514\nexit";
    assert!(verdict("gpu/policy/tick", text).unwrap_err().contains("r1 is an address"));
    let text = "mov %r1, 8\ncall 514\nexit";
    assert!(verdict("gpu/policy/tick", text).unwrap_err().contains("r2 is used before"));
}

/// The policies of an object, in a machine.
fn machine(object: &[u8]) -> Machine {
    let mut plan = Plan::new(How::default());
    plan.object(&Object::read(object).unwrap());
    for probe in plan.probes() {
        assert!(probe.verdict.is_ok(), "{}: {:?}", probe.name, probe.verdict);
    }
    Machine::new(&Policy::of(&plan)).unwrap()
}

fn tool(name: &str) -> Machine {
    machine(&clang::skeleton(Skeleton::named(name).unwrap()))
}

/// A launch whose first parameter points to so many MiB of an allocation of 64 MiB, and what is asked for: from and
/// to, in MiB.
fn launched(machine: &mut Machine, allocation: u64, at: u64) -> Vec<(u64, u64)> {
    let mut words = vec![0; Event::Launch.context_words()];
    words[9] = 1;
    words[10..14].copy_from_slice(&[allocation, BASE * allocation, 64 * MIB, at * MIB]);
    let asked = machine.run(Event::Launch, &words, 5).unwrap();
    let range = |action: &Action| match *action {
        Action::Prefetch { address, bytes } => {
            let from = address - BASE * allocation;
            (from / MIB, (from + bytes) / MIB)
        }
        _ => panic!("{action:?}"),
    };
    asked.actions.iter().map(range).collect()
}

#[test]
fn the_sequential_policy_asks_for_what_lies_behind_the_third_launch_of_a_walk_and_for_nothing_twice()
 {
    let mut machine = tool("sequential");
    let mut asked = |at| launched(&mut machine, 1, at);
    assert_eq!([asked(0), asked(2)], [vec![], vec![]]);
    assert_eq!(asked(4), [(6, 14)]);
    assert_eq!(asked(4), [], "the same place again");
    assert_eq!([asked(6), asked(8)], [[(14, 16)], [(16, 18)]]);
    // Back, or far away, is another walk; behind the end there is nothing.
    assert_eq!([asked(2), asked(40)], [vec![], vec![]]);
    assert_eq!([asked(44), asked(48)], [vec![], vec![(52, 60)]]);
    assert_eq!([asked(52), asked(56)], [vec![(60, 64)], vec![]]);
}

#[test]
fn walks_through_several_allocations_are_told_apart() {
    let mut machine = tool("sequential");
    for at in [0, 2] {
        assert_eq!(launched(&mut machine, 1, at), []);
        assert_eq!(launched(&mut machine, 2, 2 * at), []);
    }
    assert_eq!(launched(&mut machine, 1, 4), [(6, 14)]);
    assert_eq!(launched(&mut machine, 2, 8), [(12, 20)]);
    // One whose number has the same place in the map.
    assert_eq!(launched(&mut machine, 257, 6), []);
    assert_eq!(launched(&mut machine, 1, 6), []);
}

#[test]
fn the_stride_policy_asks_for_the_next_places_at_the_same_distance_either_way() {
    let mut machine = tool("stride");
    let mut asked = |at| launched(&mut machine, 1, at);
    assert_eq!([asked(0), asked(6), asked(12)], [vec![], vec![], vec![]]);
    assert_eq!(asked(18), [(24, 26), (30, 32), (36, 38)]);
    assert_eq!(asked(48), [], "another distance");
    assert_eq!([asked(44), asked(40)], [vec![], vec![]]);
    assert_eq!(asked(36), [(32, 34), (28, 30), (24, 26)]);
    assert_eq!([asked(4), asked(3), asked(2)], [vec![], vec![], vec![]]);
    assert_eq!(asked(1), [(0, 2)], "and nothing before the beginning");
}

#[test]
fn where_launches_come_in_no_order_nothing_is_asked_for() {
    for name in ["sequential", "stride"] {
        let mut machine = tool(name);
        for at in [7, 50, 3, 22, 61, 14, 40, 1, 33] {
            assert_eq!(launched(&mut machine, 1, at), [], "{name}");
        }
    }
}

/// A map of a device program with these counts, by number.
fn counts(counts: &[(u64, u64)]) -> Contents {
    let mut plan = Plan::new(How::default());
    plan.object(&Object::read(&clang::skeleton(Skeleton::named("hot").unwrap())).unwrap());
    let (map, _) = plan.table().maps.into_iter().find(|(map, _)| map.name == "touched").unwrap();
    let entry = |&(number, count): &(u64, u64)| Entry {
        key: (number as u32).to_le_bytes().to_vec(),
        shard: None,
        bytes: count.to_le_bytes().to_vec(),
    };
    let entries = counts.iter().map(entry).collect();
    Contents { map, entries, records: Vec::new(), lost: 0 }
}

#[test]
fn the_hot_policy_asks_for_the_regions_that_were_accessed_most_since_and_takes_its_advice_back() {
    let mut machine = tool("hot");
    // Regions 1 to 4, of which the first and the last are parts.
    let (first, at) = (1 << 21, (1 << 21) + 4096);
    let memory = |machine: &mut Machine, kind, freed| {
        machine.run(Event::Allocation, &[1, at, 3 * first, kind, 0, freed], 5).unwrap()
    };
    assert_eq!(
        memory(&mut machine, 1, 0),
        Asked::default(),
        "memory of the device is not looked at"
    );
    memory(&mut machine, 2, 0);
    let tick = |machine: &mut Machine, now: &[(u64, u64)]| {
        // Two images have counted.
        machine.show("touched", &[&counts(now), &counts(&[(9, 1)])]);
        machine.run(Event::Tick, &[5, 1], 5).unwrap().actions
    };
    let prefer =
        |address, bytes, advice: Advice| Action::Advise { address, bytes, advice: advice as u64 };
    let even = [(1, 10), (2, 10), (3, 10), (4, 10)];
    assert_eq!(tick(&mut machine, &even), []);
    assert_eq!(tick(&mut machine, &even), [], "nothing was accessed since");
    let (rest, whole) = (first - 4096, first);
    assert_eq!(
        tick(&mut machine, &[(1, 100), (2, 20), (3, 20), (4, 20)]),
        [prefer(at, rest, Advice::PreferDevice), Action::Prefetch { address: at, bytes: rest }]
    );
    // The second one is hotter now.
    assert_eq!(
        tick(&mut machine, &[(1, 110), (2, 120), (3, 30), (4, 30)]),
        [
            prefer(at, rest, Advice::NoPreference),
            prefer(2 * first, whole, Advice::PreferDevice),
            Action::Prefetch { address: 2 * first, bytes: whole },
        ]
    );
    // It is given back.
    memory(&mut machine, 2, 1);
    assert_eq!(tick(&mut machine, &[(1, 110), (2, 900), (3, 30), (4, 30)]), []);
}

#[test]
fn a_kernels_number_is_the_hash_of_its_name_and_a_run_asks_for_so_much_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("asks.bpf.c");
    let text = "#include \"gpuwhy_probe.h\"\n\
        SEC(\"gpu/policy/tick\") int one(struct gpu_policy_tick *t) {\n\
        gpu_ask_delay(gpu_name(\"_Z4gemmPf\"), 7); gpu_ask_priority(3, -2); return 0; }\n\
        SEC(\"gpu/policy/launch\") int many(struct gpu_policy_launch *l) {\n\
        for (int n = 0; n < 1030; n++) gpu_ask_prefetch(n, 1); return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let mut machine = machine(&clang::compiled(&source, "v3"));
    // FNV-1a, written down again here.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let kernel = "_Z4gemmPf".bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    let asked = machine.run(Event::Tick, &[1, 2], 5).unwrap();
    let wanted =
        vec![Action::Delay { kernel, us: 7 }, Action::Priority { stream: 3, priority: -2 }];
    assert_eq!(asked, Asked { actions: wanted, lost: 0 });
    let asked = machine.run(Event::Launch, &[], 5).unwrap();
    assert_eq!((asked.actions.len(), asked.lost), (1024, 6));
    assert_eq!(asked.actions[1023], Action::Prefetch { address: 1023, bytes: 1 });
}

/// What a policy reads by name is declared alike in both.
#[test]
fn a_map_that_is_declared_differently_in_kernels_is_refused() {
    let object = |entries: u32, section: &str, context: &str| {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("map.bpf.c");
        let text = format!(
            "#include \"gpuwhy_probe.h\"\n\
             struct {{ __uint(type, GPU_ARRAY); __uint(max_entries, {entries}); __type(key, __u32);\n\
             __type(value, __u64); }} seen SEC(\".maps\");\n\
             SEC(\"{section}\") int program(struct {context} *c) {{ __u32 key = 0;\n\
             __u64 *at = bpf_map_lookup_elem(&seen, &key);\n\
             if (at) __sync_fetch_and_add(at, 1); return 0; }}\n"
        );
        std::fs::write(&source, text).unwrap();
        Object::read(&clang::compiled(&source, "v3")).unwrap()
    };
    let shared = |entries: u32| {
        let mut plan = Plan::new(How::default());
        plan.object(&object(4, "gpu/policy/tick", "gpu_policy_tick"));
        plan.object(&object(entries, "kprobe/*", "gpu_site"));
        Policy::of(&plan).shared(&plan)
    };
    assert_eq!(shared(4), Ok(vec!["seen".to_owned()]));
    assert!(shared(5).unwrap_err().contains("map `seen` is read by a policy"));
    // What no device program of its object uses is the policy's own.
    let mut plan = Plan::new(How::default());
    plan.object(&Object::read(&clang::skeleton(Skeleton::named("hot").unwrap())).unwrap());
    assert_eq!(Policy::of(&plan).shared(&plan), Ok(vec!["touched".to_owned()]));
}
