//! What a step of an engine is made of, and what happens to its requests.
//!
//! An engine and its workers see the same batch: which requests, how many tokens of each, and how many were
//! computed before. A sum over these is the batch's digest, by which both sides are found again, whoever began to
//! look when, and whatever record was lost. Of a request's part in the batches only changes are written. Nothing of
//! a prompt or of a token is read but how many there are.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuwhy_wire::{Event, now};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::late::{self, write};
use crate::steps;

/// Requests that are known at a time; of more, only sums are written.
const REQUESTS: usize = 1 << 14;
/// Bytes of a request's name that are written.
const KEY: usize = 96;
/// Batches whose output is awaited.
const AWAITED: usize = 16;

/// Keys are hashes already.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Requests = HashMap<u64, Request, BuildHasherDefault<Same>>;

/// A request, as one side sees it.
struct Request {
    number: u32,
    tokens: u32,
    /// Tokens computed before its next batch, if that is like the last one.
    next: u32,
    /// The last batch that it was in.
    batch: u64,
    prompt: u32,
    /// Tokens that it got, as the side that talks to users counts them.
    got: u32,
    runs: bool,
    has_first: bool,
}

/// What one side knows.
struct Side {
    /// The ring's that knows this.
    generation: u64,
    requests: Requests,
    /// The number of the last one: odd at the engine, even on the side that talks to users, as a process may be
    /// both.
    last: u32,
    /// Batches so far.
    batch: u64,
    running: usize,
    /// Hashes of those that were sent back since the last batch.
    preempted: Vec<u64>,
    /// Batches whose output is awaited: where the engine's object lies, step, and who gets its first token.
    awaited: Vec<(usize, u64, Vec<u64>)>,
}

impl Side {
    const fn new(before: u32) -> Side {
        Side {
            generation: 0,
            requests: HashMap::with_hasher(BuildHasherDefault::new()),
            last: before,
            batch: 0,
            running: 0,
            preempted: Vec::new(),
            awaited: Vec::new(),
        }
    }
}

static ENGINE: Mutex<Side> = Mutex::new(Side::new(1));
static FRONT: Mutex<Side> = Mutex::new(Side::new(0));

fn side(of: &'static Mutex<Side>) -> MutexGuard<'static, Side> {
    let mut side = of.lock().unwrap_or_else(PoisonError::into_inner);
    let generation = late::generation();
    if side.generation != generation {
        // Whoever listens now knows of no request.
        let before = side.last % 2;
        *side = Side { generation, ..Side::new(before) };
    }
    side
}

/// A child of a fork serves no request of its parent's, and has no ring that an agent sent to that.
#[pyfunction]
pub fn forked() {
    late::in_the_child();
    // The lock may have been held by a thread that the child does not have.
    for (of, before) in [(&ENGINE, 1), (&FRONT, 0)] {
        if let Ok(mut side) = of.try_lock() {
            *side = Side::new(before);
        }
    }
}

#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 32).wrapping_mul(0xbe54_66cf_34e9_0c6d);
    x = (x ^ x >> 29).wrapping_mul(0x243f_6a88_85a3_08d3);
    x ^ x >> 32
}

fn hash(id: &str) -> u64 {
    let mut sum = id.len() as u64;
    for chunk in id.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = mix(sum ^ u64::from_le_bytes(word)).wrapping_add(0x1319_8a2e_0370_7345);
    }
    sum
}

/// A number as an engine has it; what is no number in range counts as 0.
fn count(value: &Bound<'_, PyAny>) -> u32 {
    value.extract::<u64>().map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX))
}

fn request_event(word: &str, request: u32, step: Option<u64>, (tokens, computed): (u32, u32)) {
    write(|ring| {
        let name = ring.name(word);
        Event::Request { name, request, step, tokens, computed, at: now() }
    });
}

/// A request that was not known before: its number and name are written.
fn known<'a>(side: &'a mut Side, id: &str, key: u64) -> Option<&'a mut Request> {
    let has_room = side.requests.len() < REQUESTS;
    match side.requests.entry(key) {
        Entry::Occupied(known) => Some(known.into_mut()),
        Entry::Vacant(_) if !has_room => None,
        Entry::Vacant(place) => {
            side.last = side.last.wrapping_add(2);
            let number = side.last;
            write_key(number, id.as_bytes());
            Some(place.insert(Request {
                number,
                tokens: 0,
                next: 0,
                batch: 0,
                prompt: 0,
                got: 0,
                runs: false,
                has_first: false,
            }))
        }
    }
}

