//! Engines that are servers of a few lines.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Instant;

use gpuwhy_schema::Rows;

use super::*;
use crate::config::Config;
use crate::recorder::Recorder;

/// Answers each request with the next of these, and begins again behind the last one.
fn engine(answers: Vec<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/metrics", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut answers = answers.iter().cycle();
        while let (Ok((mut stream, _)), Some(answer)) = (listener.accept(), answers.next()) {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer);
        }
    });
    address
}

fn http(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// So many first tokens, of which so many came within half a second.
fn first_tokens(within: u32, all: u32) -> String {
    format!(
        "vllm:num_requests_waiting{{engine=\"0\"}} 7\n\
         vllm:time_to_first_token_seconds_bucket{{le=\"0.5\"}} {within}\n\
         vllm:time_to_first_token_seconds_bucket{{le=\"+Inf\"}} {all}\n\
         vllm:time_to_first_token_seconds_count {all}\n"
    )
}

/// Records until enough arrived, ten seconds at most.
fn recorded(metrics: Metrics, is_enough: impl Fn(&Rows) -> bool) -> Rows {
    let config = Config { metrics: Some(metrics), ..Config::only(&["engine_metrics"]) };
    let mut recorder = Recorder::start(config).unwrap();
    let mut rows = Rows::default();
    let until = Instant::now() + Duration::from_secs(10);
    while !is_enough(&rows) && Instant::now() < until {
        rows.append(&mut recorder.poll(Duration::from_millis(50)).unwrap());
    }
    rows.append(&mut recorder.finish());
    rows
}

fn note_of(rows: &Rows) -> (SourceState, String) {
    let source = rows.source.iter().rev().find(|s| &*s.kind == "engine_metrics").unwrap();
    (source.state, source.note.as_deref().unwrap_or_default().to_owned())
}

#[test]
fn a_promise_that_is_broken_between_two_readings_is_a_mark_with_how_often() {
    let address = engine(vec![http(&first_tokens(90, 100)), http(&first_tokens(95, 108))]);
    let promised = vec![(Latency::FirstToken, Ns::millis(400)), (Latency::Total, Ns::secs(1))];
    let rows =
        recorded(Metrics { addresses: vec![address.clone()], promised }, |r| !r.mark.is_empty());
    let mark = &rows.mark[0];
    assert_eq!((&*mark.name, mark.value), ("ttft over 400 ms", Some(3.0)));
    let attr = |key: &str| {
        let of = rows.attr.iter().find(|a| a.id == mark.id && &*a.key == key);
        of.map(|a| a.value.to_string()).unwrap_or_default()
    };
    assert_eq!((attr(names::OF), attr(names::BOUND_NS)), ("8".into(), "500000000".into()));
    assert_eq!(attr(names::ADDRESS), address);
    let since: i64 = attr(names::SINCE_NS).parse().unwrap();
    assert!((1..4).contains(&((mark.ts.0 - since) / 1_000_000_000)), "{since} {}", mark.ts.0);
    let waiting = rows.track.iter().find(|t| &*t.name == names::REQUESTS_WAITING).unwrap();
    assert!(rows.counter.iter().any(|c| c.track == waiting.id && c.value == 7.0));
    let (state, note) = note_of(&rows);
    assert_eq!((state, note), (SourceState::Degraded, format!("{address}: total is not counted")));
}

#[test]
fn who_does_not_answer_as_an_engine_does_is_noted_and_not_waited_for() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endless = [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'x'; 5 << 20]].concat();
    for (address, says) in [
        (format!("http://127.0.0.1:{port}/metrics"), "does not say how its requests fare"),
        (engine(vec![http("go_goroutines 8\n")]), "knows none of the metrics of vLLM and SGLang"),
        (engine(vec![b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec()]), "404"),
        (engine(vec![b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()]), "does not say how its requests fare"),
        (engine(vec![endless]), "does not say how its requests fare"),
        (
            engine(vec![b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n".to_vec()]),
            // It is not followed.
            "knows none of the metrics of vLLM and SGLang",
        ),
    ] {
        let addresses = vec![address];
        let began = Instant::now();
        let rows = recorded(Metrics { addresses, promised: Vec::new() }, |rows| {
            rows.source.iter().any(|s| &*s.kind == "engine_metrics" && s.note.is_some())
        });
        let (state, note) = note_of(&rows);
        assert!(state == SourceState::Degraded && note.contains(says), "{says}: {note}");
        assert!(began.elapsed() < Duration::from_secs(8), "{says}");
    }
}
