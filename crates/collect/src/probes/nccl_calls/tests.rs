//! Records as the BPF program writes them, and the rows that follow.

use super::*;

/// A process that does not exist, so that /proc has nothing about it.
const PID: u32 = 4_000_000_000;
const COMM: u64 = 0x7f00_1000;

/// Calls of one thread, and the rows that follow.
struct Scene {
    calls: CallRows,
    cx: Context,
    now: u64,
}

impl Scene {
    fn new() -> Scene {
        let mut cx = Context::new();
        let source = cx.catalog.source("bpf:nccl_calls", "test", "0", "");
        Scene { calls: CallRows::new(source), cx, now: 1000 }
    }

    /// The next call of a thread: 10 ns long.
    fn call(&mut self, symbol: &str, args: &[u64], result: i32) {
        self.make(symbol, args, result, &[], &[]);
    }

    fn make(&mut self, symbol: &str, args: &[u64], result: i32, made: &[u64], id: &[u64]) {
        let mut all = [0; ARGS];
        all[..args.len()].copy_from_slice(args);
        self.now += 100;
        let head = Head { ts: self.now + 10, tid: PID, ..Head::default() };
        let function = functions::number(symbol).unwrap().into();
        let r = CallRecord { head, from: self.now, tgid: PID, function, result, pad: 0, args: all };
        self.calls.call(&r, made, id, &mut self.cx);
    }

    /// Each call since the last time, with its details.
    fn lines(&mut self) -> Vec<String> {
        let rows = std::mem::take(&mut self.cx.rows);
        let describe = |span: &Span| {
            let mut line = span.name.to_string();
            for c in rows.collective.iter().filter(|c| c.id == span.id) {
                line += &format!(" {} #{} {} By of {}/{}", c.op, c.seq, c.bytes, c.rank, c.ranks);
                line += &c.peer.map(|p| format!(" peer {p}")).unwrap_or_default();
            }
            for a in rows.attr.iter().filter(|a| a.id == span.id) {
                line += &format!(" {}={}", a.key, a.value);
            }
            line
        };
        rows.span.iter().map(describe).collect()
    }
}

#[test]
fn a_rank_whose_communicator_was_seen_being_created_has_collectives() {
    let mut scene = Scene::new();
    let rank: &[u64] = if cfg!(target_arch = "x86_64") { &[1] } else { &[0xdead, 1] };
    let args = [&[0x10, 4], rank].concat();
    scene.make("ncclCommInitRank", &args, 0, &[COMM], &[7; ID_WORDS]);
    scene.call("ncclAllReduce", &[1, 2, 256, 7, 0, COMM], 0);
    scene.call("ncclAllReduceConfig", &[1, 2, 256, 9, 0, COMM], 0);
    // The upper half of a register that holds an int is undefined.
    scene.call("ncclReduce", &[1, 2, 3, 0xbad_0000_0008, 0, 0xbad_0000_0002, COMM], 0);
    scene.call("ncclSend", &[1, 8, 0, 3, COMM], 0);
    scene.call("ncclSend", &[1, 8, 0, 2, COMM], 0);
    scene.call("ncclSend", &[1, 8, 0, 3, COMM], 0);
    scene.call("ncclGroupEnd", &[], 0);
    assert_eq!(
        scene.lines(),
        [
            "ncclCommInitRank",
            "ncclAllReduce AllReduce #0 1024 By of 1/4",
            "ncclAllReduceConfig AllReduce #1 512 By of 1/4",
            "ncclReduce Reduce #0 24 By of 1/4 peer 2",
            "ncclSend Send #0 8 By of 1/4 peer 3",
            "ncclSend Send #0 8 By of 1/4 peer 2",
            "ncclSend Send #1 8 By of 1/4 peer 3",
            "ncclGroupEnd",
        ]
    );
}