fn write_key(request: u32, text: &[u8]) {
    for (part, sixteen) in text[..text.len().min(KEY)].chunks(16).enumerate() {
        let mut bytes = [0; 16];
        bytes[..sixteen.len()].copy_from_slice(sixteen);
        write_key_part(request, part as u16, bytes);
    }
}

fn write_key_part(request: u32, part: u16, bytes: [u8; 16]) {
    let words = u128::from_le_bytes(bytes);
    let (first, last) = (words as u64, (words >> 64) as u64);
    write(|_| Event::RequestKey { request, part, first, last, at: now() });
}

/// The trace id of a header `traceparent`: `00-` and 32 hexadecimal digits.
fn trace_id(header: &str) -> Option<[u8; 16]> {
    let digits = header.split('-').nth(1).filter(|digits| digits.len() == 32)?;
    let id = u128::from_str_radix(digits, 16).ok().filter(|id| *id != 0)?;
    Some(id.to_be_bytes())
}

/// A request has arrived: at the engine, or at the side that talks to users.
#[pyfunction]
#[pyo3(signature = (id, prompt_tokens, front, traceparent=None))]
pub fn request_arrived(id: &str, prompt_tokens: u32, front: bool, traceparent: Option<&str>) {
    let word = if front { "asked" } else { "arrived" };
    let mut side = side(if front { &FRONT } else { &ENGINE });
    let Some(request) = known(&mut side, id, hash(id)) else { return };
    request.prompt = prompt_tokens;
    request_event(word, request.number, None, (prompt_tokens, 0));
    if let Some(trace) = traceparent.and_then(trace_id) {
        write_key_part(request.number, u16::MAX, trace);
    }
}

/// The engine is done with a request.
#[pyfunction]
#[pyo3(signature = (id, output_tokens, outcome))]
pub fn request_finished(id: &str, output_tokens: u32, outcome: &str) {
    let mut side = side(&ENGINE);
    let Some(request) = side.requests.remove(&hash(id)) else { return };
    side.running -= usize::from(request.runs);
    let word = format!("finished: {outcome}");
    request_event(&word, request.number, None, (output_tokens, request.next));
}

/// The side that talks to users has ended a request by itself.
#[pyfunction]
pub fn front_finished(id: &str, outcome: &str) {
    let mut side = side(&FRONT);
    let Some(request) = side.requests.remove(&hash(id)) else { return };
    request_event(&format!("finished: {outcome}"), request.number, None, (request.got, 0));
}

/// A request was sent back to the queue.
#[pyfunction]
pub fn request_preempted(id: &str) {
    let mut side = side(&ENGINE);
    if side.preempted.len() < REQUESTS {
        side.preempted.push(hash(id));
    }
}

/// What the side that talks to users got: objects with `request_id`, `new_token_ids` and `finish_reason`.
#[pyfunction]
pub fn front_outputs(outputs: &Bound<'_, PyList>) -> PyResult<()> {
    let py = outputs.py();
    let mut side = side(&FRONT);
    for output in outputs.iter() {
        let id = output.getattr(pyo3::intern!(py, "request_id"))?;
        let key = hash(id.cast::<PyString>()?.to_str()?);
        let Some(request) = side.requests.get_mut(&key) else { continue };
        let tokens = output.getattr(pyo3::intern!(py, "new_token_ids"))?.len()? as u32;
        request.got += tokens;
        if tokens > 0 && !request.has_first {
            request.has_first = true;
            request_event("first_token", request.number, None, (tokens, 0));
        }
        let reason = output.getattr(pyo3::intern!(py, "finish_reason"))?;
        if !reason.is_none() {
            let (number, got) = (request.number, request.got);
            side.requests.remove(&key);
            let word = format!("finished: {}", reason.str()?.to_str()?);
            request_event(&word, number, None, (got, 0));
        }
    }
    Ok(())
}

/// Who is in a batch: for each request its name, tokens now, tokens computed before, and whether it has got a
/// token already.
struct Members<'a, 'py> {
    scheduled: &'a Bound<'py, PyDict>,
    ids: &'a Bound<'py, PyList>,
    computed: &'a Bound<'py, PyList>,
    outputs: Option<&'a Bound<'py, PyList>>,
}

/// The sums over a batch.
#[derive(Default)]
struct Sums {
    digest: u64,
    tokens: u64,
    requests: u32,
    prefill_tokens: u32,
    prefill_requests: u32,
    context: u64,
}

