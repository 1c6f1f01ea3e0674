//! Names that attack whoever prints them, and a recording that is made of nothing else.
//!
//! A process chooses its name, a container its label, a program the names of its kernels and steps, a
//! user those of files. The recording has a step that is slowed by a process, GPU work that varies, a
//! source that complains and a span that breaks a rule, so that every command has something to print.
//!
//! The command's own tests use this file too.

use gpuwhy_schema::*;

/// What a text would do to a terminal, and the text.
pub const TEXTS: [(&str, &str); 11] = [
    ("fills the clipboard", "\x1b]52;c;cm0gLXJmIH4K\x07"),
    ("clears the screen", "\x1b[H\x1b[2J\x1b[3J"),
    ("sets the title", "\x1b]0;root@host\x07"),
    ("begins a sequence in C1", "\u{9b}2J\u{9d}0;t\u{9c}"),
    ("has the terminal answer as if it were typed", "\x1bP$q\"p\x1b\\\x1b[6n\x1b[c\x05"),
    ("turns the reading direction", "\u{202e}gnp.txt\u{2066}\u{200f}\u{61c}"),
    ("pretends a prompt", "x\nroot@host:~# rm -rf ~\n"),
    ("overwrites the line", "x\r\x1b[K\x08\x08all is well"),
    ("ends a C string", "a\0b"),
    ("hides characters", "a\u{200b}\u{2060}\u{feff}\u{ad}\x7f\x0b\x0c"),
    ("switches the character set", "\x0e\x1b(0\x1b%@"),
];

/// All of them in one, and then some length.
pub fn everything() -> String {
    let mut all: String = TEXTS.iter().map(|(_, text)| *text).collect();
    all.push_str(&"x".repeat(1 << 16));
    all
}

/// Characters that no command may send to a terminal, among those that were sent: controls but for the end
/// of a line, and those that change the direction or do not show. Bytes that are no UTF-8 count one each.
pub fn harmful(sent: &[u8]) -> usize {
    let mut count = 0;
    for chunk in sent.utf8_chunks() {
        count += chunk.valid().chars().filter(|&c| c != '\n' && text::unseen(c)).count();
        count += chunk.invalid().len();
    }
    count
}

/// Steps of the recording, ten a second.
const STEPS: i64 = 300;
/// From this step on a neighbour is in the way.
const SLOW_FROM: i64 = 200;

