//! Texts that the tests write themselves: sound ones, cut-off ones, and ones that ask for too much.

use gpuwhy_schema::Rows;
use std::io::Write as _;

use crate::imported::import;
use crate::importer::{Options, Summary};
use crate::{Result, importers};

/// A thread that works, is preempted, waits and is woken; a disk; and what was lost.
const SOUND: &str = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 9/14   #P:2
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
          <idle>-0       [000] d..2.     1.000000: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=trainer next_pid=7 next_prio=120
         trainer-7       [000] .....     1.000100: block_rq_issue: 8,16 R 4096 () 1234 + 8 [trainer]
CPU:1 [LOST 2 EVENTS]
         trainer-7       [000] d..2.     1.001000: sched_switch: prev_comm=trainer prev_pid=7 prev_prio=120 prev_state=R+ ==> next_comm=hog next_pid=9 next_prio=120
             hog-9       [000] d..2.     1.003000: sched_switch: prev_comm=hog prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=trainer next_pid=7 next_prio=120
         trainer-7       [000] d..2.     1.004000: sched_switch: prev_comm=trainer prev_pid=7 prev_prio=120 prev_state=D ==> next_comm=swapper/0 next_pid=0 next_prio=120
          <idle>-0       [000] d.h..     1.005000: block_rq_complete: 8,16 R () 1234 + 8 [0]
          <idle>-0       [000] dNh..     1.005010: sched_wakeup: comm=trainer pid=7 prio=120 target_cpu=000
          <idle>-0       [000] d..2.     1.005100: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=trainer next_pid=7 next_prio=120
         trainer-7       [000] .....     1.006000: tracing_mark_write: step 1
";

fn imported(text: &[u8]) -> Result<(Rows, Summary)> {
    crate::imported::imported("trace.txt", text)
}

/// The error, without the directory.
fn error(text: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.txt");
    std::fs::write(&path, text).unwrap();
    import(&path).expect_err("an error").to_string().replace(&*dir.path().to_string_lossy(), "…")
}

/// What was left out, in short.
fn left_out(text: &[u8]) -> String {
    let (_, summary) = imported(text).unwrap();
    summary.left_out.iter().map(|file| file.left_out.to_string()).collect()
}

#[test]
fn a_text_becomes_states_wakeups_and_requests_and_says_what_was_lost() {
    let (rows, summary) = imported(SOUND.as_bytes()).unwrap();
    let states: Vec<String> = rows
        .state
        .iter()
        .map(|state| format!("{:?} {} {}", state.value, state.ts.0, state.dur.unwrap().0))
        .collect();
    insta::assert_snapshot!(format!(
        "{}\n{} wakeups, {} requests, marks: {:?}\n{}\n{}",
        states.join("\n"),
        rows.wakeup.len(),
        rows.io.len(),
        rows.mark.iter().map(|mark| (&*mark.name, mark.ts.0)).collect::<Vec<_>>(),
        summary.lines.join("\n"),
        summary.left_out[0].left_out
    ));
    // The same, gzipped.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(SOUND.as_bytes()).unwrap();
    let (again, _) = imported(&encoder.finish().unwrap()).unwrap();
    assert_eq!(format!("{:?}", again.state), format!("{:?}", rows.state));
}

#[test]
fn several_files_are_merged_by_time_and_their_clocks_are_not_said_to_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().join("a.txt"), dir.path().join("b.txt")];
    for path in &paths {
        std::fs::write(path, SOUND).unwrap();
    }
    let mut import =
        importers::find(&paths).unwrap().open(&paths, &Options { threads: 1 }).unwrap();
    let mut all = Rows::default();
    while let Some(batch) = import.next().unwrap() {
        all.append(&mut batch.into_rows());
    }
    assert_eq!(import.summary().about["earlier_than_one_before"], 0);
    assert_eq!(import.summary().about["events"], 18);
    let source = all.source.last().unwrap();
    assert!(source.config.contains("unknown"), "{}", source.config);
}

#[test]
fn a_line_that_is_cut_off_is_left_out_and_said() {
    let cut = SOUND.trim_end().strip_suffix(" 1").unwrap();
    let said = left_out(cut.as_bytes());
    assert!(said.contains("a line that the end of the file cuts off 1"), "{said}");
    let (rows, _) = imported(cut.as_bytes()).unwrap();
    assert!(rows.mark.iter().all(|mark| &*mark.name != "tracing_mark_write"));
    // A gzip file that ends early is damaged, after the lines that it holds.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(SOUND.repeat(100).as_bytes()).unwrap();
    let whole = encoder.finish().unwrap();
    let said = error(&whole[..whole.len() - 20]);
    assert!(said.contains("is damaged, after line "), "{said}");
}

#[test]
fn lines_that_are_no_events_are_counted_and_the_first_is_shown() {
    let text = format!(
        "{SOUND}            bash-1 [000] 2.0: do_sys_open <-sys_open\nhello\n  bash-1 [000] 9.0: ??\n{}\n",
        "x".repeat(200_000)
    );
    let said = left_out(text.as_bytes());
    insta::assert_snapshot!(said);
}

#[test]
fn texts_without_events_and_with_ticks_are_refused_with_the_reason() {
    let lines = [
        error(b"# tracer: nop\n#\n"),
        error(b"# tracer: function\n            bash-1977    [000] 17284.99: sys_open <-do_it\n"),
        error(b"# tracer: function_graph\n 0)   0.633 us    |  f();\n"),
        error(b"# tracer: nop\n            bash-1    [000] 123456: sched_waking: comm=a pid=1\n"),
        error(b"# tracer: nop"),
    ];
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn any_number_of_types_and_threads_takes_bounded_memory() {
    let mut text = SOUND.to_owned();
    for number in 0..20_000 {
        text.push_str(&format!(" a-{} [000] 2.0: made_up_{number}: a=1\n", number + 1));
    }
    let said = left_out(text.as_bytes());
    assert!(said.contains("events beyond 16384 types 3"), "{said}");
    // Fields of one event.
    let many: Vec<String> = (0..1000).map(|number| format!("k{number}={number}")).collect();
    let text = format!("{SOUND} a-1 [000] 2.0: made_up: {}\n", many.join(" "));
    let (_, summary) = imported(text.as_bytes()).unwrap();
    let is_said = |line: &String| line.ends_with("936 fields beyond 64 of one event are absent");
    assert!(summary.lines.iter().any(is_said), "{:?}", summary.lines);
}

#[test]
fn seeds_of_the_fuzz_target_are_these_texts() {
    let seed = include_bytes!("../../../../fuzz/corpus/ftrace_text/kernel");
    assert!(&seed[..] == SOUND.as_bytes(), "the seed is not the text of the tests");
}

#[test]
fn garbled_texts_are_refused_or_read_and_break_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.txt");
    let mut state = 17u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut read = 0;
    for _ in 0..3000 {
        let mut garbled = SOUND.as_bytes().to_vec();
        for _ in 0..1 + random(30) {
            let at = random(garbled.len());
            match random(6) {
                0 => garbled.insert(at, b"[]():=-/., \n"[random(12)]),
                1 => drop(garbled.remove(at)),
                2 => garbled[at] = random(256) as u8,
                _ => garbled[at] = b"0123456789-[]: ="[random(16)],
            }
        }
        std::fs::write(&path, garbled).unwrap();
        read += u32::from(import(&path).is_ok());
    }
    assert!(read > 2000, "{read} of 3000 are read");
}
