//! Answers of RAS, written by hand after the format (see [`super::answer`]), a stand-in that sends
//! them over a socket, and one that sends what no RAS would.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use super::answer::read;
use super::*;
use crate::config::Config;
use crate::recorder::Recorder;

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
    let line = |statement: &Statement| {
        let (name, attrs) = describe(statement);
        let rank = statement.peer.rank.map(|r| format!(" rank {r}")).unwrap_or_default();
        let hash = "fa93daea854b060b";
        let attrs: Vec<String> = attrs
            .iter()
            .map(|(k, v)| format!(" {k}={}", if v == hash { "C" } else { v.as_str() }))
            .collect();
        format!("{name}{rank}{}", attrs.concat())
    };
    answer.statements.iter().map(line).collect()
}

#[test]
fn a_healthy_job_has_no_statements() {
    let answer = read(CALM.as_bytes(), true);
    assert_eq!((answer.version.as_deref(), answer.communicators), (Some("2.26.2"), 5));
    assert!(answer.statements.is_empty() && !answer.cut, "{answer:?}");
    let ranks: Vec<String> = (0..8).map(|r| rank(r, 5, "")).collect();
    let answer = read(json(&ranks, &[], 0).as_bytes(), true);
    assert_eq!((answer.version.as_deref(), answer.communicators), (Some("2.28.9+cuda12.9"), 2));
    assert!(answer.statements.is_empty() && !answer.cut, "{answer:?}");
}

