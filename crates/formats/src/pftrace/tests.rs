//! Small traces that the tests write themselves, and those of Perfetto's own tests.

use gpuwhy_schema::{EntityKind, Rows, ThreadState};

use super::build::{bytes, from_text, number};
use crate::importer::{Candidate, Importer as _, Summary};
use crate::{Result, shared_data};

fn imported(trace: &[u8]) -> Result<(Rows, Summary)> {
    crate::imported::imported("t.pftrace", trace)
}

/// A message of these numbers and texts.
fn of(make: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    make(&mut out);
    out
}

fn packet(field: u32, body: &[u8]) -> Vec<u8> {
    of(|out| bytes(out, 1, &of(|out| bytes(out, field, body))))
}

fn event(time: u64, pid: u64, field: u32, body: &[u8]) -> Vec<u8> {
    of(|out| {
        number(out, 1, time);
        number(out, 2, pid);
        bytes(out, field, body);
    })
}

fn bundle(cpu: u64, events: &[Vec<u8>]) -> Vec<u8> {
    of(|out| {
        number(out, 1, cpu);
        events.iter().for_each(|event| bytes(out, 2, event));
    })
}

fn switch(prev: u64, state: u64, next: u64) -> Vec<u8> {
    of(|out| {
        bytes(out, 1, format!("t{prev}").as_bytes());
        number(out, 2, prev);
        number(out, 4, state);
        bytes(out, 5, format!("t{next}").as_bytes());
        number(out, 6, next);
    })
}

/// The attributes of all marks: `name key=value …`.
fn marks(rows: &Rows) -> Vec<String> {
    let of = |mark: &gpuwhy_schema::Mark| {
        let own = rows.attr.iter().filter(|attr| attr.id == mark.id);
        let own = own.map(|attr| format!(" {}={}", attr.key, attr.value));
        format!("{} {}{}", mark.ts.0, mark.name, own.collect::<String>())
    };
    rows.mark.iter().map(of).collect()
}

fn states(rows: &Rows) -> Vec<(i64, i64, &'static str)> {
    let threads = rows.track.iter().filter(|track| &*track.name == "thread_state");
    let tracks: Vec<_> = threads.map(|track| track.id).collect();
    let own = rows.state.iter().filter(|state| tracks.contains(&state.track));
    own.map(|s| (s.ts.0, s.dur.unwrap().0, ThreadState::from_code(s.value).unwrap().as_str()))
        .collect()
}

#[test]
fn bundles_of_cpus_come_into_the_order_of_time_whether_compact_or_compressed() {
    let one = bundle(0, &[event(100, 5, 4, &switch(5, 0, 6)), event(400, 6, 4, &switch(6, 1, 5))]);
    let waking = of(|out| {
        bytes(out, 1, b"t6");
        number(out, 2, 6);
    });
    let two = bundle(1, &[event(600, 0, 20, &waking)]);
    let plain = [packet(1, &one), packet(1, &two)].concat();
    let (rows, summary) = imported(&plain).unwrap();
    let expected =
        [(100, 300, "runnable"), (100, 300, "running"), (400, 200, "running"), (400, 200, "sleep")];
    let mut found = states(&rows);
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!((summary.about["events"].clone(), summary.left_out.len()), (3.into(), 0));
    // The same, compressed by zlib, and in the wrong order.
    let packed = {
        use std::io::Write as _;
        let level = flate2::Compression::fast();
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
        encoder.write_all(&[packet(1, &two), packet(1, &one)].concat()).unwrap();
        packet(50, &encoder.finish().unwrap())
    };
    let (again, _) = imported(&packed).unwrap();
    assert_eq!(format!("{:?}", again.state), format!("{:?}", rows.state));
    // The same in columns: what ran before the first switch is not said there.
    let column =
        |numbers: &[u64]| of(|out| numbers.iter().for_each(|n| super::build::varint(out, *n)));
    let compact = of(|out| {
        bytes(out, 1, &column(&[50, 50, 300]));
        bytes(out, 2, &column(&[0, 0, 1]));
        bytes(out, 3, &column(&[5, 6, 5]));
        bytes(out, 4, &column(&[120, 120, 120]));
        bytes(out, 5, b"t5");
        bytes(out, 5, b"t6");
        bytes(out, 6, &column(&[0, 1, 0]));
        bytes(out, 7, &column(&[600]));
        bytes(out, 8, &column(&[6]));
        bytes(out, 9, &column(&[1]));
        bytes(out, 10, &column(&[120]));
        bytes(out, 11, &column(&[1]));
    });
    let compact = packet(
        1,
        &of(|out| {
            number(out, 1, 0);
            bytes(out, 4, &compact);
        }),
    );
    let (rows, summary) = imported(&compact).unwrap();
    assert_eq!(summary.about["events"], 4);
    let found = states(&rows);
    assert!(expected.iter().all(|state| found.contains(state)), "{found:?}");
    assert!(rows.entity.iter().any(|one| one.kind == EntityKind::Thread && &*one.name == "t6"));
}

