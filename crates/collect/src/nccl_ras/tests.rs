//! Answers as RAS gives them, by hand after the format (see [`super::answer`]), a stand-in that gives
//! them over a socket, and one that gives what no RAS would.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use super::answer::read;
use super::*;

const CALM: &str = "\
NCCL version 2.26.2 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
     32          8            1        256      256

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1        32         8       256       256   RUNNING      OK
    1         4         8         8        64       256   RUNNING      OK

Errors
======

Warnings
========

";

const TROUBLE: &str = "\
NCCL version 2.27.7 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Communicators... (5.02s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       8-7        32        31   RUNNING  INCOMPLETE,MISMATCH

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487985 on node 172.16.64.213 managing GPU 6 (NVML 2)

#0-0 (fa93daea854b060b) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213

#0-0 (fa93daea854b060b) ERROR
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  Rank 3 -- GPU 3 managed by process 7 on node 10.0.0.1
  Rank 4 -- GPU 4 managed by process 8 on node 10.0.0.1
  Rank 5 reported System error -- [process information not found]

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different status
  30 ranks have status RUNNING
  Rank 7 has status ABORT -- GPU 7 managed by process 9 on node 10.0.0.1
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
  Rank 13 -- GPU 5 (NVML 1) managed by process 323033 on node 10.137.190.124

  Communicator ranks have different AllReduce operation counts
  31 ranks have launched up to operation 9
  Rank 12 has not launched any operations -- GPU 4 managed by process 323032 on node 10.137.190.124

";

fn rank(rank: u32, count: u64, more: &str) -> String {
    format!(
        r#"{{"rank": {rank}, "host": "10.0.0.{}", "pid": {}, "cuda_dev": 0, "nvml_dev": 0,
        "status": {{"init_state": 0, "async_error": 0, "finalize_called": false,
        "destroy_flag": false, "abort_flag": false{more}}},
        "collective_counts": {{"Broadcast": 1, "AllReduce": {count}}}}}"#,
        rank / 8,
        100 + rank
    )
}

fn missing(rank: u32, unresponsive: bool, dead: bool) -> String {
    format!(
        r#"{{"rank": {rank}, "host": "unknown", "pid": -1, "cuda_dev": 1, "nvml_dev": 1,
        "status": {{"unresponsive": {unresponsive}, "considered_dead": {dead}}}}}"#
    )
}

/// Two communicators: the ranks and missing ranks of the first, one calm rank in the second.
fn json(ranks: &[String], missing: &[String], timeouts: u32) -> String {
    let communicator = |hash: &str, ranks: &str, missing: &str| {
        format!(
            r#"{{"hash": "{hash}", "secondary_hash": "0x1:0x2", "size": 8, "ranks_count": 8,
            "missing_ranks_count": 0, "ranks": [{ranks}], "missing_ranks": [{missing}]}}"#
        )
    };
    let first = communicator("0xfa93daea854b060b", &ranks.join(","), &missing.join(","));
    let second = communicator("0x1", &rank(0, 5, ""), "");
    format!(
        r#"{{"nccl_version": "2.28.9+cuda12.9", "cuda_runtime_version": 12090,
        "cuda_driver_version": 12090, "timestamp": "2026-09-20 12:00:00",
        "communicators_count": 2, "communicators": [{first}, {second}],
        "ras": {{"collection_time_sec": 0.012, "timeouts_count": {timeouts}}}}}
"#
    )
}

/// An answer as marks, a line each.
fn lines(answer: &Answer) -> Vec<String> {
    let line = |says: &Says| {
        let (name, attrs) = told(says);
        let rank = says.peer.rank.map(|r| format!(" rank {r}")).unwrap_or_default();
        let hash = "fa93daea854b060b";
        let attrs: Vec<String> = attrs
            .iter()
            .map(|(k, v)| format!(" {k}={}", if v == hash { "C" } else { v.as_str() }))
            .collect();
        format!("{name}{rank}{}", attrs.concat())
    };
    answer.says.iter().map(line).collect()
}

