//! Graphs.

use std::ffi::c_char;

use super::driver::{Graph, Handle, driver, handle};
use super::submit::{Call, node_id};
use super::{Code, Status, sanitizer, status};
use crate::c::Out;
use crate::cupti::cbid;

fn instantiate(to: Out<Handle>, graph: Handle) -> Status {
    let mut driver = driver()?;
    let graph = driver.graphs.get(&graph).ok_or(Code::InvalidHandle)?.clone();
    driver.graphs_made += 1;
    let executable = Graph { id: driver.graphs_made, ..graph };
    let at = handle();
    driver.executables.insert(at, executable);
    Ok(to.put(at)?)
}

exported! {
    fn cuGraphInstantiateWithFlags(to: Out<Handle>, graph: Handle, _flags: u64) {
        instantiate(to, graph)
    }

    fn cuGraphInstantiate_v2(
        to: Out<Handle>, graph: Handle, _node: Out<Handle>, _log: Out<c_char>, _room: usize,
    ) {
        instantiate(to, graph)
    }

    fn cuGraphLaunch(graph: Handle, stream: Handle) {
        let call = Call::begin(cbid::GRAPH_LAUNCH);
        sanitizer::graph_begins(graph, stream);
        let done = driver().and_then(|mut d| d.replay(graph, stream, call.correlation));
        call.end(done)
    }

    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let driver = driver()?;
        let graph = driver.graphs.get(&graph).ok_or(Code::InvalidHandle)?;
        if !nodes.is_null() {
            for i in 0..graph.nodes.len().min(count.get()?) {
                nodes.put_at(i, node_id(graph.id, i) as Handle)?;
            }
        }
        Ok(count.put(graph.nodes.len())?)
    }

    fn cuGraphDestroy(graph: Handle) {
        driver()?.graphs.remove(&graph).map(|_| ()).ok_or(Code::InvalidHandle)
    }

    fn cuGraphExecDestroy(graph: Handle) {
        driver()?.executables.remove(&graph).map(|_| ()).ok_or(Code::InvalidHandle)
    }
}