impl Members<'_, '_> {
    fn each(&self, mut f: impl FnMut(&str, u32, u32, bool) -> PyResult<()>) -> PyResult<()> {
        for (i, id) in self.ids.iter().enumerate() {
            let Some(tokens) = self.scheduled.get_item(&id)? else { continue };
            let (tokens, computed) = (count(&tokens), count(&self.computed.get_item(i)?));
            let decodes = match self.outputs {
                Some(outputs) => count(&outputs.get_item(i)?) > 0,
                // An engine that does not say takes one token at a time from those that have got one.
                None => tokens <= 1,
            };
            f(id.cast::<PyString>()?.to_str()?, tokens, computed, decodes)?;
        }
        Ok(())
    }
}

impl Sums {
    /// Adds one request; gives its hash.
    fn add(&mut self, id: &str, tokens: u32, computed: u32, decodes: bool) -> u64 {
        let key = hash(id);
        let place = u64::from(tokens) << 32 | u64::from(computed);
        self.digest = self.digest.wrapping_add(mix(key ^ mix(place)));
        self.tokens += u64::from(tokens);
        self.requests += 1;
        self.context += u64::from(computed);
        if !decodes {
            self.prefill_tokens = self.prefill_tokens.saturating_add(tokens);
            self.prefill_requests += 1;
        }
        key
    }

    fn write(&self, engine: &str, step: u32, at: u64, dur: u64) {
        let tokens = u32::try_from(self.tokens).unwrap_or(u32::MAX);
        let Sums { digest, requests, prefill_tokens, prefill_requests, context, .. } = *self;
        write(|ring| {
            let name = ring.name(engine);
            Event::Batch { name, step, digest, tokens, requests, at, dur }
        });
        write(|_| Event::BatchWork { step, prefill_tokens, prefill_requests, context, at });
    }
}

/// A worker is about to compute a batch: its number, `None` outside of a step.
#[pyfunction]
#[pyo3(signature = (engine, scheduled, ids, computed, outputs=None))]
pub fn batch_received(
    engine: &str,
    scheduled: &Bound<'_, PyDict>,
    ids: &Bound<'_, PyList>,
    computed: &Bound<'_, PyList>,
    outputs: Option<&Bound<'_, PyList>>,
) -> PyResult<Option<u64>> {
    if steps::is_inner() {
        // Engine and worker are one thread, whose step has its batch already.
        return Ok(None);
    }
    let mut sums = Sums::default();
    Members { scheduled, ids, computed, outputs }.each(|id, tokens, computed, decodes| {
        sums.add(id, tokens, computed, decodes);
        Ok(())
    })?;
    let step = steps::sized(i64::try_from(sums.tokens).unwrap_or(i64::MAX));
    if let Some(step) = step {
        sums.write(engine, step as u32, now(), 0);
    }
    Ok(step)
}

/// What an engine has besides: for each new request its name, tokens that a cache had and tokens of its prompt;
/// drafts to be verified; requests that run and that wait; the share of the cache in use.
type Around = (Vec<(String, u32, u32)>, u32, u32, u32, f64);