#[test]
fn a_job_that_is_well_has_nothing_to_say() {
    let answer = read(CALM.as_bytes(), true);
    assert_eq!((answer.version.as_deref(), answer.communicators), (Some("2.26.2"), 5));
    assert!(answer.says.is_empty() && !answer.cut, "{answer:?}");
    let ranks: Vec<String> = (0..8).map(|r| rank(r, 5, "")).collect();
    let answer = read(json(&ranks, &[], 0).as_bytes(), true);
    assert_eq!((answer.version.as_deref(), answer.communicators), (Some("2.28.9+cuda12.9"), 2));
    assert!(answer.says.is_empty() && !answer.cut, "{answer:?}");
}

#[test]
fn the_text_names_who_is_not_as_most_are() {
    let answer = read(TROUBLE.as_bytes(), true);
    assert_eq!(
        lines(&answer),
        [
            "does not answer pid=3487984 node=172.16.64.213",
            "considered dead pid=3487985 node=172.16.64.213",
            "does not answer rank 21 communicator=C pid=3487984 node=172.16.64.213",
            "error: Remote process error rank 3 communicator=C pid=7 node=10.0.0.1",
            "error: Remote process error rank 4 communicator=C pid=8 node=10.0.0.1",
            "error: System error rank 5 communicator=C",
            "timeouts ranks=2",
            "status ABORT rank 7 communicator=C pid=9 node=10.0.0.1",
            "ahead in AllGather rank 12 at=641 most_at=640 communicator=C pid=323032 \
             node=10.137.190.124",
            "ahead in AllGather rank 13 at=641 most_at=640 communicator=C pid=323033 \
             node=10.137.190.124",
            "behind in AllReduce rank 12 at=0 most_at=9 communicator=C pid=323032 \
             node=10.137.190.124",
        ]
    );
    assert!(!answer.cut);
}

#[test]
fn the_json_has_all_ranks_and_says_the_same() {
    let mut ranks: Vec<String> = (0..6).map(|r| rank(r, 9, "")).collect();
    ranks[3] = rank(3, 8, "");
    ranks[4] = rank(4, 9, "").replace("\"async_error\": 0", "\"async_error\": 6");
    ranks[5] = rank(5, 9, "").replace("\"abort_flag\": false", "\"abort_flag\": true");
    let gone = [missing(6, true, false), missing(7, true, true)];
    let answer = read(json(&ranks, &gone, 3).as_bytes(), true);
    assert_eq!(
        lines(&answer),
        [
            "error: Remote process error rank 4 communicator=C pid=104 node=10.0.0.0",
            "does not answer rank 6 communicator=C",
            "considered dead rank 7 communicator=C",
            "status ABORT rank 5 communicator=C pid=105 node=10.0.0.0",
            "behind in AllReduce rank 3 at=8 most_at=9 communicator=C pid=103 node=10.0.0.0",
            "timeouts ranks=3",
        ]
    );
}

#[test]
fn of_many_only_some_are_named_and_of_two_alike_the_lesser_is_behind() {
    let ranks: Vec<String> = (0..100).map(|r| rank(r, if r < 40 { 8 } else { 9 }, "")).collect();
    let said = lines(&read(json(&ranks, &[], 0).as_bytes(), true));
    assert_eq!(said.len(), 17);
    assert_eq!(said[16], "behind in AllReduce at=8 most_at=9 communicator=C ranks=24");
    let said = lines(&read(json(&[rank(0, 7, ""), rank(1, 6, "")], &[], 0).as_bytes(), true));
    assert!(said.len() == 1 && said[0].starts_with("behind in AllReduce rank 1 at=6"), "{said:?}");
}

#[test]
fn an_answer_that_is_cut_anywhere_is_understood_up_to_there() {
    let mut ranks: Vec<String> = (0..8).map(|r| rank(r, 9, "")).collect();
    ranks[3] = rank(3, 8, "");
    let whole = json(&ranks, &[], 0);
    let all = read(whole.as_bytes(), true);
    for end in 0..whole.trim_end().len() {
        let answer = read(&whole.as_bytes()[..end], false);
        assert!(answer.cut);
        assert!(answer.says.is_empty() || answer.says == all.says);
    }
    for end in 0..TROUBLE.len() {
        assert!(read(&TROUBLE.as_bytes()[..end], false).cut);
    }
    assert!(read(&TROUBLE.as_bytes()[..200], true).cut, "no end, though the stream had one");
}

