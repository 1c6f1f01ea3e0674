//! StriaTrace's line through 99th percentiles over the steps of a trace.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_diagnose::published::p99_line::P99Line;
use gpuwhy_schema::{EntityId, Id};
use serde::Serialize;

use crate::error::Result;
use crate::source::TraceSource;
use crate::units::{loads, steps};

/// What the line says of one process's steps of a kind.
#[derive(Clone, Debug, Serialize)]
pub struct OfKind {
    /// The process, and its side: `vllm engine 4711`.
    pub instance: String,
    /// `prefill`, with tokens of prompts, or `decode`, without.
    pub kind: &'static str,
    /// Steps that were judged.
    pub judged: usize,
    /// Steps that lie above the line.
    pub above: usize,
    /// Of the variance of the percentiles, the share that the latest line explains.
    pub r2: Option<f64>,
    /// Its ns without tokens,
    pub constant_ns: Option<f64>,
    /// and of each token.
    pub token_ns: Option<f64>,
}

impl OfKind {
    /// One line for users.
    pub fn text(&self) -> String {
        let OfKind { instance, kind, judged, above, .. } = self;
        let line =
            self.constant_ns.zip(self.token_ns).map_or("no line yet".into(), |(ns, token)| {
                format!("{:.2} ms and {:.1} us a token", ns / 1e6, token / 1e3)
            });
        format!("{instance}, {kind}: {above} of {judged} steps lie above {line}")
    }
}

/// A step above the line.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Above {
    /// When it began, ns on the trace clock.
    pub from_ns: i64,
    /// How long it took, ns.
    pub took_ns: i64,
}

/// What the lines say of a trace's steps.
///
/// # Errors
/// It cannot be read.
pub fn p99_lines(source: &TraceSource) -> Result<(Vec<OfKind>, Vec<Above>)> {
    let mut all = steps::of_trace(source)?;
    let learned = loads::learn(source, &mut all)?;
    let batches: HashMap<Id, _> = learned.batches().map(|batch| (batch.id, batch)).collect();
    let mut lines: BTreeMap<(EntityId, String, &'static str), (P99Line, usize, usize)> =
        BTreeMap::new();
    let mut told = Vec::new();
    for step in &all {
        let Some(batch) = batches.get(&step.id) else { continue };
        let prompts = batch.prefill_tokens.unwrap_or(0);
        let kind = if prompts > 0 { "prefill" } else { "decode" };
        let tokens = if prompts > 0 { prompts } else { batch.requests };
        let key = (batch.instance, batch.engine.to_string(), kind);
        let (line, judged, above) = lines.entry(key).or_default();
        let Some(is_above) = line.step(tokens as f64, step.dur.0 as f64) else { continue };
        *judged += 1;
        if is_above {
            *above += 1;
            told.push(Above { from_ns: step.ts.0, took_ns: step.dur.0 });
        }
    }
    let entities = &source.entities_and_tracks().entity;
    let of = |((instance, engine, kind), (line, judged, above))| {
        let process = entities.iter().find(|entity| entity.id == instance);
        let pid = process.and_then(|process| process.number).unwrap_or_default();
        let line = P99Line::line(&line).copied();
        OfKind {
            instance: format!("{engine} {pid}"),
            kind,
            judged,
            above,
            r2: line.map(|line| line.r2),
            constant_ns: line.map(|line| line.constant),
            token_ns: line.map(|line| line.slope),
        }
    };
    Ok((lines.into_iter().map(of).collect(), told))
}
