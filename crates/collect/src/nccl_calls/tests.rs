//! Records as the kernel would write them, and the rows that follow.

use super::*;
use crate::kernel::tests::same_layout;
use crate::recorder;

#[test]
fn both_halves_agree_on_the_records() {
    same_layout("nccl_calls", "call_record", size_of::<CallRecord>(), CallRecord::LAYOUT);
    same_layout("nccl_calls", "make_record", size_of::<MakeRecord>(), MakeRecord::LAYOUT);
    same_layout("nccl_calls", "tuning", size_of::<Tuning>(), Tuning::LAYOUT);
}

/// A process that does not live, so that nothing of it is looked up.
const PID: u32 = 4_000_000_000;
const COMM: u64 = 0x7f00_1000;

struct Stage {
    book: Book,
    cx: Context,
    now: u64,
}

impl Stage {
    fn new() -> Stage {
        let mut cx = recorder::context();
        let source = cx.lanes.source("bpf:nccl_calls", "test", "0", "");
        Stage { book: Book::new(source), cx, now: 1000 }
    }

    /// The next call of a thread: 10 ns long.
    fn call(&mut self, symbol: &str, args: &[u64], result: i32) {
        self.make(symbol, args, result, &[], &[]);
    }

    fn make(&mut self, symbol: &str, args: &[u64], result: i32, made: &[u64], id: &[u64]) {
        let mut all = [0; ARGS];
        all[..args.len()].copy_from_slice(args);
        self.now += 100;
        let head = Head { ts: self.now + 10, kind: CALL, cpu: 0, tid: PID };
        let function = functions::number(symbol).unwrap().into();
        let r = CallRecord { head, from: self.now, tgid: PID, function, result, pad: 0, args: all };
        self.book.call(&r, made, id, &mut self.cx);
    }

    /// Each call with its details, and what was told since the last time only.
    fn told(&mut self) -> Vec<String> {
        let rows = std::mem::take(&mut self.cx.rows);
        let tell = |span: &Span| {
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
        rows.span.iter().map(tell).collect()
    }
}

#[test]
fn a_rank_whose_communicator_was_seen_to_be_made_has_collectives() {
    let mut stage = Stage::new();
    let rank: &[u64] = if cfg!(target_arch = "x86_64") { &[1] } else { &[0xdead, 1] };
    let args = [&[0x10, 4], rank].concat();
    stage.make("ncclCommInitRank", &args, 0, &[COMM], &[7; ID_WORDS]);
    stage.call("ncclAllReduce", &[1, 2, 256, 7, 0, COMM], 0);
    stage.call("ncclAllReduceConfig", &[1, 2, 256, 9, 0, COMM], 0);
    // The upper half of a register that holds an int says nothing.
    stage.call("ncclReduce", &[1, 2, 3, 0xbad_0000_0008, 0, 0xbad_0000_0002, COMM], 0);
    stage.call("ncclSend", &[1, 8, 0, 3, COMM], 0);
    stage.call("ncclSend", &[1, 8, 0, 2, COMM], 0);
    stage.call("ncclSend", &[1, 8, 0, 3, COMM], 0);
    stage.call("ncclGroupEnd", &[], 0);
    assert_eq!(
        stage.told(),
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
fn calls_on_what_is_older_than_the_recording_have_attributes() {
    let mut stage = Stage::new();
    stage.call("ncclAllGather", &[1, 2, 64, 7, COMM], 0);
    stage.call("ncclAllGather", &[1, 2, 64, 99, COMM], 0);
    stage.call("ncclRecv", &[1, 8, 1, 3, COMM], 7);
    stage.call("ncclCommDestroy", &[COMM], 0);
    let at = format!("communicator=at 0x7f001000 of pid {PID}");
    assert_eq!(
        stage.told(),
        [
            format!("ncclAllGather {at} seq=0 bytes=256"),
            format!("ncclAllGather {at} seq=1"),
            format!("ncclRecv result=in progress {at} seq=0 bytes=8 peer=3"),
            format!("ncclCommDestroy {at}"),
        ]
    );
    assert!(stage.book.communicators.is_empty());
}

#[test]
fn a_call_that_failed_is_told_and_not_counted() {
    let mut stage = Stage::new();
    stage.call("ncclAllReduce", &[0, 0, 4, 7, 0, 0], 4);
    stage.call("ncclAllReduce", &[1, 2, 4, 7, 0, COMM], 5);
    stage.call("ncclAllReduce", &[1, 2, 4, 7, 0, COMM], 0);
    // What was not made is no communicator.
    stage.make("ncclCommInitRank", &[1, 4, 0], 1, &[0xbad], &[7; ID_WORDS]);
    let at = format!("communicator=at 0x7f001000 of pid {PID}");
    assert_eq!(
        stage.told(),
        [
            "ncclAllReduce result=invalid argument".to_owned(),
            format!("ncclAllReduce result=invalid usage {at}"),
            format!("ncclAllReduce {at} seq=0 bytes=16"),
            "ncclCommInitRank result=unhandled CUDA error".to_owned(),
        ]
    );
    assert_eq!(stage.book.communicators.len(), 1);
}

#[test]
fn one_call_makes_the_communicators_of_all_ranks_of_a_process() {
    let mut stage = Stage::new();
    let made: [u64; MADE] = std::array::from_fn(|i| if i < 2 { COMM + i as u64 } else { 0 });
    stage.make("ncclCommInitAll", &[1, 2], 0, &made, &[0; ID_WORDS]);
    stage.call("ncclBcast", &[1, 2, 0, 0, COMM + 1], 0);
    assert_eq!(stage.told()[1], "ncclBcast Broadcast #0 2 By of 1/2 peer 0");
}

#[test]
fn what_a_split_makes_is_a_communicator_without_a_known_rank() {
    let mut stage = Stage::new();
    let rank: &[u64] = if cfg!(target_arch = "x86_64") { &[1] } else { &[0, 1] };
    stage.make("ncclCommInitRank", &[&[0x10, 4], rank].concat(), 0, &[COMM], &[7; ID_WORDS]);
    stage.make("ncclCommSplit", &[COMM, 0, 1, 0x20], 0, &[COMM + 64], &[0; ID_WORDS]);
    stage.call("ncclAllReduce", &[1, 2, 1, 0, 0, COMM + 64], 0);
    let id = communicator_of(&[7; ID_WORDS]);
    let told = stage.told();
    assert_eq!(told[1], format!("ncclCommSplit communicator={id:016x}"));
    assert!(told[2].ends_with("seq=0 bytes=1"), "{told:?}");
}

#[test]
fn whose_plug_in_tells_is_not_told_twice() {
    let mut stage = Stage::new();
    stage.cx.inside.insert(PID);
    stage.call("ncclAllReduce", &[1, 2, 4, 7, 0, COMM], 0);
    assert!(stage.told().is_empty());
}

#[test]
fn any_bytes_are_survived() {
    let mut stage = Stage::new();
    for fill in [0x00, 0x01, 0x7f, 0xff] {
        for len in 0..400 {
            let bytes = vec![fill; len];
            if let Some(r) = plain::<CallRecord>(&bytes) {
                for function in 0..u32::from(u8::MAX) {
                    stage.book.call(&CallRecord { function, ..r }, &[], &[], &mut stage.cx);
                }
            }
            if let Some(r) = plain::<MakeRecord>(&bytes) {
                for function in 0..u32::from(u8::MAX) {
                    let call = CallRecord { function, ..r.call };
                    stage.book.call(&call, &r.made, &r.id, &mut stage.cx);
                }
            }
        }
    }
}