/// An engine has put a batch together: its step, `None` outside of one. `object` is where the engine's own
/// object for it lies; `around` is an [`Around`].
#[pyfunction]
#[pyo3(signature = (engine, object, scheduled, ids, computed, outputs, around))]
pub fn batch_made(
    engine: &str,
    object: &Bound<'_, PyAny>,
    scheduled: &Bound<'_, PyDict>,
    ids: &Bound<'_, PyList>,
    computed: &Bound<'_, PyList>,
    outputs: Option<&Bound<'_, PyList>>,
    around: Around,
) -> PyResult<Option<u64>> {
    let at = now();
    let (fresh, drafts, running, waiting, cache) = around;
    let mut sums = Sums::default();
    let mut side = side(&ENGINE);
    let side = &mut *side;
    side.batch += 1;
    let mut changes = Changes { step: None, still: 0, first: Vec::new() };
    // Its number is known when its size is: changes are written after the batch.
    let mut seen: Vec<(u64, u32, u32)> = Vec::with_capacity(ids.len() + fresh.len());
    let mut cached_tokens = 0u32;
    for (id, computed, prompt) in &fresh {
        let Some(tokens) = scheduled.get_item(id)? else { continue };
        cached_tokens = cached_tokens.saturating_add(*computed);
        let key = sums.add(id, count(&tokens), *computed, false);
        if let Some(request) = known(side, id, key) {
            request.prompt = request.prompt.max(*prompt);
        }
        seen.push((key, count(&tokens), *computed));
    }
    Members { scheduled, ids, computed, outputs }.each(|id, tokens, computed, decodes| {
        let key = sums.add(id, tokens, computed, decodes);
        if known(side, id, key).is_some_and(|request| decodes && !request.has_first) {
            // We began to look when it had its first token already.
            side.requests.entry(key).and_modify(|request| request.has_first = true);
        }
        seen.push((key, tokens, computed));
        Ok(())
    })?;
    let preempted = std::mem::take(&mut side.preempted);
    let step = steps::sized(i64::try_from(sums.tokens).unwrap_or(i64::MAX));
    let Some(number) = step else { return Ok(None) };
    let low = number as u32;
    sums.write(engine, low, at, now().saturating_sub(at));
    let new = fresh.len() as u32;
    write(|_| Event::BatchChange {
        step: low,
        new,
        cached_tokens,
        preempted: preempted.len() as u32,
        drafts,
        at,
    });
    write(|_| Event::BatchQueue {
        step: low,
        running,
        waiting,
        cache_ppm: (cache.clamp(0.0, 4.0) * 1e6) as u32,
        allocate_ns: u32::try_from(steps::allocated()).unwrap_or(u32::MAX),
        at,
    });
    changes.step = step;
    for (key, tokens, computed) in seen {
        changes.runs(side, key, tokens, computed);
    }
    for (id, computed, _) in &fresh {
        if let Some(request) = side.requests.get(&hash(id)).filter(|_| *computed > 0) {
            request_event("cached", request.number, None, (0, *computed));
        }
    }
    changes.pauses(side, &preempted);
    if side.awaited.len() >= AWAITED {
        side.awaited.remove(0);
    }
    side.awaited.push((object.as_ptr() as usize, number, changes.first));
    Ok(step)
}

/// What changes with a batch.
struct Changes {
    step: Option<u64>,
    /// Requests that run now.
    still: usize,
    /// Requests that get their first token by this batch.
    first: Vec<u64>,
}

impl Changes {
    fn runs(&mut self, side: &mut Side, key: u64, tokens: u32, computed: u32) {
        let Some(request) = side.requests.get_mut(&key) else { return };
        if !request.runs || request.tokens != tokens || request.next != computed {
            request_event("runs", request.number, self.step, (tokens, computed));
        }
        // Those that begin to run are not taken for ones that do no more.
        self.still += 1;
        side.running += usize::from(!request.runs);
        request.runs = true;
        (request.tokens, request.next) = (tokens, computed.saturating_add(tokens));
        request.batch = side.batch;
        if !request.has_first && request.prompt > 0 && request.next >= request.prompt {
            request.has_first = true;
            self.first.push(key);
        }
    }

    /// Those that were in the last batch, and are not in this one.
    fn pauses(&self, side: &mut Side, preempted: &[u64]) {
        if side.running <= self.still {
            return;
        }
        let (pauses, back) = ("pauses", "preempted");
        for (key, request) in &mut side.requests {
            if request.runs && request.batch != side.batch {
                request.runs = false;
                side.running -= 1;
                let word = if preempted.contains(key) { back } else { pauses };
                request_event(word, request.number, self.step, (0, request.next));
            }
        }
    }
}

/// The output of a batch is there: tokens that requests got, drafts that were kept, drafts that had been made for
/// it, and the device's tokens with padding.
#[pyfunction]
#[pyo3(signature = (object, output_tokens, accepted, proposed, padded))]
pub fn batch_output(
    object: &Bound<'_, PyAny>,
    output_tokens: u32,
    accepted: u32,
    proposed: u32,
    padded: u32,
) {
    let mut side = side(&ENGINE);
    let object = object.as_ptr() as usize;
    let Some(at) = side.awaited.iter().position(|(own, ..)| *own == object) else { return };
    let (_, step, first) = side.awaited.remove(at);
    write_output(step, output_tokens, accepted, proposed, padded);
    for key in first {
        if let Some(request) = side.requests.get(&key) {
            request_event("first_token", request.number, None, (1, request.next));
        }
    }
}

/// As [`batch_output`], for a worker's step.
#[pyfunction]
#[pyo3(signature = (step, padded, proposed))]
pub fn worker_output(step: u64, padded: u32, proposed: u32) {
    write_output(step, 0, 0, proposed, padded);
}

fn write_output(step: u64, output_tokens: u32, accepted: u32, proposed: u32, padded: u32) {
    let step = step as u32;
    write(|_| Event::BatchOutput { step, padded, output_tokens, accepted, proposed, at: now() });
}