#[test]
fn what_is_no_answer_says_nothing() {
    let deep = "[".repeat(1 << 20);
    let members = "{\"a\":".repeat(1 << 16);
    for text in ["", "{", "{}", "[]", "{\"a\"", "{\"a\\", "nonsense\n", deep.as_str(), &members] {
        assert!(read(text.as_bytes(), true).says.is_empty(), "{}", &text[..text.len().min(20)]);
    }
    assert!(read(&[0xff; 4096], true).says.is_empty());
    let many = "#0-0 (1) ERROR\n  Asynchronous error on 1 rank\n".to_owned()
        + &"  Rank 1 reported System error -- x\n".repeat(1000);
    let answer = read(many.as_bytes(), true);
    assert_eq!((answer.says.len(), answer.left_out), (256, 744));
}

/// Speaks the protocol for one client; `json` says whether it knows that form.
fn stand_in(knows_json: bool, answer: Vec<u8>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = move || {
        let (mut client, _) = listener.accept().unwrap();
        let (mut heard, mut rest) = (Vec::new(), String::new());
        let mut buffer = [0; 256];
        loop {
            let n = client.read(&mut buffer).unwrap_or(0);
            if n == 0 {
                return heard;
            }
            rest += str::from_utf8(&buffer[..n]).unwrap();
            while let Some((line, behind)) = rest.split_once('\n') {
                let line = line.to_owned();
                rest = behind.to_owned();
                let says = match line.as_str() {
                    "CLIENT PROTOCOL 2" => "SERVER PROTOCOL 2\n".to_owned(),
                    "SET FORMAT json" if !knows_json => format!("ERROR: Unknown command {line}\n"),
                    "STATUS" => {
                        heard.push(line);
                        let _ = client.write_all(&answer);
                        return heard;
                    }
                    _ => "OK\n".to_owned(),
                };
                heard.push(line);
                client.write_all(says.as_bytes()).unwrap();
            }
        }
    };
    (address, std::thread::spawn(serve))
}

const SHORT: Patience =
    Patience { line: Duration::from_millis(500), whole: Duration::from_millis(1500) };

#[test]
fn a_job_is_asked_in_json_and_an_old_one_answers_in_text() {
    let ranks: Vec<String> = (0..8).map(|r| rank(r, 9 - u64::from(r == 3), "")).collect();
    let whole = json(&ranks, &[], 0);
    let (address, server) = stand_in(true, whole.clone().into_bytes());
    assert_eq!(ask(&address, Form::Json, SHORT).unwrap(), read(whole.as_bytes(), true));
    let spoken = ["CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "STATUS"];
    assert_eq!(server.join().unwrap(), spoken);
    let (address, server) = stand_in(false, TROUBLE.into());
    assert_eq!(ask(&address, Form::Json, SHORT).unwrap(), read(TROUBLE.as_bytes(), true));
    assert_eq!(server.join().unwrap(), spoken);
    let (address, server) = stand_in(false, CALM.into());
    assert_eq!(ask::greet(&address, SHORT).unwrap(), "2");
    assert_eq!(server.join().unwrap(), spoken[..1]);
}

/// Writes for ever: first `first`, then `then` with pauses of `pause` in between.
fn endless(first: &'static [u8], then: &'static [u8], pause: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut going = client.write_all(first).is_ok();
        while going {
            std::thread::sleep(pause);
            going = client.write_all(then).is_ok();
        }
    });
    address
}

#[test]
fn whoever_is_slow_endless_or_somebody_else_is_left() {
    let greeting: &[u8] = b"SERVER PROTOCOL 2\nOK\nOK\n";
    let answer = ask(&endless(greeting, &[b'x'; 1 << 16], Duration::ZERO), Form::Json, SHORT);
    assert!(answer.unwrap().cut, "a mebibyte of it was enough");
    let slow = ask(&endless(greeting, b"x", Duration::from_millis(20)), Form::Json, SHORT);
    assert!(slow.unwrap().cut);
    let silent = ask(&endless(greeting, b"", Duration::from_millis(20)), Form::Json, SHORT);
    assert!(matches!(silent, Err(Silence::BrokeOff { .. })), "{silent:?}");
    for (first, then) in [(&b""[..], &b"x"[..]), (b"", b""), (&[0xff; 8192], b"")] {
        let other = ask(&endless(first, then, Duration::from_millis(20)), Form::Json, SHORT);
        assert!(matches!(other, Err(Silence::BrokeOff { .. })), "{other:?}");
    }
    let web = ask(
        &endless(b"HTTP/1.1 400 Bad Request\r\n", b"", Duration::from_millis(20)),
        Form::Json,
        SHORT,
    );
    assert!(matches!(web, Err(Silence::Stranger { .. })), "{web:?}");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for nobody in [format!("127.0.0.1:{port}"), "127.0.0.1".into(), String::new()] {
        let answer = ask(&nobody, Form::Json, SHORT);
        assert!(matches!(answer, Err(Silence::Nobody { .. })), "{answer:?}");
    }
}

