//! Call chains of samples as a tree of callers.
//!
//! A report has one row a function and sample, the innermost first. The trace has one row for each
//! place in the tree of all chains, so that a stack seen a thousand times is held once.

use foldhash::HashMap;
use gpuwhy_schema::{Frame, Name, Rows, Stack};

use super::piece::ChainEntry;
use super::report::Report;

/// Functions of a chain: the rows of deeper chains are dropped.
const DEEPEST: usize = 1024;
/// Nodes and functions that the trace may have; samples beyond have no stack.
const MOST: usize = 1 << 22;
/// Samples whose stacks are remembered until their own rows are read.
const SAMPLES: usize = 1 << 24;

/// The functions and callers that the trace has so far, over all its reports.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    frames: HashMap<(Name, Option<Name>), u32>,
    nodes: HashMap<(Option<u32>, u32), u32>,
    /// The report whose chains are being read, its functions by symbol and module, and the stacks of
    /// its samples.
    number: usize,
    functions: HashMap<(i64, i64), u32>,
    of: HashMap<i64, u32>,
    /// The chain that is being read: depth, symbol and module.
    sample: Option<i64>,
    chain: Vec<(i64, i64, i64)>,
}

impl Stacks {
    /// Adds a function to the chain of a sample; false if the chain is too deep and the function is
    /// dropped.
    pub fn add(
        &mut self,
        report: &Report,
        number: usize,
        row: ChainEntry,
        rows: &mut Rows,
    ) -> bool {
        if self.number != number || self.sample != Some(row.sample) {
            self.close(report, rows);
            if self.number != number {
                self.of.clear();
                self.functions.clear();
            }
            (self.number, self.sample) = (number, Some(row.sample));
        }
        if self.chain.len() >= DEEPEST {
            return false;
        }
        self.chain.push((row.depth, row.symbol, row.module));
        true
    }

    /// The stack of a sample of a report, if it has one.
    pub fn stack(
        &mut self,
        report: &Report,
        number: usize,
        sample: i64,
        rows: &mut Rows,
    ) -> Option<u32> {
        if self.number != number {
            return None;
        }
        self.close(report, rows);
        self.of.get(&sample).copied()
    }

    /// Ends the chain that is being read, and remembers its stack for its sample.
    fn close(&mut self, report: &Report, rows: &mut Rows) {
        let Some(sample) = self.sample.take() else { return };
        let mut chain = std::mem::take(&mut self.chain);
        // From the outermost caller on.
        chain.sort_unstable_by_key(|(depth, ..)| std::cmp::Reverse(*depth));
        let mut caller = None;
        for (_, symbol, module) in chain.drain(..) {
            let known = self.functions.get(&(symbol, module)).copied();
            let frame = known.or_else(|| self.frame(report, symbol, module, rows));
            let node = frame.and_then(|frame| self.node(caller, frame, rows));
            if node.is_none() {
                caller = None;
                break;
            }
            caller = node;
        }
        self.chain = chain;
        if let Some(stack) = caller.filter(|_| self.of.len() < SAMPLES) {
            self.of.insert(sample, stack);
        }
    }

    fn frame(&mut self, report: &Report, symbol: i64, module: i64, rows: &mut Rows) -> Option<u32> {
        if self.frames.len() >= MOST || self.functions.len() >= MOST {
            return None;
        }
        let text = |id: i64| report.string(id).filter(|name| !name.is_empty()).cloned();
        let (name, place) = (text(symbol).unwrap_or_else(|| "?".into()), text(module));
        // Numbered from 1 on, in the order in which they come.
        let next = self.frames.len() as u32 + 1;
        let frame = *self.frames.entry((name.clone(), place.clone())).or_insert_with(|| {
            rows.frame.push(Frame { id: next, name, module: place, file: None, line: None });
            next
        });
        self.functions.insert((symbol, module), frame);
        Some(frame)
    }

    fn node(&mut self, caller: Option<u32>, frame: u32, rows: &mut Rows) -> Option<u32> {
        if self.nodes.len() >= MOST {
            return None;
        }
        let next = self.nodes.len() as u32 + 1;
        Some(*self.nodes.entry((caller, frame)).or_insert_with(|| {
            rows.stack.push(Stack { id: next, parent: caller, frame });
            next
        }))
    }
}
