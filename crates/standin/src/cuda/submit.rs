//! Work on streams: scheduled on the GPU, reported to CUPTI, and waited for where the driver waits.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gpuwhy_testkit::gpu::{Direction, Gpu, Run};
use gpuwhy_testkit::sys;

use super::driver::{Context, Driver, Handle, Node, visible, working};
use super::{Code, Status};
use crate::cupti::{self, Activity, Operation, cbid};
use crate::machine::{now, pid};

impl Driver {
    /// Schedules work on a stream, or adds it to the graph that is captured. Returns until when the
    /// caller must wait; 0 if it need not.
    pub(super) fn submit(
        &mut self,
        stream: Handle,
        node: Node,
        correlation: u32,
    ) -> Result<u64, Code> {
        let (stream, context) = self.stream(stream)?;
        if let Some(nodes) = &mut stream.capture {
            nodes.push(node);
            return Ok(0);
        }
        // The simulator's own time is not the kernel's.
        let at = if let Node::Kernel { begin: begin @ 1.., .. } = node {
            begin.min(now())
        } else {
            now()
        };
        let run = schedule(working(context.device)?, at, stream.until, &node);
        stream.until = run.end;
        let launch = Launch { context, stream: stream.id, correlation, graph: 0, node: 0, at };
        cupti::report(launch.activity(&node, run));
        let wait = if cupti::serialises() { run.end } else { stream.enqueue(run.end, at) };
        Ok(wait)
    }

    /// Whether work on a stream is captured.
    pub(super) fn is_capturing(&mut self, stream: Handle) -> Result<bool, Code> {
        Ok(self.stream(stream)?.0.capture.is_some())
    }

    /// Schedules a graph on a stream; returns as [`Driver::submit`].
    pub(super) fn replay(
        &mut self,
        graph: Handle,
        stream: Handle,
        correlation: u32,
    ) -> Result<u64, Code> {
        let mut graph = self.executables.get(&graph).ok_or(Code::InvalidHandle)?.clone();
        for node in &mut graph.nodes {
            if let Node::Kernel { work, run: Some(run), .. } = node {
                *work = self.execute_kept(*run, stream)?.cycles;
            }
        }
        let (stream, context) = self.stream(stream)?;
        if stream.capture.is_some() {
            return Err(Code::CaptureUnsupported);
        }
        let gpu = working(context.device)?;
        let at = now();
        let mut whole: Option<Run> = None;
        for (i, node) in graph.nodes.iter().enumerate() {
            let run = schedule(gpu, at, stream.until, node);
            stream.until = run.end;
            whole = Some(Run { start: whole.map_or(run.start, |w| w.start), end: run.end });
            if !cupti::traces_graphs() {
                let launch = Launch {
                    context,
                    stream: stream.id,
                    correlation,
                    graph: graph.id,
                    node: node_id(graph.id, i),
                    at,
                };
                cupti::report(launch.activity(node, run));
            }
        }
        let whole = whole.unwrap_or(Run { start: at, end: at });
        if cupti::traces_graphs() {
            let launch =
                Launch { context, stream: stream.id, correlation, graph: graph.id, node: 0, at };
            cupti::report(launch.of(Operation::Graph, whole));
        }
        Ok(stream.enqueue(whole.end, at))
    }
}

/// The id of a graph's node, unique in the process.
pub(super) fn node_id(graph: u32, index: usize) -> u64 {
    u64::from(graph) << 32 | (index as u64 + 1)
}

/// Schedules work on a GPU.
fn schedule(gpu: &Gpu, at: u64, after: u64, node: &Node) -> Run {
    match *node {
        Node::Kernel { work, begin, .. } => gpu.launch(at, after.max(begin), pid(), work),
        Node::Copy { kind, bytes, .. } => gpu.copy(at, after, pid(), bytes, kind.direction()),
        Node::Set { bytes, .. } => gpu.copy(at, after, pid(), bytes, Direction::Within),
    }
}

/// Where work runs, and what launched it.
#[derive(Clone, Copy)]
struct Launch {
    context: Context,
    stream: u32,
    correlation: u32,
    graph: u32,
    node: u64,
    at: u64,
}

impl Launch {
    fn of(self, operation: Operation, run: Run) -> Activity {
        Activity {
            gpu: visible().get(self.context.device).copied().unwrap_or(0),
            device: self.context.device as u32,
            context: self.context.id,
            stream: self.stream,
            correlation: self.correlation,
            graph: self.graph,
            node: self.node,
            queued: self.at,
            start: run.start,
            end: run.end,
            operation,
        }
    }

    fn activity(self, node: &Node, run: Run) -> Activity {
        let operation = match *node {
            Node::Kernel { name, grid, block, shared, .. } => {
                Operation::Kernel { name, grid, block, shared }
            }
            Node::Copy { kind, from, to, bytes, peer: None } => {
                Operation::Copy { kind, from, to, bytes }
            }
            Node::Copy { bytes, peer: Some(peer), .. } => Operation::PeerCopy {
                bytes,
                source: (peer.source.device as u32, peer.source.id),
                target: (peer.target.device as u32, peer.target.id),
            },
            Node::Set { value, bytes } => Operation::Set { value, bytes },
        };
        self.of(operation, run)
    }
}

/// A call of the driver, from its start to its end, with the number that ties it to what it
/// launches.
pub(super) struct Call {
    cbid: u32,
    pub(super) correlation: u32,
    start: u64,
}

impl Call {
    /// Starts a call of a function with this callback id.
    pub(super) fn begin(cbid: u32) -> Call {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Call { cbid, correlation: NEXT.fetch_add(1, Relaxed), start: now() }
    }

    /// Waits as long as the call has to, and reports it.
    pub(super) fn end(self, result: Result<u64, Code>) -> Status {
        if let Ok(until @ 1..) = result {
            sys::sleep_until(until);
        }
        let code = result.map_or_else(|code| code as u32, |_| 0);
        let end = now();
        cupti::report_call(self.cbid, self.correlation, self.start, end, code);
        match self.cbid {
            cbid::STREAM_SYNCHRONIZE => cupti::report_wait(3, self.correlation, self.start, end),
            cbid::CTX_SYNCHRONIZE => cupti::report_wait(4, self.correlation, self.start, end),
            _ => {}
        }
        result.map(|_| ())
    }
}