/// A recording in which every name is `name` and a few characters that tell it from the others.
pub fn recording(name: &str) -> Rows {
    let mut lanes = Lanes::default();
    let own = |what: &str| format!("{name}{what}");
    let source = lanes.source("bpf:run_queue", &own("tool"), &own("1"), &own("config=1"));
    lanes.update_source(source, |s| {
        s.state = SourceState::Degraded;
        s.note = Some(own("note").into());
    });
    let host = lanes.entity(EntityKind::Host, &own("host"), |_| {});
    let cgroup = lanes.entity(EntityKind::Cgroup, &own("/cgroup"), |e| e.parent = Some(host));
    let mut process = |what: &str, pid: i64| {
        let process = lanes.entity(EntityKind::Process, &own(&format!("{what}{pid}@1")), |e| {
            e.parent = Some(cgroup);
            e.name = own(what).into();
            e.number = Some(pid);
        });
        lanes.entity(EntityKind::Thread, &own(&format!("{what}{pid}/{pid}@1")), |e| {
            e.parent = Some(process);
            e.name = own(what).into();
            e.number = Some(pid);
        })
    };
    let (worker, hog) = (process("worker", 42), process("hog", 43));
    let cpu = lanes.entity(EntityKind::Cpu, &own("cpu0"), |e| {
        e.parent = Some(host);
        e.number = Some(0);
    });
    let steps = lanes.track(worker, None, Lane::spans(names::STEPS, Discipline::Serial), source);
    let lane = Lane::states(names::THREAD_STATE, Discipline::Sparse);
    let states = lanes.track(worker, None, lane, source);
    let hog_states = lanes.track(hog, None, lane, source);
    let lane = Lane::states(names::OCCUPANT, Discipline::Sparse);
    let occupant = lanes.track(cpu, None, lane, source);
    let mut rows = Rows::default();
    let mut ids = Ids::of_shard(0);
    let ms = Ns::millis;
    for seq in 0..STEPS {
        let ts = ms(100 * seq);
        let held_up = if seq >= SLOW_FROM { 40 } else { 0 };
        let run = 20 + seq % 3;
        let id = ids.next_id();
        let dur = Some(ms(run + held_up));
        rows.span.push(Span { id, ts, dur, track: steps, parent: None, name: own("step").into() });
        let (seq, size, rank) = (seq as u64, None, None);
        rows.step.push(Step { id, ts, thread: worker, seq, size, rank });
        let mut state = |track, at: i64, long: i64, value, arg| {
            if long > 0 {
                let (ts, dur) = (ts + ms(at), Some(ms(long)));
                rows.state.push(State { ts, dur, track, value, arg });
            }
        };
        let code = |state: ThreadState| state.code();
        state(states, 0, held_up, code(ThreadState::Runnable), Some(0));
        state(states, held_up, run, code(ThreadState::Running), Some(0));
        state(states, held_up + run, 100 - held_up - run, code(ThreadState::Sleep), Some(-1));
        state(hog_states, 0, held_up, code(ThreadState::Running), Some(0));
        state(occupant, 0, held_up, i64::from(hog.0), None);
        state(occupant, held_up, run, i64::from(worker.0), None);
    }
    gpu_work(name, &mut lanes, host, source, &mut ids, &mut rows);
    // A rule of the schema that is broken, by name: two spans at once on a lane of one.
    let ts = ms(100 * STEPS);
    for _ in 0..2 {
        let (id, name) = (ids.next_id(), own("overlap").into());
        rows.span.push(Span { id, ts, dur: Some(ms(1)), track: steps, parent: None, name });
    }
    lanes.drain(&mut rows);
    rows
}

/// Kernels and copies of two GPUs, of which some intervals have more exposed copies than others.
fn gpu_work(
    name: &str,
    lanes: &mut Lanes,
    host: EntityId,
    source: SourceId,
    ids: &mut Ids,
    rows: &mut Rows,
) {
    let ms = Ns::millis;
    for number in 0..2 {
        let gpu = lanes.entity(EntityKind::Gpu, &format!("{name}gpu{number}"), |e| {
            e.parent = Some(host);
            e.number = Some(number);
        });
        let lane = Lane::spans(names::STREAM, Discipline::Overlap);
        let stream = lanes.entity(EntityKind::Stream, &format!("{name}gpu{number}/7"), |e| {
            e.parent = Some(gpu);
            e.number = Some(7);
        });
        let track = lanes.track(stream, None, lane, source);
        for i in 0..STEPS * 4 {
            let ts = ms(25 * i);
            let id = ids.next_id();
            let kernel = format!("{name}kernel{}", i % 5);
            let dur = Some(ms(10));
            rows.span.push(Span { id, ts, dur, track, parent: None, name: kernel.as_str().into() });
            rows.kernel.push(Kernel::bare(id, ts, gpu));
            let id = ids.next_id();
            let ts = ts + ms(11);
            let long = if i / 40 % 10 == 3 { 12 } else { 1 };
            let name = format!("{name}copy").as_str().into();
            rows.span.push(Span { id, ts, dur: Some(ms(long)), track, parent: None, name });
            rows.copy.push(Copy {
                id,
                ts,
                kind: CopyKind::HostToDevice,
                bytes: 1 << 20,
                from: None,
                to: Some(gpu),
                pinned: None,
                process: None,
                correlation: None,
            });
        }
    }
}
