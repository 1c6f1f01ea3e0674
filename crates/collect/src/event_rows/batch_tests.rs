//! Batches and requests of engines, and the rows that must follow.

use gpuwhy_schema::Rows;

use super::tests::{rows_of, step};
use super::*;

fn batch(step: u32, at: u64) -> Event<&'static str> {
    Event::Batch { name: "engine", step, digest: 7, tokens: 30, requests: 2, at, dur: 1 }
}

fn output(step: u32, at: u64) -> Event<&'static str> {
    Event::BatchOutput { step, padded: 0, output_tokens: 2, accepted: 1, proposed: 3, at }
}

fn runs(request: u32, step: u64, at: u64) -> Event<&'static str> {
    Event::Request { name: "runs", request, step: Some(step), tokens: 15, computed: 4, at }
}

fn outputs(rows: &Rows) -> Vec<(i64, Option<u64>)> {
    rows.batch.iter().map(|batch| (batch.ts.0, batch.output_tokens)).collect()
}

#[test]
fn a_batch_lies_on_its_step_with_its_output_and_who_is_in_it() {
    let queue = Event::BatchQueue {
        step: 0,
        running: 5,
        waiting: 6,
        cache_ppm: 500_000,
        allocate_ns: 900,
        at: 12,
    };
    let (rows, dropped) =
        rows_of(&[batch(0, 12), queue, runs(1, 0, 12), output(0, 18), step(0, 10, 10)]);
    assert_eq!(dropped, 0);
    let [row] = &rows.batch[..] else { panic!("{:?}", rows.batch) };
    assert_eq!((row.id, row.ts), (rows.step[0].id, rows.step[0].ts));
    assert_eq!((row.tokens, row.waiting, row.cache_ppm), (30, Some(6), Some(500_000)));
    assert_eq!((row.allocate, row.padded, row.accepted), (Some(Ns(900)), None, Some(1)));
    let [change] = &rows.batch_request[..] else { panic!("{:?}", rows.batch_request) };
    assert_eq!((change.batch, change.ts, change.computed), (row.id, row.ts, 4));
    assert_eq!(change.request, rows.request[0].id, "a request that has not ended has a row too");
    let span = rows.span.iter().find(|span| span.id == change.request).unwrap();
    assert_eq!((span.dur, &*span.name), (None, "EngineCore::Request"));
}

#[test]
fn an_output_may_come_in_a_later_step_or_never() {
    let (rows, dropped) = rows_of(&[
        batch(0, 12),
        step(0, 10, 10),
        batch(1, 22),
        output(0, 28),
        step(1, 20, 10),
        step(2, 30, 10),
        step(3, 40, 10),
        step(4, 50, 10),
        step(5, 60, 10),
        output(1, 75),
    ]);
    assert_eq!(outputs(&rows), [(10, Some(2)), (20, None)]);
    assert_eq!(dropped, 1, "the output that came too late");
}

#[test]
fn what_belongs_to_no_batch_or_step_is_dropped_and_counted() {
    let (rows, dropped) = rows_of(&[output(3, 5), runs(1, 3, 5), step(0, 10, 10), batch(9, 15)]);
    assert_eq!((rows.batch.len(), rows.batch_request.len()), (0, 0));
    assert_eq!(dropped, 2);
    // A step that crosses another is none, and neither is its batch.
    let (rows, dropped) =
        rows_of(&[step(0, 10, 10), batch(1, 18), runs(1, 1, 18), step(1, 15, 10)]);
    assert_eq!((rows.batch.len(), rows.batch_request.len(), dropped), (0, 0, 1));
}

#[test]
fn a_batch_holds_so_many_changes_and_a_guest_so_many_requests() {
    let many = quota::BATCH_CHANGES as u32 + 10;
    let mut events = vec![batch(0, 12)];
    events.extend((0..many).map(|request| runs(request, 0, 12)));
    events.push(step(0, 10, 10));
    let (rows, dropped) = rows_of(&events);
    assert_eq!((rows.batch_request.len(), dropped), (quota::BATCH_CHANGES, 10));
    let many = quota::REQUESTS as u32 + 3;
    let arrived = |request| Event::Request {
        name: "arrived",
        request,
        step: None,
        tokens: 9,
        computed: 0,
        at: 5,
    };
    let events: Vec<_> = (0..many).map(arrived).collect();
    let (rows, dropped) = rows_of(&events);
    assert_eq!((rows.request.len(), dropped), (quota::REQUESTS, 3));
}

#[test]
fn a_request_is_a_span_with_its_name_trace_and_times() {
    let is = |name, step, tokens, computed, at| Event::Request {
        name,
        request: 4,
        step,
        tokens,
        computed,
        at,
    };
    let key = |part, text: &[u8; 16]| Event::RequestKey {
        request: 4,
        part,
        first: u64::from_le_bytes(text[..8].try_into().unwrap()),
        last: u64::from_le_bytes(text[8..].try_into().unwrap()),
        at: 20,
    };
    let (rows, dropped) = rows_of(&[
        key(1, b"er\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        key(0, b"cmpl-a-long-numb"),
        key(u16::MAX, &[0x0a, 0xf7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x9c]),
        key(60, &[b'x'; 16]),
        is("asked", None, 12, 0, 15),
        batch(0, 30),
        is("runs", Some(0), 15, 4, 30),
        is("cached", None, 0, 4, 31),
        is("first_token", None, 1, 0, 40),
        step(0, 25, 20),
        is("finished: length", None, 9, 0, 50),
        is("finished: length", None, 9, 0, 51),
    ]);
    // The second end is another request's, of which nothing is known.
    let [row, _] = &rows.request[..] else { panic!("{:?}", rows.request) };
    assert_eq!(dropped, 1, "a part beyond what a name may have");
    assert_eq!((&*row.key, row.ts), ("cmpl-a-long-number", Ns(15)));
    assert_eq!(row.trace.as_deref(), Some("0af7000000000000000000000000009c"));
    assert_eq!(
        (row.prompt_tokens, row.output_tokens, row.cached_tokens),
        (Some(12), Some(9), Some(4))
    );
    assert_eq!((row.scheduled, row.first_token), (Some(Ns(30)), Some(Ns(40))));
    assert_eq!(row.outcome.as_deref(), Some("length"));
    let span = rows.span.iter().find(|span| span.id == row.id).unwrap();
    assert_eq!((span.dur, &*span.name), (Some(Ns(35)), "LLMEngine::Request"));
}