#[test]
fn calls_on_a_communicator_older_than_the_recording_have_attributes() {
    let mut scene = Scene::new();
    scene.call("ncclAllGather", &[1, 2, 64, 7, COMM], 0);
    scene.call("ncclAllGather", &[1, 2, 64, 99, COMM], 0);
    scene.call("ncclRecv", &[1, 8, 1, 3, COMM], 7);
    scene.call("ncclCommDestroy", &[COMM], 0);
    let at = format!("communicator=at 0x7f001000 of pid {PID}");
    assert_eq!(
        scene.lines(),
        [
            format!("ncclAllGather {at} seq=0 bytes=256"),
            format!("ncclAllGather {at} seq=1"),
            format!("ncclRecv result=in progress {at} seq=0 bytes=8 peer=3"),
            format!("ncclCommDestroy {at}"),
        ]
    );
    assert!(scene.calls.communicators.is_empty());
}

#[test]
fn a_call_that_failed_is_recorded_and_not_counted() {
    let mut scene = Scene::new();
    scene.call("ncclAllReduce", &[0, 0, 4, 7, 0, 0], 4);
    scene.call("ncclAllReduce", &[1, 2, 4, 7, 0, COMM], 5);
    scene.call("ncclAllReduce", &[1, 2, 4, 7, 0, COMM], 0);
    // A call that failed creates no communicator.
    scene.make("ncclCommInitRank", &[1, 4, 0], 1, &[0xbad], &[7; ID_WORDS]);
    let at = format!("communicator=at 0x7f001000 of pid {PID}");
    assert_eq!(
        scene.lines(),
        [
            "ncclAllReduce result=invalid argument".to_owned(),
            format!("ncclAllReduce result=invalid usage {at}"),
            format!("ncclAllReduce {at} seq=0 bytes=16"),
            "ncclCommInitRank result=unhandled CUDA error".to_owned(),
        ]
    );
    assert_eq!(scene.calls.communicators.len(), 1);
}

#[test]
fn one_call_creates_the_communicators_of_all_ranks_of_a_process() {
    let mut scene = Scene::new();
    let made: [u64; MADE] = std::array::from_fn(|i| if i < 2 { COMM + i as u64 } else { 0 });
    scene.make("ncclCommInitAll", &[1, 2], 0, &made, &[0; ID_WORDS]);
    scene.call("ncclBcast", &[1, 2, 0, 0, COMM + 1], 0);
    assert_eq!(scene.lines()[1], "ncclBcast Broadcast #0 2 By of 1/2 peer 0");
}

#[test]
fn a_split_creates_a_communicator_without_a_known_rank() {
    let mut scene = Scene::new();
    let rank: &[u64] = if cfg!(target_arch = "x86_64") { &[1] } else { &[0, 1] };
    scene.make("ncclCommInitRank", &[&[0x10, 4], rank].concat(), 0, &[COMM], &[7; ID_WORDS]);
    scene.make("ncclCommSplit", &[COMM, 0, 1, 0x20], 0, &[COMM + 64], &[0; ID_WORDS]);
    scene.call("ncclAllReduce", &[1, 2, 1, 0, 0, COMM + 64], 0);
    let id = communicator_hash(&[7; ID_WORDS]);
    let lines = scene.lines();
    assert_eq!(lines[1], format!("ncclCommSplit communicator={id:016x}"));
    assert!(lines[2].ends_with("seq=0 bytes=1"), "{lines:?}");
}

#[test]
fn a_process_whose_plug_in_reports_is_not_recorded_twice() {
    let mut scene = Scene::new();
    scene.cx.plugins.add(PID);
    scene.call("ncclAllReduce", &[1, 2, 4, 7, 0, COMM], 0);
    assert!(scene.lines().is_empty());
}

#[test]
fn any_bytes_are_tolerated() {
    let mut scene = Scene::new();
    for fill in [0x00, 0x01, 0x7f, 0xff] {
        for len in 0..400 {
            let bytes = vec![fill; len];
            if let Some(r) = from_bytes::<CallRecord>(&bytes) {
                for function in 0..u32::from(u8::MAX) {
                    scene.calls.call(&CallRecord { function, ..r }, &[], &[], &mut scene.cx);
                }
            }
            if let Some(r) = from_bytes::<MakeRecord>(&bytes) {
                for function in 0..u32::from(u8::MAX) {
                    let call = CallRecord { function, ..r.call };
                    scene.calls.call(&call, &r.made, &r.id, &mut scene.cx);
                }
            }
        }
    }
}
