//! Call chains of samples as a tree of callers.
//!
//! A report has one row a function and sample, usually the innermost first and sample after sample. The
//! trace has one row for each place in the tree of all chains, so that a stack seen a thousand times is
//! held once; a place is written when the first sample refers to it. Where the rows of a sample are not
//! adjacent, the table is read a second time and sorted.

use foldhash::HashMap;
use gpuwhy_schema::{Frame, Name, Rows, Stack};

use super::chunk::Contents;
use super::dropped::{Dropped, Why};
use super::piece::ChainEntry;
use super::report::Report;
use crate::sorter::Sorter;
use crate::{Error, Result};

/// The table of call chains.
const TABLE: &str = "SAMPLING_CALLCHAINS";
/// Functions of a chain: the rows of deeper chains are dropped.
const DEEPEST: usize = 1024;
/// Nodes and functions that the trace may have; samples beyond have no stack.
const MOST: usize = 1 << 22;
/// Samples whose stacks are remembered until their own rows are read.
const SAMPLES: usize = 1 << 24;

/// The functions and callers that the trace has so far, over all its reports.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    frames: Known<(Name, Option<Name>)>,
    nodes: Known<(Option<u32>, u32)>,
    /// The functions of the report that is being read, by symbol and module, and the stacks of its
    /// samples.
    functions: HashMap<(i64, i64), u32>,
    of: HashMap<i64, u32>,
    /// The chain that is being read: depth, symbol and module.
    sample: Option<i64>,
    chain: Vec<(i64, i64, i64)>,
    /// Whether rows of a sample came after those of a later one.
    disordered: bool,
    dropped: Dropped,
}

/// Things that are numbered from 0 in the order in which they come, and written later.
#[derive(Debug)]
struct Known<T> {
    numbers: HashMap<T, u32>,
    /// Each with its id in the trace; 0 before it is written.
    all: Vec<(T, u32)>,
    written: u32,
}

impl<T> Default for Known<T> {
    fn default() -> Known<T> {
        Known { numbers: HashMap::default(), all: Vec::new(), written: 0 }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Known<T> {
    /// The number of this; `None` if there are too many.
    fn number(&mut self, it: T) -> Option<u32> {
        if let Some(&known) = self.numbers.get(&it) {
            return Some(known);
        }
        if self.all.len() >= MOST {
            return None;
        }
        let next = self.all.len() as u32;
        self.all.push((it.clone(), 0));
        self.numbers.insert(it, next);
        Some(next)
    }

    /// The id in the trace of one, which is new if it was not written yet, and itself.
    fn id(&mut self, number: u32) -> (u32, Option<T>) {
        let (it, id) = &mut self.all[number as usize];
        if *id != 0 {
            return (*id, None);
        }
        self.written += 1;
        *id = self.written;
        (*id, Some(it.clone()))
    }
}

impl Stacks {
    /// Adds a function to the chain of a sample of the report that is being read.
    pub fn add(&mut self, report: &Report, row: ChainEntry) {
        if self.disordered {
            return;
        }
        if self.sample != Some(row.sample) {
            // Adjacent rows are certain while numbers ascend.
            self.disordered = self.sample.is_some_and(|before| before > row.sample);
            self.close(report);
            self.sample = Some(row.sample);
        }
        self.push(row);
    }

    fn push(&mut self, row: ChainEntry) {
        if self.chain.len() >= DEEPEST {
            self.dropped.add(TABLE, Why::DeepChain, 1);
            return;
        }
        self.chain.push((row.depth, row.symbol, row.module));
    }

    /// The last row of the table has been added. If rows of a sample were not adjacent, reads the table
    /// again. Returns what was left out.
    ///
    /// # Errors
    /// The report cannot be read, or the temporary file.
    pub fn end_of_table(&mut self, report: &Report) -> Result<Dropped> {
        self.close(report);
        if std::mem::take(&mut self.disordered) {
            self.of.clear();
            self.dropped = Dropped::default();
            self.sort(report)?;
        }
        Ok(std::mem::take(&mut self.dropped))
    }

    fn sort(&mut self, report: &Report) -> Result<()> {
        let failed = || Error::io("sort the rows of", report.path());
        let mut sorter: Sorter<4> = Sorter::default();
        for chunk in report.chunks.iter().filter(|c| c.contents == Contents::Chains) {
            for ChainEntry { sample, depth, symbol, module } in report.read(chunk)?.chains {
                sorter.push([sample, depth, symbol, module]).map_err(failed())?;
            }
        }
        let mut sorted = sorter.finish().map_err(failed())?;
        while let Some([sample, depth, symbol, module]) = sorted.next().map_err(failed())? {
            if self.sample != Some(sample) {
                self.close(report);
                self.sample = Some(sample);
            }
            self.push(ChainEntry { sample, depth, symbol, module });
        }
        self.close(report);
        Ok(())
    }

    /// The report has been read: numbers of samples and strings are of the next one.
    pub fn end_of_report(&mut self) {
        self.of.clear();
        self.functions.clear();
    }

    /// The stack of a sample of the report that is being read, if it has one.
    pub fn stack(&mut self, sample: i64, rows: &mut Rows) -> Option<u32> {
        let node = *self.of.get(&sample)?;
        // The callers that are not written yet, the innermost first.
        let mut fresh = Vec::new();
        let mut at = Some(node);
        while let Some(number) = at.filter(|number| self.nodes.all[*number as usize].1 == 0) {
            fresh.push(number);
            at = self.nodes.all[number as usize].0.0;
        }
        for number in fresh.into_iter().rev() {
            let (id, Some((caller, frame))) = self.nodes.id(number) else { continue };
            let parent = caller.map(|caller| self.nodes.all[caller as usize].1);
            let (frame, new) = self.frames.id(frame);
            if let Some((name, module)) = new {
                rows.frame.push(Frame { id: frame, name, module, file: None, line: None });
            }
            rows.stack.push(Stack { id, parent, frame });
        }
        Some(self.nodes.all[node as usize].1)
    }

    /// Ends the chain that is being read, and remembers its stack for its sample.
    fn close(&mut self, report: &Report) {
        let Some(sample) = self.sample.take() else { return };
        let mut chain = std::mem::take(&mut self.chain);
        // From the outermost caller on.
        chain.sort_unstable_by_key(|(depth, symbol, module)| {
            (std::cmp::Reverse(*depth), *symbol, *module)
        });
        let rows = chain.len() as u64;
        let mut caller = None;
        for (_, symbol, module) in chain.drain(..) {
            let known = self.functions.get(&(symbol, module)).copied();
            let frame = known.or_else(|| self.frame(report, symbol, module));
            let node = frame.and_then(|frame| self.nodes.number((caller, frame)));
            caller = node;
            if node.is_none() {
                break;
            }
        }
        self.chain = chain;
        match caller.filter(|_| self.of.len() < SAMPLES) {
            Some(stack) => _ = self.of.insert(sample, stack),
            None => self.dropped.add(TABLE, Why::ManyChains, rows),
        }
    }

    fn frame(&mut self, report: &Report, symbol: i64, module: i64) -> Option<u32> {
        if self.functions.len() >= MOST {
            return None;
        }
        let text = |id: i64| report.string(id).filter(|name| !name.is_empty()).cloned();
        let (name, place) = (text(symbol).unwrap_or_else(|| "?".into()), text(module));
        let frame = self.frames.number((name, place))?;
        self.functions.insert((symbol, module), frame);
        Some(frame)
    }
}
