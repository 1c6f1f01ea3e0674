//! What a node that has the key may send a correlator, and what a correlator may send a node, after the
//! handshake: bytes in any pieces, at any times, on several connections. Half of the bytes are instructions: who
//! speaks, how much, and when, so that sound messages and nonsense alternate.

#![no_main]

use gpuwhy_fleet::protocol::{CENTER_LINE, LINE};
use gpuwhy_fleet::{Action, Center, Limits, Lines, Session};
use gpuwhy_schema::{Ns, text};

const LIMITS: Limits = Limits { nodes: 3, strangers: 4, jobs: 3, bytes: 1 << 16 };

/// Takes instructions off `data`.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        first
    }
}

/// What is printed or sent has one line, and nothing in it that does not show.
fn check(line: &str, most: usize) {
    assert!(line.len() <= most && line.ends_with('\n'), "{} bytes", line.len());
    assert!(!line[..line.len() - 1].contains(text::unseen), "{line:?}");
}

fn correlator(mut input: Input<'_>) {
    let mut ids = 0u32;
    let mut center = Center::new(
        LIMITS,
        Box::new(move || {
            ids += 1;
            format!("{ids:032x}")
        }),
    );
    let mut now = Ns::secs(1);
    let mut lines: Vec<Lines> = (0..4).map(|_| Lines::default()).collect();
    let mut open = [0u64; 4];
    let mut next = 1;
    while let Some(instruction) = input.byte() {
        let at = usize::from(instruction & 3);
        if open[at] == 0 || !center.has(open[at]) {
            (open[at], lines[at]) = (next, Lines::default());
            center.connected(next, "192.0.2.1:9", Box::new(|name| name != "b"), now);
            next += 1;
        }
        let conn = open[at];
        match instruction >> 2 & 7 {
            0..=2 => {
                let n = usize::from(input.byte().unwrap_or(255));
                let bytes = input.bytes(n);
                center.read(conn, bytes.len(), now);
                lines[at].push(bytes);
            }
            3 => {
                let name = char::from(b'a' + instruction / 32);
                lines[at].push(
                    format!("{{\"says\":\"hello\",\"version\":2,\"node\":\"{name}\",\"session\":\"{at}\"}}\n")
                        .as_bytes(),
                );
            }
            4 => {
                // A few sound steps, so that rounds become whole and slow.
                let (first, long) = (input.byte().unwrap_or(0), input.byte().unwrap_or(1));
                for seq in u64::from(first)..u64::from(first) + 16 {
                    let step = format!(
                        "{{\"says\":\"steps\",\"job\":\"j{}\",\"dropped\":0,\"steps\":[{{\"rank\":{at},\
                         \"seq\":{seq},\"name\":\"s\",\"size\":null,\"dur_ns\":{},\"waited_ns\":{},\
                         \"phases\":[[\"load\",1000]]}}]}}\n",
                        instruction >> 6,
                        u64::from(long) * 1_000_000 + seq,
                        u64::from(long) * u64::from(instruction >> 5) * 100_000,
                    );
                    lines[at].push(step.as_bytes());
                }
            }
            5 => center.closed(conn),
            _ => {
                now = now.saturating_add(Ns::millis(i64::from(input.byte().unwrap_or(1)) * 20));
                center.tick(now);
            }
        }
        loop {
            match lines[at].next_line(center.longest_line(conn)) {
                Ok(Some(line)) => center.line(conn, line, now),
                Ok(None) => break,
                Err(_) => center.refuse(conn, "too long", now),
            }
            if !center.has(conn) {
                break;
            }
        }
        for action in center.actions() {
            match action {
                Action::Send(_, line) => check(&line, CENTER_LINE),
                Action::Close(conn) => assert!(!center.has(conn)),
                Action::Tell(event) => {
                    check(&(serde_json::to_string(&event).unwrap_or_default() + "\n"), usize::MAX)
                }
            }
        }
        assert!(center.nodes() <= LIMITS.nodes);
    }
}

fn node(mut input: Input<'_>) {
    let mut now = Ns::secs(1);
    let mut session = Session::new("node", "session", now);
    check(session.hello(), LINE);
    let (mut lines, mut questions) = (Lines::default(), 0);
    while let Some(instruction) = input.byte() {
        now = now.saturating_add(Ns::millis(i64::from(instruction & 15) * 50));
        if !session.may_read(now) {
            continue;
        }
        let bytes = input.bytes(usize::from(instruction >> 4) * 16);
        session.read(bytes.len(), now);
        lines.push(bytes);
        loop {
            match lines.next_line(session.longest_line()) {
                Ok(Some(line)) => match session.line(line, now) {
                    Ok(question) => questions += usize::from(question.is_some()),
                    Err(why) => {
                        return check(&(why + "\n"), 2000);
                    }
                },
                Ok(None) => break,
                Err(_) => return,
            }
        }
        match session.tick(now) {
            Ok(Some(line)) => check(&line, LINE),
            Ok(None) => {}
            Err(_) => return,
        }
    }
    assert!(questions <= 10 + (now.0 / Ns::secs(5).0) as usize);
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    match input.byte() {
        Some(0..128) => correlator(input),
        Some(_) => node(input),
        None => {}
    }
});
