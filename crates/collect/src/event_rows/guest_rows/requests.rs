//! Requests that engines serve, as spans from their arrival to their end.

use foldhash::HashMap;
use gpuwhy_schema::{Discipline, Id, Lane, Name, Ns, Request, Span, TrackId, names};

use super::GuestRows;
use super::batches::About;
use crate::context::Context;
use crate::quota;

/// The part of a key that is no part of the engine's own name.
const TRACE: u16 = u16::MAX;

/// What the word of a request's last record begins with; how it ended follows.
const FINISHED: &str = "finished";

/// The requests of one guest that have not ended.
#[derive(Default)]
pub(super) struct Requests {
    track: Option<TrackId>,
    open: HashMap<u32, Open>,
}

/// What is known of a request so far.
struct Open {
    id: Id,
    ts: Ns,
    /// Seen by the side that talks to users.
    is_front: bool,
    key: Vec<u8>,
    trace: Option<Name>,
    prompt_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    scheduled: Option<Ns>,
    first_token: Option<Ns>,
}

impl GuestRows {
    /// Something happens to a request.
    pub(super) fn request(
        &mut self,
        tid: u32,
        (number, word): (u32, &Name),
        about: About,
        at: Ns,
        cx: &mut Context,
    ) -> Option<()> {
        let tokens = u64::from(about.tokens);
        let open = self.open_request(number, at, cx)?;
        let id = open.id;
        match &**word {
            "arrived" | "asked" => {
                open.is_front = &**word == "asked";
                (open.ts, open.prompt_tokens) = (open.ts.min(at), Some(tokens));
                return Some(());
            }
            // A prefix that a cache had is known when the request first runs.
            "cached" => open.cached_tokens = Some(u64::from(about.computed)),
            "first_token" => open.first_token = open.first_token.or(Some(at)),
            "runs" => open.scheduled = open.scheduled.or(Some(at)),
            word if word.starts_with(FINISHED) => {
                open.output_tokens = Some(tokens).filter(|n| *n > 0).or(open.output_tokens);
                let outcome = word[FINISHED.len()..].trim_start_matches([':', ' ']);
                let outcome = if outcome.is_empty() { "unknown" } else { outcome };
                return self.request_ends(number, at, outcome, cx);
            }
            _ => {}
        }
        if about.step.is_some() {
            return self.batch_change(tid, id, word.clone(), &about, cx);
        }
        Some(())
    }

    /// A part of what a request is called.
    pub(super) fn request_key(
        &mut self,
        number: u32,
        part: u16,
        words: [u64; 2],
        at: Ns,
        cx: &mut Context,
    ) -> Option<()> {
        let open = self.open_request(number, at, cx)?;
        let bytes = words.map(u64::to_le_bytes).concat();
        if part == TRACE {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            open.trace = Some(digits.as_str().into());
            return Some(());
        }
        let from = usize::from(part) * bytes.len();
        let to = from + bytes.len();
        if to > quota::REQUEST_KEY {
            return None;
        }
        if open.key.len() < to {
            open.key.resize(to, 0);
        }
        open.key[from..to].copy_from_slice(&bytes);
        Some(())
    }

    fn open_request(&mut self, number: u32, at: Ns, cx: &mut Context) -> Option<&mut Open> {
        if self.requests.open.len() >= quota::REQUESTS && !self.requests.open.contains_key(&number)
        {
            return None;
        }
        if self.requests.track.is_none() {
            let lane = Lane::spans(names::REQUESTS, Discipline::Overlap);
            self.requests.track = Some(self.track(self.guest.process(), None, lane, cx)?);
        }
        let new = || Open {
            id: cx.ids.next_id(),
            ts: at,
            is_front: false,
            key: Vec::new(),
            trace: None,
            prompt_tokens: None,
            output_tokens: None,
            cached_tokens: None,
            scheduled: None,
            first_token: None,
        };
        Some(self.requests.open.entry(number).or_insert_with(new))
    }

    fn request_ends(&mut self, number: u32, at: Ns, outcome: &str, cx: &mut Context) -> Option<()> {
        let open = self.requests.open.remove(&number)?;
        self.write_request(open, Some(at), Some(outcome), cx)
    }

    fn write_request(
        &mut self,
        open: Open,
        end: Option<Ns>,
        outcome: Option<&str>,
        cx: &mut Context,
    ) -> Option<()> {
        let (id, ts, track) = (open.id, open.ts, self.requests.track?);
        let dur = end.map(|end| end.max(ts).saturating_sub(ts));
        let name = if open.is_front { "LLMEngine::Request" } else { "EngineCore::Request" };
        cx.rows.span.push(Span { id, ts, dur, track, parent: None, name: name.into() });
        let text = String::from_utf8_lossy(&open.key);
        cx.rows.request.push(Request {
            id,
            ts,
            key: text.trim_end_matches('\0').into(),
            prompt_tokens: open.prompt_tokens,
            output_tokens: open.output_tokens,
            scheduled: open.scheduled,
            first_token: open.first_token,
            outcome: outcome.map(Name::from),
            instance: Some(self.guest.process()),
            cached_tokens: open.cached_tokens,
            trace: open.trace,
        });
        Some(())
    }

    /// Writes the requests that have not ended.
    pub(super) fn finish_requests(&mut self, cx: &mut Context) {
        let mut open: Vec<_> = self.requests.open.drain().collect();
        open.sort_unstable_by_key(|(number, _)| *number);
        for (_, open) in open {
            self.write_request(open, None, None, cx);
        }
    }
}