#[test]
fn a_recorder_asks_while_something_is_the_matter_and_only_then() {
    let ranks: Vec<String> = (0..8).map(|r| rank(r, 9 - u64::from(r == 3), "")).collect();
    let (address, server) = stand_in(true, json(&ranks, &[], 0).into_bytes());
    let ras = Some(RasAt::Named(address));
    let config = crate::Config { ras, ..crate::Config::only(&["nccl_ras"]) };
    let mut recorder = crate::Recorder::start(config).unwrap();
    let mut rows = gpuwhy_schema::Rows::default();
    let poll = |recorder: &mut crate::Recorder, rows: &mut gpuwhy_schema::Rows| {
        rows.append(&mut recorder.poll(Duration::from_millis(10)).unwrap());
    };
    for _ in 0..10 {
        poll(&mut recorder, &mut rows);
    }
    assert!(!server.is_finished(), "nobody asked yet");
    recorder.detail(true).unwrap();
    for _ in 0..1000 {
        poll(&mut recorder, &mut rows);
        if !rows.mark.is_empty() {
            break;
        }
    }
    server.join().unwrap();
    rows.append(&mut recorder.finish());
    let mark = &rows.mark[0];
    assert_eq!((&*mark.name, mark.value), ("behind in AllReduce", Some(3.0)));
    let lane = rows.track.iter().find(|t| t.id == mark.track).unwrap();
    assert_eq!(&*lane.name, names::NCCL_RAS);
    let source = rows.source.iter().rev().find(|s| &*s.kind == "nccl_ras").unwrap();
    assert_eq!((source.state, source.recorded), (SourceState::Ok, 1));
}

#[test]
fn silence_is_told_by_the_source_and_gone_with_the_next_answer() {
    let mut cx = crate::recorder::context();
    let source = cx.lanes.source("nccl_ras", "test", "0", "");
    let mut book = Book { source, recorded: 0, dropped: 0, elsewhere: Vec::new() };
    let state = |cx: &mut Context| {
        let mut rows = gpuwhy_schema::Rows::default();
        cx.lanes.drain(&mut rows);
        let s = rows.source.pop().unwrap();
        (s.state, s.note.map(|n| n.to_string()))
    };
    let silence = Silence::Nobody {
        address: "localhost:28028".into(),
        source: std::io::ErrorKind::ConnectionRefused.into(),
    };
    book.answer(Ns(1), "x", Err(silence), &mut cx);
    let note = "nobody answers at localhost:28028: connection refused".to_owned();
    assert_eq!(state(&mut cx), (SourceState::Degraded, Some(note)));
    book.answer(Ns(2), "x", Ok(read(CALM.as_bytes(), true)), &mut cx);
    assert_eq!(state(&mut cx), (SourceState::Ok, None));
    assert_eq!(&*cx.rows.mark[0].name, "all ranks agree");
    book.elsewhere(42, &mut cx);
    let (state, note) = state(&mut cx);
    assert!(state == SourceState::Degraded && note.unwrap().ends_with("from here: 42"));
}

#[test]
fn a_targets_environment_gives_the_port_and_no_host() {
    assert_eq!(port_of(b"A=1\0NCCL_RAS_ADDR=10.0.0.1:4242\0B=2\0"), Some(4242));
    assert_eq!(port_of(b"NCCL_RAS_ADDR=[::1]:7\0"), Some(7));
    assert_eq!(port_of(b"XNCCL_RAS_ADDR=h:7\0NCCL_RAS_ADDR=h:99999\0"), None);
    assert_eq!("h:1".parse(), Ok(RasAt::Named("h:1".into())));
    assert_eq!("".parse(), Ok(RasAt::Usual));
    for bad in ["h", ":1", "h:", "h:x", "h:99999"] {
        assert!(bad.parse::<RasAt>().is_err(), "{bad}");
    }
}