#[test]
fn events_that_perfetto_has_no_type_for_have_their_names_in_both_encodings() {
    let generic = of(|out| {
        bytes(out, 1, b"amdgpu_cs_ioctl");
        bytes(
            out,
            2,
            &of(|out| {
                bytes(out, 1, b"timeline");
                bytes(out, 3, b"gfx");
            }),
        );
        bytes(
            out,
            2,
            &of(|out| {
                bytes(out, 1, b"offset");
                number(out, 4, -3i64 as u64);
            }),
        );
    });
    let described = of(|out| {
        bytes(out, 1, b"i915_request_in");
        for (number_of, name, kind) in [(1, "dev", 13), (2, "prio", 5), (3, "who", 9)] {
            bytes(
                out,
                2,
                &of(|out| {
                    bytes(out, 1, name.as_bytes());
                    number(out, 3, number_of);
                    number(out, 5, kind);
                }),
            );
        }
    });
    let own = of(|out| {
        number(out, 1, 7);
        number(out, 2, -1i64 as u64);
        bytes(out, 3, b"x");
    });
    let bundle = of(|out| {
        bytes(out, 2, &event(10, 3, 327, &generic));
        bytes(out, 2, &event(20, 3, 70_000, &own));
        bytes(out, 2, &event(30, 3, 70_001, &own));
        bytes(
            out,
            11,
            &of(|out| {
                number(out, 1, 70_000);
                bytes(out, 2, &described);
            }),
        );
    });
    let (rows, summary) = imported(&packet(1, &bundle)).unwrap();
    let expected =
        ["10 amdgpu_cs_ioctl timeline=gfx offset=-3", "20 i915_request_in dev=7 prio=-1 who=x"];
    assert_eq!(marks(&rows), expected);
    let left_out = summary.left_out[0].to_string();
    assert!(left_out.contains("events of field 70001 (1 row)"), "{left_out}");
}

#[test]
fn names_of_threads_and_what_was_lost_are_taken_from_their_packets() {
    let tree = of(|out| {
        bytes(
            out,
            1,
            &of(|out| {
                number(out, 1, 40);
                bytes(out, 3, b"/usr/bin/trainer");
            }),
        );
        bytes(
            out,
            2,
            &of(|out| {
                number(out, 1, 41);
                bytes(out, 2, b"loader");
                number(out, 3, 40);
            }),
        );
    });
    let stats = |phase: u64, lost: u64| {
        let cpu = of(|out| number(out, 3, lost));
        packet(
            34,
            &of(|out| {
                number(out, 1, phase);
                bytes(out, 2, &cpu);
            }),
        )
    };
    let events = bundle(0, &[event(100, 41, 413, &of(|out| number(out, 1, 9)))]);
    let trace = [stats(1, 5), packet(2, &tree), packet(1, &events), packet(11, b""), stats(2, 12)];
    let (rows, summary) = imported(&trace.concat()).unwrap();
    let thread = rows.entity.iter().rfind(|one| one.number == Some(41)).unwrap();
    assert_eq!(&*thread.name, "loader");
    let process = rows.entity.iter().rfind(|one| Some(one.id) == thread.parent).unwrap();
    assert_eq!((&*process.name, process.number), ("trainer", Some(40)));
    let left_out = &summary.left_out[0];
    assert_eq!(left_out.left_out.lost(), 7);
    assert!(left_out.to_string().contains("packets of track_event (1 row)"), "{left_out}");
}

#[test]
fn a_trace_that_is_cut_off_or_garbled_is_refused_with_the_byte() {
    let one = packet(1, &bundle(0, &[event(100, 5, 4, &switch(5, 0, 6))]));
    let trace = [one.clone(), one.clone()].concat();
    for length in one.len() + 1..trace.len() {
        let error = imported(&trace[..length]).err().unwrap().to_string();
        assert!(error.contains("is damaged, in the packet before byte"), "{length}: {error}");
    }
    let error = imported(&[&one[..], b"\x0a\xff\xff\xff\xff\x7f"].concat()).err().unwrap();
    assert!(error.to_string().contains("up to 67108864 are read"), "{error}");
    let error = imported(&[one, packet(50, b"no zlib")].concat()).err().unwrap().to_string();
    assert!(error.contains("compressed packets:"), "{error}");
}

/// What the fuzz target departs from.
#[test]
fn the_seeds_of_the_fuzz_target_are_sound_and_hold_the_same() {
    let plain: &[u8] = include_bytes!("../../../../fuzz/corpus/pftrace/plain");
    let packed: &[u8] = include_bytes!("../../../../fuzz/corpus/pftrace/packed");
    let [plain, packed] = [plain, packed].map(|seed| imported(seed).unwrap());
    assert_eq!(plain.1.about["types"], packed.1.about["types"]);
    assert_eq!(
        (plain.1.about["events"].clone(), plain.1.left_out[0].left_out.lost()),
        (11.into(), 8)
    );
}

#[test]
fn other_messages_are_not_taken_for_traces() {
    let looks = |head: &[u8]| {
        let candidate = Candidate { path: "x".into(), is_dir: false, head: head.to_vec() };
        super::Pftrace.recognise(&candidate)
    };
    assert!(looks(&packet(1, b"")));
    let long = packet(33, &[0; 9000]);
    assert!(looks(&long[..4096]));
    // A profile of pprof: its first message has numbers only. A text that begins with a line feed.
    assert!(!looks(b"\x0a\x04\x08\x01\x10\x02\x0a\x04"));
    assert!(!looks(b"\nhello, this is text") && !looks(b"") && !looks(b"\x0a"));
}

/// The traces of Perfetto's own tests, with its formats as their text.
#[test]
fn traces_of_perfettos_tests_are_read_field_by_field() {
    let Some(data) = shared_data() else { return };
    let folder = data.join("kernel/perfetto-textproto");
    let read = |name: &str| match std::fs::read_to_string(folder.join(name)) {
        Ok(text) => Some(imported(&from_text(&text)).unwrap()),
        Err(_) => {
            println!("skipped: there is no {name}");
            None
        }
    };
    for name in ["drm_sched_617", "drm_sched", "drm_dma_fence", "virtio_gpu"] {
        let Some((rows, summary)) = read(&format!("{name}.textproto")) else { continue };
        assert!(summary.left_out.is_empty(), "{:?}", summary.left_out);
        insta::assert_snapshot!(format!("perfetto_{name}"), marks(&rows).join("\n"));
    }
}
