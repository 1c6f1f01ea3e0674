//! The columns of detail tables as arguments of the slice or instant that they belong to.

use std::collections::HashMap;

use gpuwhy_schema::{EntityId, Id, Ns, Rows};

use super::packets::{Args, Value};
use super::tree::Tree;

fn int(v: i64) -> Value {
    Value::Int(v)
}

fn uint(v: impl Into<u64>) -> Value {
    Value::Uint(v.into())
}

fn text(v: impl AsRef<str>) -> Value {
    Value::Text(v.as_ref().to_owned())
}

fn ns(v: Ns) -> Value {
    Value::Int(v.0)
}

/// Where in a piece the details of a span or mark are.
pub struct Details<'a> {
    rows: &'a Rows,
    at: HashMap<Id, Vec<(Table, u32)>>,
}

#[derive(Clone, Copy)]
enum Table {
    Kernel,
    Copy,
    Collective,
    Step,
    Request,
    GpuRequest,
    Io,
    Gthread,
    Wakeup,
    Message,
    Attr,
}

impl<'a> Details<'a> {
    /// The details among `rows`.
    pub fn of(rows: &'a Rows) -> Details<'a> {
        let mut at: HashMap<Id, Vec<(Table, u32)>> = HashMap::new();
        macro_rules! index {
            ($($table:ident as $kind:ident),+) => {$(
                for (i, row) in rows.$table.iter().enumerate() {
                    at.entry(row.id).or_default().push((Table::$kind, i as u32));
                }
            )+};
        }
        index!(kernel as Kernel, copy as Copy, collective as Collective, step as Step);
        index!(request as Request, gpu_request as GpuRequest, io as Io, gthread as Gthread);
        index!(wakeup as Wakeup, message as Message, attr as Attr);
        Details { rows, at }
    }

    /// The wakeup that a mark is, if it is one.
    pub fn wakeup(&self, id: Id) -> Option<&'a gpuwhy_schema::Wakeup> {
        let list = self.at.get(&id)?;
        let (_, row) = list.iter().find(|(t, _)| matches!(t, Table::Wakeup))?;
        self.rows.wakeup.get(*row as usize)
    }

    /// All columns of all details of `id`; entities by the names that people know.
    pub fn args(&self, id: Id, tree: &Tree) -> Args {
        let mut args = Args::new();
        let who = |id: EntityId| Value::Text(tree.label(id));
        for &(table, row) in self.at.get(&id).into_iter().flatten() {
            let row = row as usize;
            match table {
                Table::Kernel => {
                    let k = &self.rows.kernel[row];
                    args.push(("gpu", who(k.gpu)));
                    args.push(("grid", text(format!("{}x{}x{}", k.grid_x, k.grid_y, k.grid_z))));
                    let block = format!("{}x{}x{}", k.block_x, k.block_y, k.block_z);
                    args.push(("block", text(block)));
                    args.extend(k.correlation.map(|v| ("correlation", uint(v))));
                    args.extend(k.registers.map(|v| ("registers", uint(v))));
                    args.extend(k.shared_bytes.map(|v| ("shared_bytes", uint(v))));
                    args.extend(k.graph_node.map(|v| ("graph_node", uint(v))));
                }
                Table::Copy => {
                    let c = &self.rows.copy[row];
                    args.push(("kind", text(c.kind.as_str())));
                    args.push(("bytes", uint(c.bytes)));
                    args.extend(c.from.map(|v| ("from", who(v))));
                    args.extend(c.to.map(|v| ("to", who(v))));
                    args.extend(c.pinned.as_ref().map(|v| ("pinned", text(v))));
                    args.extend(c.correlation.map(|v| ("correlation", uint(v))));
                }
                Table::Collective => {
                    let c = &self.rows.collective[row];
                    args.push(("communicator", uint(c.communicator)));
                    args.push(("seq", uint(c.seq)));
                    args.push(("op", text(&c.op)));
                    args.push(("bytes", uint(c.bytes)));
                    args.push(("rank", uint(c.rank)));
                    args.push(("ranks", uint(c.ranks)));
                    args.extend(c.peer.map(|v| ("peer", uint(v))));
                    args.extend(c.algorithm.as_ref().map(|v| ("algorithm", text(v))));
                    args.extend(c.protocol.as_ref().map(|v| ("protocol", text(v))));
                    args.extend(c.channels.map(|v| ("channels", uint(v))));
                }
                Table::Step => {
                    let s = &self.rows.step[row];
                    args.push(("thread", who(s.thread)));
                    args.push(("seq", uint(s.seq)));
                    args.extend(s.size.map(|v| ("size", int(v))));
                    args.extend(s.rank.map(|v| ("rank", uint(v))));
                }
                Table::Request => {
                    let r = &self.rows.request[row];
                    args.push(("key", text(&r.key)));
                    args.extend(r.prompt_tokens.map(|v| ("prompt_tokens", uint(v))));
                    args.extend(r.output_tokens.map(|v| ("output_tokens", uint(v))));
                    args.extend(r.scheduled.map(|v| ("scheduled", ns(v))));
                    args.extend(r.first_token.map(|v| ("first_token", ns(v))));
                    args.extend(r.outcome.as_ref().map(|v| ("outcome", text(v))));
                }
                Table::GpuRequest => {
                    let r = &self.rows.gpu_request[row];
                    args.push(("engine", who(r.engine)));
                    args.push(("context", uint(r.context)));
                    args.push(("seq", uint(r.seq)));
                    args.extend(r.submitted.map(|v| ("submitted", ns(v))));
                    args.extend(r.started.map(|v| ("started", ns(v))));
                    args.extend(r.priority.map(|v| ("priority", int(v))));
                }
                Table::Io => {
                    let io = &self.rows.io[row];
                    args.push(("thread", who(io.thread)));
                    args.push(("op", text(io.op.as_str())));
                    args.push(("sync", Value::Bool(io.sync)));
                    args.push(("bytes", uint(io.bytes)));
                    args.push(("sector", uint(io.sector)));
                    let queued = io.issued.map(|issued| issued.saturating_sub(io.ts));
                    args.extend(queued.map(|v| ("queued_ns", ns(v))));
                }
                Table::Gthread => {
                    let g = &self.rows.gthread[row];
                    args.push(("sm", uint(g.sm)));
                    args.push(("block", uint(g.block)));
                    args.push(("warp", uint(g.warp)));
                    args.extend(g.lane.map(|v| ("lane", uint(v))));
                }
                Table::Wakeup => {
                    let w = &self.rows.wakeup[row];
                    args.push(("woken", who(w.woken)));
                    args.extend(w.waker.map(|v| ("waker", who(v))));
                    args.push(("context", text(w.context.as_str())));
                    args.push(("cpu", uint(w.cpu)));
                }
                Table::Message => {
                    let m = &self.rows.message[row];
                    args.push(("direction", text(m.direction.as_str())));
                    args.push(("flow", text(format!("{:016x}", m.flow))));
                    args.push(("bytes", uint(m.bytes)));
                    args.push(("position", uint(m.position)));
                }
                Table::Attr => {
                    let a = &self.rows.attr[row];
                    // Argument names are few and known; a key of the trace's own stands in the
                    // value, so that hostile keys cannot pass for ours.
                    args.push(("attr", text(format!("{}={}", a.key, a.value))));
                }
            }
        }
        args
    }
}