#[test]
fn the_text_names_the_ranks_that_differ_from_most() {
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
fn the_json_has_all_ranks_and_leads_to_the_same_statements() {
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
fn of_many_ranks_only_some_are_named_and_of_two_equal_groups_the_lesser_is_behind() {
    let ranks: Vec<String> = (0..100).map(|r| rank(r, if r < 40 { 8 } else { 9 }, "")).collect();
    let found = lines(&read(json(&ranks, &[], 0).as_bytes(), true));
    assert_eq!(found.len(), 17);
    assert_eq!(found[16], "behind in AllReduce at=8 most_at=9 communicator=C ranks=24");
    let found = lines(&read(json(&[rank(0, 7, ""), rank(1, 6, "")], &[], 0).as_bytes(), true));
    assert!(
        found.len() == 1 && found[0].starts_with("behind in AllReduce rank 1 at=6"),
        "{found:?}"
    );
}

#[test]
fn an_answer_that_is_cut_anywhere_is_used_up_to_there() {
    let mut ranks: Vec<String> = (0..8).map(|r| rank(r, 9, "")).collect();
    ranks[3] = rank(3, 8, "");
    let whole = json(&ranks, &[], 0);
    let all = read(whole.as_bytes(), true);
    for end in 0..whole.trim_end().len() {
        let answer = read(&whole.as_bytes()[..end], false);
        assert!(answer.cut);
        assert!(answer.statements.is_empty() || answer.statements == all.statements);
    }
    for end in 0..TROUBLE.len() {
        assert!(read(&TROUBLE.as_bytes()[..end], false).cut);
    }
    assert!(read(&TROUBLE.as_bytes()[..200], true).cut, "the stream ended, but the report did not");
}

#[test]
fn a_text_that_is_no_answer_has_no_statements() {
    let deep = "[".repeat(1 << 20);
    let members = "{\"a\":".repeat(1 << 16);
    for text in ["", "{", "{}", "[]", "{\"a\"", "{\"a\\", "nonsense\n", deep.as_str(), &members] {
        assert!(
            read(text.as_bytes(), true).statements.is_empty(),
            "{}",
            &text[..text.len().min(20)]
        );
    }
    assert!(read(&[0xff; 4096], true).statements.is_empty());
    let many = "#0-0 (1) ERROR\n  Asynchronous error on 1 rank\n".to_owned()
        + &"  Rank 1 reported System error -- x\n".repeat(1000);
    let answer = read(many.as_bytes(), true);
    assert_eq!((answer.statements.len(), answer.left_out), (256, 744));
}

/// Serves one client; `json` is whether this server knows the JSON format.
fn stand_in(knows_json: bool, answer: Vec<u8>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = move || {
        let (mut client, _) = listener.accept().unwrap();
        let (mut received, mut rest) = (Vec::new(), String::new());
        let mut buffer = [0; 256];
        loop {
            let n = client.read(&mut buffer).unwrap_or(0);
            if n == 0 {
                return received;
            }
            rest += str::from_utf8(&buffer[..n]).unwrap();
            while let Some((line, behind)) = rest.split_once('\n') {
                let line = line.to_owned();
                rest = behind.to_owned();
                let reply = match line.as_str() {
                    "CLIENT PROTOCOL 2" => "SERVER PROTOCOL 2\n".to_owned(),
                    "SET FORMAT json" if !knows_json => format!("ERROR: Unknown command {line}\n"),
                    "STATUS" => {
                        received.push(line);
                        let _ = client.write_all(&answer);
                        return received;
                    }
                    _ => "OK\n".to_owned(),
                };
                received.push(line);
                client.write_all(reply.as_bytes()).unwrap();
            }
        }
    };
    (address, std::thread::spawn(serve))
}

const SHORT: Timeouts =
    Timeouts { line: Duration::from_millis(500), total: Duration::from_millis(1500) };

#[test]
fn json_is_requested_and_an_old_version_answers_in_text() {
    let ranks: Vec<String> = (0..8).map(|r| rank(r, 9 - u64::from(r == 3), "")).collect();
    let whole = json(&ranks, &[], 0);
    let (address, server) = stand_in(true, whole.clone().into_bytes());
    assert_eq!(status(&address, Format::Json, SHORT).unwrap(), read(whole.as_bytes(), true));
    let sent = ["CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "STATUS"];
    assert_eq!(server.join().unwrap(), sent);
    let (address, server) = stand_in(false, TROUBLE.into());
    assert_eq!(status(&address, Format::Json, SHORT).unwrap(), read(TROUBLE.as_bytes(), true));
    assert_eq!(server.join().unwrap(), sent);
    let (address, server) = stand_in(false, CALM.into());
    assert_eq!(client::protocol(&address, SHORT).unwrap(), "2");
    assert_eq!(server.join().unwrap(), sent[..1]);
}

/// A server that writes without end: `first`, then `then` again and again after pauses of `pause`.
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
fn a_server_that_is_slow_endless_or_no_ras_is_given_up() {
    let greeting: &[u8] = b"SERVER PROTOCOL 2\nOK\nOK\n";
    let answer = status(&endless(greeting, &[b'x'; 1 << 16], Duration::ZERO), Format::Json, SHORT);
    assert!(answer.unwrap().cut, "a mebibyte of it is enough");
    let slow = status(&endless(greeting, b"x", Duration::from_millis(20)), Format::Json, SHORT);
    assert!(slow.unwrap().cut);
    let silent = status(&endless(greeting, b"", Duration::from_millis(20)), Format::Json, SHORT);
    assert!(matches!(silent, Err(RasError::Interrupted { .. })), "{silent:?}");
    for (first, then) in [(&b""[..], &b"x"[..]), (b"", b""), (&[0xff; 8192], b"")] {
        let other = status(&endless(first, then, Duration::from_millis(20)), Format::Json, SHORT);
        assert!(matches!(other, Err(RasError::Interrupted { .. })), "{other:?}");
    }
    let web = status(
        &endless(b"HTTP/1.1 400 Bad Request\r\n", b"", Duration::from_millis(20)),
        Format::Json,
        SHORT,
    );
    assert!(matches!(web, Err(RasError::OtherServer { .. })), "{web:?}");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for closed in [format!("127.0.0.1:{port}"), "127.0.0.1".into(), String::new()] {
        let answer = status(&closed, Format::Json, SHORT);
        assert!(matches!(answer, Err(RasError::NoServer { .. })), "{answer:?}");
    }
}

#[test]
fn a_recorder_asks_during_an_incident_and_only_then() {
    let ranks: Vec<String> = (0..8).map(|r| rank(r, 9 - u64::from(r == 3), "")).collect();
    let (address, server) = stand_in(true, json(&ranks, &[], 0).into_bytes());
    let nccl_ras = Some(RasAddress::At(address));
    let config = Config { nccl_ras, ..Config::only(&["nccl_ras"]) };
    let mut recorder = Recorder::start(config).unwrap();
    let mut rows = gpuwhy_schema::Rows::default();
    let poll = |recorder: &mut Recorder, rows: &mut gpuwhy_schema::Rows| {
        rows.append(&mut recorder.poll(Duration::from_millis(10)).unwrap());
    };
    for _ in 0..10 {
        poll(&mut recorder, &mut rows);
    }
    assert!(!server.is_finished(), "it was asked too early");
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
    let track = rows.track.iter().find(|t| t.id == mark.track).unwrap();
    assert_eq!(&*track.name, names::NCCL_RAS);
    let source = rows.source.iter().rev().find(|s| &*s.kind == "nccl_ras").unwrap();
    assert_eq!((source.state, source.recorded), (SourceState::Ok, 1));
}

#[test]
fn an_error_is_noted_in_the_source_until_the_next_answer() {
    let mut cx = Context::new();
    let source = cx.catalog.source("nccl_ras", "test", "0", "");
    let mut ras_rows = RasRows::new(source);
    let state = |cx: &mut Context| {
        let mut rows = gpuwhy_schema::Rows::default();
        cx.catalog.drain(&mut rows);
        let s = rows.source.pop().unwrap();
        (s.state, s.note.map(|n| n.to_string()))
    };
    let error = RasError::NoServer {
        address: "localhost:28028".into(),
        source: std::io::ErrorKind::ConnectionRefused.into(),
    };
    ras_rows.answer(Ns(1), "x", Err(error), &mut cx);
    let note = "nothing answers at localhost:28028: connection refused".to_owned();
    assert_eq!(state(&mut cx), (SourceState::Degraded, Some(note)));
    ras_rows.answer(Ns(2), "x", Ok(read(CALM.as_bytes(), true)), &mut cx);
    assert_eq!(state(&mut cx), (SourceState::Ok, None));
    assert_eq!(&*cx.rows.mark[0].name, "all ranks agree");
    ras_rows.add_unreachable(42, &mut cx);
    let (state, note) = state(&mut cx);
    assert!(state == SourceState::Degraded && note.unwrap().ends_with("from here: 42"));
}

#[test]
fn a_targets_environment_gives_the_port_and_no_host() {
    assert_eq!(ras_port(b"A=1\0NCCL_RAS_ADDR=10.0.0.1:4242\0B=2\0"), Some(4242));
    assert_eq!(ras_port(b"NCCL_RAS_ADDR=[::1]:7\0"), Some(7));
    assert_eq!(ras_port(b"XNCCL_RAS_ADDR=h:7\0NCCL_RAS_ADDR=h:99999\0"), None);
}
